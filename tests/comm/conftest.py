from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.comm.ranks import TRANSPORTS, Ranks, Workers


@pytest.fixture(scope="session")
def workers() -> Iterator[Workers]:
    """Processes that transports share: starting torch takes seconds."""
    shared = Workers()
    yield shared
    shared.close()


@pytest.fixture(scope="session", params=sorted(TRANSPORTS, reverse=True))
def ranks(request: pytest.FixtureRequest, workers: Workers) -> Iterator[Ranks]:
    """Runs programs on the ranks of a mesh, once for each transport."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    transport = TRANSPORTS[request.param](workers)
    yield transport
    transport.close()
    torch.set_num_threads(threads)
