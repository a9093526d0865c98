from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.comm.ranks import TRANSPORTS, Ranks


@pytest.fixture(scope="session", params=sorted(TRANSPORTS, reverse=True))
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """Runs programs on the ranks of a mesh, once for each transport."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    transport = TRANSPORTS[request.param]()
    yield transport
    transport.close()
    torch.set_num_threads(threads)
