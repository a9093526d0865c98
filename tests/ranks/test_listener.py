"""What a front says of ranks: their names, and which of several failures began it."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from plait.errors import PeerLost, RunError, SpecError
from plait.plans.layout import Layout, Stage
from plait.ranks.channel import Channel
from plait.ranks.failures import Failed, failure
from plait.ranks.listener import Listener, raise_first, rank_name
from plait.ranks.processes import all_threads


class Done(msgspec.Struct, tag="done"):
    rank: int


class Fake:
    """Ranks that are the other ends of sockets, and how each ended."""

    def __init__(self, deaths: Sequence[str | None]) -> None:
        pairs = [socket.socketpair() for _ in deaths]
        self.channels: list[Channel[Any, Any]] = [Channel(mine, Done | Failed) for mine, _ in pairs]
        self.ranks: list[Channel[Any, Any]] = [Channel(theirs, Done) for _, theirs in pairs]
        self._deaths = deaths

    def death(self, rank: int) -> str | None:
        return self._deaths[rank]


def layout(*stages: Stage, **axes: int) -> Layout:
    return Layout(axes, stages)


@pytest.mark.parametrize(
    ("rank", "host", "name"),
    [
        (0, "", "rank 0 (stages 0 and 2, layers 0 to 1 and 4 to 5, replica 0 of 2, tensor rank 0 of 2)"),
        (3, "", "rank 3 (stages 0 and 2, layers 0 to 1 and 4 to 5, replica 1 of 2, tensor rank 1 of 2)"),
        (5, "red", "rank 5 (host red, stages 1 and 3, layers 2 to 3 and 6 to 7, replica 0 of 2, tensor rank 1 of 2)"),
        (6, "host 2", "rank 6 (host 2, stages 1 and 3, layers 2 to 3 and 6 to 7, replica 1 of 2, tensor rank 0 of 2)"),
        (9, "", "rank 9"),
    ],
)
def test_names(rank: int, host: str, name: str) -> None:
    first, second = (0, 1, 2, 3), (4, 5, 6, 7)
    cut = [Stage((2 * index, 2 * index + 2), (first, second)[index % 2], threads=2) for index in range(4)]
    held = layout(*cut, dp=2, pp=2, tp=2)
    assert rank_name(held, rank, host) == name
    assert all_threads(held) == 16


def test_a_rank_alone_is_its_stage() -> None:
    assert rank_name(layout(Stage((0, 1), (0,)), Stage((1, 4), (1,)), pp=2), 1) == "rank 1 (stage 1, layers 1 to 3)"


def test_a_ranks_own_error_goes_before_what_others_noticed_of_it() -> None:
    noticed = Failed(0, "PeerLost", "rank 1 is lost", 1)
    own = failure(1, SpecError("it cannot be"))
    with pytest.raises(SpecError) as error:
        raise_first([noticed, own], str)
    assert str(error.value) == "1: it cannot be"
    with pytest.raises(PeerLost) as lost:
        raise_first([noticed], lambda rank: f"rank {rank}")
    assert (str(lost.value), lost.value.rank) == ("rank 1 was lost: rank 1 is lost", 1)
    raise_first([], str)


def test_what_ranks_agree_on_is_no_single_ranks_error() -> None:
    same = [failure(rank, RunError("step 3: the loss is nan")) for rank in (2, 0)]
    with pytest.raises(RunError) as error:
        raise_first(same, str, agreeing=True)
    assert str(error.value) == "step 3: the loss is nan"
    for failures, agreeing in ((same, False), (same[:1], True)):
        with pytest.raises(RunError) as error:
            raise_first(failures, str, agreeing=agreeing)
        assert str(error.value) == "2: step 3: the loss is nan"


def test_what_is_no_error_of_ours_is_told_with_its_trace() -> None:
    try:
        1 / 0  # noqa: B018
    except ZeroDivisionError as error:
        told = failure(3, error)
    assert (told.rank, told.kind, told.lost) == (3, "RunError", None)
    assert told.message.endswith("ZeroDivisionError: division by zero\n")


def test_the_rank_that_died_is_named_not_the_one_that_noticed() -> None:
    fake = Fake([None, "was killed by signal 9 (SIGKILL)", None])
    listener: Listener[Done | Failed] = Listener(fake, Done, lambda rank: f"rank {rank}")
    fake.ranks[2].send(Failed(2, "PeerLost", "rank 1 is lost", 1))
    fake.ranks[1].close()
    with pytest.raises(PeerLost) as error:
        listener.arrived()
    assert (str(error.value), error.value.rank) == ("rank 1 was killed by signal 9 (SIGKILL)", 1)
    listener.close()


def test_a_rank_that_leaves_too_early_and_one_that_may() -> None:
    fake = Fake([None, None])
    listener: Listener[Done | Failed] = Listener(fake, Done, lambda rank: f"rank {rank}")
    fake.ranks[0].send(Done(0))
    fake.ranks[0].close()
    assert listener.arrived() == [Done(0)]
    assert listener.arrived(0) == []
    fake.ranks[1].close()
    with pytest.raises(PeerLost) as error:
        listener.arrived()
    assert str(error.value) == "rank 1 ended before its work was done"
    with pytest.raises(RunError):
        listener.tell(1, Done(1))
    listener.close()
