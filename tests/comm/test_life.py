"""How ranks wait, leave and die, on every transport."""

from __future__ import annotations

import contextlib
import time

import pytest
import torch

from plait.comm.contract import Endpoint, Group, Tag
from plait.comm.lost import LEFT, SILENT
from plait.errors import PeerLost, WaitTimeout
from tests.comm.ranks import DIED, Ranks, die

TAG = Tag(0, 0, 9)
REASONS = {"kill": SILENT, "fail": "ValueError: a fault of the test"}
WAITS = ("receive", "send", "all_reduce", "large", "barrier", "anything")


def wait_for(endpoint: Endpoint, peer: int, kind: str) -> None:
    """Wait for the peer, one way or another, for ever."""
    group = Group(tuple(range(endpoint.size)))
    if kind == "receive":
        endpoint.receive(peer, TAG)
    elif kind == "send":
        for index in range(endpoint.capacity + 1):
            endpoint.send(peer, Tag(0, 0, index), torch.zeros(4))
    elif kind == "barrier":
        endpoint.barrier(group)
    elif kind == "anything":
        endpoint.wait(lambda: endpoint.poll(peer), "anything")
    else:
        endpoint.all_reduce(group, torch.zeros(16 if kind == "all_reduce" else 1 << 20))


def one_dies(endpoint: Endpoint, how: str, kind: str, victim: int) -> object:
    """The victim dies while the others have waited for it long enough to sleep."""
    endpoint.barrier(Group(tuple(range(endpoint.size))))
    if endpoint.rank == victim:
        time.sleep(0.05)
        return die(endpoint, how)
    start = time.monotonic()
    try:
        wait_for(endpoint, victim, kind)
    except PeerLost as error:
        endpoint.fail(str(error), error.rank)
        return [error.rank, str(error), time.monotonic() - start < 3]
    return "nothing happened"


WHAT = {
    "receive": "Tag(epoch=0, round=0, action=9) from rank 1",
    "send": "room on link {rank}→1",
    "all_reduce": "all_reduce of 64 bytes of float32 of ranks 0, 1, 2",
    "large": "all_reduce of 4194304 bytes of float32 of ranks 0, 1, 2",
    "barrier": "barrier of ranks 0, 1, 2",
    "anything": "anything",
}


@pytest.mark.parametrize("kind", WAITS)
def test_a_death_ends_the_waits_of_all_others_and_is_named(ranks: Ranks, kind: str) -> None:
    for how in ranks.deaths:
        if how == "kill" and kind in ("send", "all_reduce", "barrier"):
            continue  # a new process for each takes seconds, and the way to notice is the same
        first, second, third = ranks.run(one_dies, 3, how=how, kind=kind, victim=1)
        assert second == DIED
        for rank, (lost, text, soon) in ((0, first), (2, third)):
            assert (lost, soon) == (1, True)
            # who hears of it through the third rank, which failed because of it, reads that one's words in between
            assert text.startswith(f"rank 1 is lost, while rank {rank} waited for {WHAT[kind].format(rank=rank)}: ")
            assert text.endswith(REASONS[how])


def died_elsewhere(endpoint: Endpoint, how: str) -> object:
    """Rank 2 dies while 0 waits for 1, who lives and is busy: 0 is told at once all the same."""
    if endpoint.rank == 2:
        time.sleep(0.02)
        return die(endpoint, how)
    try:
        endpoint.receive(1 - endpoint.rank, TAG, 10)
    except PeerLost as error:
        endpoint.fail(str(error), error.rank)
        return error.rank
    return None


def test_a_death_ends_also_waits_for_others(ranks: Ranks) -> None:
    for how in ranks.deaths:
        assert ranks.run(died_elsewhere, 3, how=how) == [2, 2, DIED]


def chain(endpoint: Endpoint, how: str) -> object:
    """1 dies, 0 fails because of it, and 2, who hears of both, names 1.

    A process that was killed starts anew, which takes long on a busy machine.
    """
    if endpoint.rank == 1:
        endpoint.wait(lambda: endpoint.poll(2), "rank 2, who must have joined before anybody dies")
        return die(endpoint, how)
    if endpoint.rank == 2:
        endpoint.post(1, b"here")
        time.sleep(0.3)
    try:
        with endpoint:
            endpoint.receive(1 - endpoint.rank if endpoint.rank < 2 else 0, TAG, 60)
    except PeerLost as error:
        return error.rank
    return None


def test_the_first_to_die_is_named(ranks: Ranks) -> None:
    for how in ranks.deaths:
        assert ranks.run(chain, 3, how=how) == [1, DIED, 1]


