"""A mesh over two hosts, which this machine plays: deaths across them, and what is said over what."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch

from plait.comm.contract import Endpoint, Group, Tag
from plait.comm.joined import Joined
from plait.comm.lost import SILENT
from plait.errors import PeerLost, RunError
from tests.comm.ranks import DIED, JoinedRanks, Workers, die
from tests.comm.test_collectives import same, sum_of, tensor_of
from tests.comm.test_storm import storm

HOST_OF = (0, 1, 0, 1)  # as JoinedRanks has it
ALL, HERE = Group((0, 1, 2, 3)), Group((0, 2))


@pytest.fixture(scope="module")
def ranks(workers: Workers) -> Iterator[JoinedRanks]:
    joined = JoinedRanks(workers)
    yield joined
    joined.close()


def sums_everywhere(endpoint: Endpoint) -> list[str]:
    """The same sum among all ranks and on one host alone; and what it put on which way."""
    assert isinstance(endpoint, Joined)
    wrong, me = [], endpoint.rank
    here = Group(tuple(rank for rank in ALL.ranks if HOST_OF[rank] == HOST_OF[me]))
    for seed, (count, dtype) in enumerate([(5, "bfloat16"), (4097, "float32"), (70_001, "float32"), (9000, "float16")]):
        for group in (ALL, here):
            far = sum(endpoint._far.traffic(rank).payload_bytes for rank in ALL.ranks if rank != me)
            got = endpoint.all_reduce(group, tensor_of(seed, me, (count,), dtype))
            if not same(got, sum_of(seed, group, (count,), dtype)):
                wrong.append(f"{count} {dtype} {group}")
            sent = sum(endpoint._far.traffic(rank).payload_bytes for rank in ALL.ranks if rank != me) - far
            if (sent > 0) != (group == ALL):
                wrong.append(f"{count} {dtype} {group}: {sent} bytes between hosts")
    return wrong


def test_the_bits_are_the_same_whichever_way_they_go(ranks: JoinedRanks) -> None:
    assert ranks.run(sums_everywhere, 4) == [[]] * 4


def dies_while(endpoint: Endpoint, how: str, victim: int, kind: str) -> object:
    """The victim dies; the others wait for all together, or each for a rank of its own host."""
    endpoint.barrier(ALL)
    start = time.monotonic()
    if endpoint.rank == victim:
        time.sleep(0.3)
        return die(endpoint, how)
    try:
        if kind == "all_reduce":
            endpoint.all_reduce(ALL, torch.zeros(1 << 18))
        else:
            endpoint.receive((endpoint.rank + 2) % 4, Tag(0, 0, 0), 30)
    except PeerLost as error:
        endpoint.fail(str(error), error.rank)
        return [error.rank, str(error), time.monotonic() - start < 10]
    return "nothing happened"


@pytest.mark.parametrize(("kind", "victim"), [("all_reduce", 1), ("near", 3)])
def test_a_killed_rank_is_named_on_both_hosts(ranks: JoinedRanks, kind: str, victim: int) -> None:
    outcomes = ranks.run(dies_while, 4, how="kill", victim=victim, kind=kind)
    assert outcomes[victim] == DIED
    for rank in {0, 1, 2, 3} - {victim}:
        lost, text, soon = outcomes[rank]
        assert (lost, soon) == (victim, True)
        assert text.startswith(f"rank {victim} is lost, while rank {rank} waited for ")
        assert text.endswith(SILENT)


def all_but_the_first_host_leave(endpoint: Endpoint) -> object:
    """Ranks of one host go on with each other when all of the other host have left in order."""
    endpoint.barrier(ALL)
    if HOST_OF[endpoint.rank]:
        return None
    time.sleep(0.1)
    for _ in range(3):
        endpoint.barrier(HERE)
    texts = []
    for rank in (1, 5):
        try:
            endpoint.receive(rank, Tag(0, 0, 0), 30)
        except RunError as error:
            texts.append(str(error))
    endpoint.barrier(HERE)
    return texts


def test_who_has_left_is_missed_only_by_those_who_wait_for_it(ranks: JoinedRanks) -> None:
    what = "Tag(epoch=0, round=0, action=0) from rank 1: it has left in order"
    assert ranks.run(all_but_the_first_host_leave, 4)[::2] == [
        [
            f"rank 1 is lost, while rank {rank} waited for {what}",
            f"rank {rank} has no link with rank 5: its mesh has ranks 0 to 3",
        ]
        for rank in (0, 2)
    ]


def leave_after_sums(endpoint: Endpoint) -> bool:
    """Its neighbours may still wait for frames of who leaves first."""
    endpoint.all_reduce(ALL, torch.zeros(1 << 16))
    endpoint.barrier(ALL)
    return True


def test_leaving_right_after_a_sum_over_both_hosts_is_fine(ranks: JoinedRanks) -> None:
    for _ in range(5):
        assert ranks.run(leave_after_sums, 4) == [True] * 4


def idle_moves_on(endpoint: Endpoint) -> bool:
    """In a collective on the host, and in one over both, what is queued moves on."""
    for turn, group in enumerate((HERE, ALL)):
        tag = Tag(0, turn, 0)
        sent: list[bool] = []

        def send(sent: list[bool] = sent, tag: Tag = tag) -> None:
            if not sent and endpoint.try_send(2, tag, torch.zeros(1)):
                sent.append(True)

        if endpoint.rank == 0:
            endpoint.idle = send
        if endpoint.rank == 2:
            endpoint.receive(0, tag, 30)
        if endpoint.rank in group.ranks:
            endpoint.barrier(group)
            assert endpoint.rank != 0 or sent
    return True


def test_idle_is_called_in_collectives_of_either_kind(ranks: JoinedRanks) -> None:
    assert ranks.run(idle_moves_on, 4) == [True] * 4


def test_storm_over_two_hosts(ranks: JoinedRanks) -> None:
    assert ranks.run(storm, 4, seed=11, acts=40) == [[]] * 4
