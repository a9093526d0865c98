"""Emulated links: when a message is there, who shares a wire, what lies between hosts, and how a rank is missed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plait.comm.c10d import C10dEndpoint
from plait.comm.contract import Endpoint, Group, Tag
from plait.comm.emulated import HandOver, SharedClocks, WirePace, clocks_bytes
from plait.comm.emulated_mesh import EmulatedMesh, emulated_threads
from plait.comm.joined import Joined
from plait.comm.lost import SILENT
from plait.comm.region import anonymous_file
from plait.errors import PeerLost, RunError
from plait.spec.cluster import Wire
from plait.spec.emulation import EmulatedLinks, Emulation
from tests.comm.ranks import DIED, EmulatedRanks, Workers, die
from tests.comm.together import together

TAG = Tag(0, 0, 0)


class Ideal:
    """A link that was free at second 0, on a clock that stands still."""

    def __init__(self) -> None:
        self.free_s = 0.0

    def occupy(self, seconds: float) -> float:
        self.free_s += seconds
        return self.free_s


def shared_clocks(hosts: int) -> SharedClocks:
    descriptor = anonymous_file()
    os.ftruncate(descriptor, clocks_bytes(hosts))
    return SharedClocks(descriptor, hosts)


# --- when a message is there ------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 1 << 20), min_size=1, max_size=20))
def test_messages_queue_for_bandwidth_and_share_the_latency(sizes: list[int]) -> None:
    pace = WirePace(Wire(2e-3, 1e6), Ideal(), HandOver())
    due = [pace.due_s(size) for size in sizes]
    assert due == pytest.approx([2e-3 + sum(sizes[: at + 1]) / 1e6 for at in range(len(sizes))])


def test_what_the_machine_takes_itself_is_taken_off() -> None:
    pace = WirePace(Wire(2e-3, 1e6), Ideal(), HandOver(100e-6, 1e-9))
    assert pace.due_s(1000) == pytest.approx(1e-3 + 2e-3 - 100e-6 - 1e-6)
    assert pace.due_s(1000) == pytest.approx(2e-3 + 2e-3 - 100e-6 - 1e-6)  # the link was kept as long as before


def test_ranks_of_a_host_wait_for_each_other_on_its_wire_and_on_no_other() -> None:
    clocks = shared_clocks(3)
    begun_s = time.monotonic()
    first = clocks.of(0, 1).occupy(10.0)
    assert first >= begun_s + 10
    assert clocks.of(0, 1).occupy(5.0) == first + 5
    for other in ((1, 0), (0, 2), (2, 1)):
        assert clocks.of(*other).occupy(1.0) < begun_s + 5


def test_a_message_is_never_there_before_its_time() -> None:
    ends = emulated_threads(EmulatedLinks(Wire(50e-3, 1e6)).among(2), 2)
    sent_s = time.monotonic()
    ends[0].send(1, TAG, torch.zeros(25_000))  # 0.1 s of the wire
    ends[1].receive(0, TAG)
    assert time.monotonic() - sent_s >= 0.15
    sent_s = time.monotonic()
    ends[1].send(0, TAG, torch.zeros(1))  # the way back is another wire, and free
    ends[0].receive(1, TAG)
    assert time.monotonic() - sent_s >= 0.05
    together(*(end.close for end in ends))


# --- meshes -------------------------------------------------------------------------------------------------


def test_ranks_of_one_host_share_memory_and_others_a_wire() -> None:
    ends = emulated_threads(EmulatedLinks(Wire(1e-3, 1e8), 2).among(4), 2)
    assert all(isinstance(end, Joined) for end in ends)

    def sums(end: Endpoint) -> list[float]:
        pair = Group((0, 1) if end.rank < 2 else (2, 3))
        found = [float(end.all_reduce(group, torch.tensor([2.0**end.rank]))) for group in (pair, Group((0, 1, 2, 3)))]
        far = [0 if rank == end.rank else end._far.traffic(rank).payload_bytes for rank in range(4)]  # type: ignore[attr-defined]
        return [*found, sum(far)]

    assert together(*(lambda end=end: sums(end) for end in ends)) == [
        [3, 15, 12],
        [3, 15, 12],
        [12, 15, 12],
        [12, 15, 12],
    ]  # type: ignore[misc]
    together(*(end.close for end in ends))


def test_a_rank_alone_has_nobody_to_talk_to() -> None:
    (end,) = emulated_threads(Emulation((0,), {}), 2)
    assert isinstance(end, C10dEndpoint)
    end.barrier(Group((0,)))
    end.close()


def test_a_mesh_of_nothing_cannot_work() -> None:
    with pytest.raises(RunError) as caught:
        EmulatedMesh.create(0, EmulatedLinks(Wire(1e-3, 1e8)).among(2))
    assert str(caught.value) == "a mesh of 2 ranks with capacity 0 cannot work: both must be at least 1"


@pytest.fixture(scope="module")
def processes(workers: Workers) -> Iterator[EmulatedRanks]:
    emulated = EmulatedRanks(workers)
    yield emulated
    emulated.close()


def killed(endpoint: Endpoint, how: str, victim: int) -> object:
    endpoint.barrier(Group(tuple(range(endpoint.size))))
    if endpoint.rank == victim:
        return die(endpoint, how)
    begun_s = time.monotonic()
    try:
        endpoint.receive(1 - endpoint.rank % 2, TAG)
    except PeerLost as error:
        endpoint.fail(str(error), error.rank)
        return [error.rank, error.args[0].endswith(SILENT), time.monotonic() - begun_s < 3]
    return "nothing happened"


def test_a_killed_rank_is_named(processes: EmulatedRanks) -> None:
    outcomes = processes.run(killed, 3, how="kill", victim=1)  # on a host of its own
    assert outcomes[1] == DIED
    assert outcomes[0] == outcomes[2] == [1, True, True]