def sends_and_dies(endpoint: Endpoint, how: str) -> object:
    if endpoint.rank == 0:
        endpoint.send(1, TAG, torch.arange(3.0))
        endpoint.post(1, b"the last word")
        return die(endpoint, how)
    time.sleep(0.2)
    received = endpoint.receive(0, TAG)
    word = endpoint.wait(lambda: endpoint.poll(0), "a word")
    try:
        endpoint.receive(0, TAG)
    except PeerLost as error:
        return [received.tolist(), word.decode(), error.rank]
    return None


def test_what_had_arrived_before_a_death_is_still_received(ranks: Ranks) -> None:
    for how in ranks.deaths:
        assert ranks.run(sends_and_dies, 2, how=how)[1] == [[0, 1, 2], "the last word", 0]


def one_leaves(endpoint: Endpoint) -> object:
    """Rank 2 leaves in order. 0 and 1 go on with each other; who waits for 2 is told."""
    if endpoint.rank == 2:
        return None
    time.sleep(0.1)
    if endpoint.rank == 0:
        time.sleep(0.1)
        endpoint.send(1, TAG, torch.ones(1))
    else:
        assert endpoint.receive(0, TAG, 10) == 1
        assert endpoint.rank == 1
    endpoint.barrier(Group((0, 1)))
    try:
        endpoint.receive(2, TAG, 10)
    except PeerLost as error:
        endpoint.barrier(Group((0, 1)))
        return str(error)
    return None


def test_leaving_in_order_disturbs_only_those_who_wait_for_that_rank(ranks: Ranks) -> None:
    what = "Tag(epoch=0, round=0, action=9) from rank 2"
    assert ranks.run(one_leaves, 3) == [
        f"rank 2 is lost, while rank 0 waited for {what}: {LEFT}",
        f"rank 2 is lost, while rank 1 waited for {what}: {LEFT}",
        None,
    ]


def all_but_one_leave(endpoint: Endpoint) -> object:
    if endpoint.rank:
        return None
    try:
        endpoint.wait(lambda: None, "anyone", 10)
    except PeerLost as error:
        return str(error).partition(":")[0]
    return None


def test_who_is_left_alone_does_not_wait(ranks: Ranks) -> None:
    assert ranks.run(all_but_one_leave, 3)[0] == "rank 1 is lost, while rank 0 waited for anyone"


def leave_after_barrier(endpoint: Endpoint) -> bool:
    endpoint.barrier(Group(tuple(range(endpoint.size))))
    return True


def test_leaving_right_after_a_barrier_is_fine(ranks: Ranks) -> None:
    for _ in range(10):
        assert ranks.run(leave_after_barrier, 4) == [True] * 4


def time_out(endpoint: Endpoint) -> list[object]:
    other = 1 - endpoint.rank
    texts: list[object] = []
    start = time.monotonic()
    try:
        endpoint.receive(other, TAG, 0.1)
    except WaitTimeout as error:
        texts.append(str(error))
    texts.append(time.monotonic() - start > 0.09)
    endpoint.barrier(Group((0, 1)))
    return texts


def test_a_wait_ends_when_its_time_is_up(ranks: Ranks) -> None:
    what = "Tag(epoch=0, round=0, action=9) from rank"
    assert ranks.run(time_out, 2) == [
        [f"rank 0 waited 0.1 s for {what} 1, and it did not come", True],
        [f"rank 1 waited 0.1 s for {what} 0, and it did not come", True],
    ]


def sleeper(endpoint: Endpoint) -> float:
    """Median seconds from a send until a rank that sleeps has the message, and back."""
    other, taken = 1 - endpoint.rank, []
    for index in range(15):
        tag = Tag(0, index, 0)
        if endpoint.rank == 0:
            time.sleep(0.004)
            start = time.perf_counter()
            endpoint.send(other, tag, torch.zeros(1))
            endpoint.receive(other, tag)
            taken.append(time.perf_counter() - start)
        else:
            endpoint.send(other, tag, endpoint.receive(other, tag))
    return sorted(taken)[len(taken) // 2] if taken else 0.0


def test_a_sleeping_rank_is_woken_at_once(ranks: Ranks) -> None:
    assert ranks.run(sleeper, 2)[0] < 1  # not at the end of its wait


def sleeps_without_work(endpoint: Endpoint) -> float:
    """Processor seconds that waiting 0.5 s takes (of the whole process: in threads both together)."""
    endpoint.barrier(Group((0, 1)))
    start = time.process_time()
    with contextlib.suppress(WaitTimeout):
        endpoint.receive(1 - endpoint.rank, TAG, 0.5)
    used = time.process_time() - start
    endpoint.barrier(Group((0, 1)))
    return used


def test_waiting_takes_no_processor_time(ranks: Ranks) -> None:
    assert max(ranks.run(sleeps_without_work, 2)) < 0.1
