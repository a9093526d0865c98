from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.comm.ranks import TRANSPORTS, Ranks, Workers

LONG = (
    "test_collectives_equal_the_reference",
    "test_collectives_of_large_tensors_equal_the_reference",
    "test_repeated_calls_are_safe",
    "test_groups_that_overlap_and_follow_each_other",
    "test_eight_processes_on_few_cores",
    "test_bytes_of_each_link_of_a_large_sum",
)
"""Contract tests that emulated links pass in the long runs: they are the same frames as over c10d, and minutes more.

Of those with sizes, two ranks are always tried.
"""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name, _, parameters = item.name.partition("[")
        if name in LONG and parameters.startswith("emulated") and not parameters.startswith("emulated-2"):
            item.add_marker(pytest.mark.soak)


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
