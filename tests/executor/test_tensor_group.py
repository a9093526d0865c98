"""One rank of a tensor group: whom it talks to, what moves while it waits for the others, and what its spans hold."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from plait.comm.contract import Tag, Traffic
from plait.executor.executor import Executor
from plait.executor.lane import message_tag
from plait.plans.action import Action, Kind
from plait.plans.round import MicroBatch, Round, Row
from plait.schedules.generation import make_round
from plait.tracer.tracer import Tracer
from tests.executor.world import make_plan


class Messages:
    """Writes down what is sent, while its links have room; what is received is there at once."""

    def __init__(self) -> None:
        self.idle: Callable[[], None] | None = None
        self.room = True
        self.sent: list[tuple[int, Tag]] = []
        self.received: list[tuple[int, Tag]] = []

    def try_send(self, to: int, tag: Tag, tensor: torch.Tensor) -> bool:
        if self.room:
            self.sent.append((to, tag))
        return self.room

    def try_receive(self, source: int, tag: Tag) -> torch.Tensor:
        self.received.append((source, tag))
        return torch.zeros(1)

    def traffic(self, to: int) -> Traffic:
        count = sum(peer == to for peer, _ in self.sent)
        return Traffic(count, 4 * count, 0, 0)

    def wait(self, ready, what: str, timeout_s: float = 0.0, peers: object = ()):  # type: ignore[no-untyped-def]
        while (result := ready()) is None:
            self.room = True
        return result


class Worker:
    """Every forward has one exchange of 12 bytes; `inside` is called while it waits for the others."""

    def __init__(self, inside: Callable[[int], None] = lambda micro_batch: None) -> None:
        self.inside = inside
        self.arrived: list[tuple[Action, int]] = []

    def forward(self, one: Round, micro_batch: int, message: torch.Tensor | None) -> torch.Tensor:
        self.inside(micro_batch)
        return torch.zeros(1)

    def tokens(self, action: Action, tokens: torch.Tensor) -> None:
        self.arrived.append((action, tokens.numel()))

    def exchanged(self) -> tuple[int, tuple[tuple[float, float], ...]]:
        return 12, ((1.0, 2.0),)


class Heard:
    """An observer that keeps all it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Action, int, object]] = []

    def finished(self, action, start_s, ready_s, end_s, payload_bytes, exchanges=()):  # type: ignore[no-untyped-def]
        assert start_s <= ready_s <= end_s
        self.told.append((action, payload_bytes, exchanges))


def decoding(micro_batches: int, stages: int) -> Round:
    work = tuple(MicroBatch((Row(slot, slot, 9, 1, True),)) for slot in range(micro_batches))
    return make_round(0, stages, work, (), "layerwise" if micro_batches == 1 else "pipelined")


@pytest.mark.parametrize(("rank", "after", "before"), [(0, 3, 6), (1, 4, 7), (2, 5, 8), (4, 7, 1), (8, 2, 5)])
def test_messages_go_to_the_same_place_of_the_other_stage(rank: int, after: int, before: int) -> None:
    """3 stages of 3 ranks: rank 4 is the middle of stage 1, and talks to the middles of stages 0 and 2."""
    plan, messages = make_plan(3, "layerwise", 1, tp=3), Messages()
    executor = Executor(plan.layout, rank, messages, Worker())
    one = decoding(1, 3)
    executor.run(one)
    stage = rank // 3
    kinds = {to: [tag for peer, tag in messages.sent if peer == to] for to, _ in messages.sent}
    sent = [Action(0, stage, Kind.SEND_FORWARD if stage < 2 else Kind.SEND_TOKENS, 0)]
    assert kinds == {after: [message_tag(0, action, 3) for action in sent]}
    if stage > 0:
        receive = Action(0, stage, Kind.RECEIVE_FORWARD, 0)
        assert messages.received == [(before, message_tag(0, receive, 3))]
    else:
        executor.receive(Action(0, 0, Kind.RECEIVE_TOKENS, 0))
        assert messages.received == [(before, message_tag(0, Action(0, 0, Kind.RECEIVE_TOKENS, 0), 3))]


def test_what_is_queued_moves_while_a_forward_waits_for_the_group() -> None:
    """The first send finds no room. In the second forward, while the other rank is awaited, there is room again."""
    plan, messages = make_plan(2, "pipelined", 2, tp=2), Messages()
    seen: list[list[int]] = []

    def inside(micro_batch: int) -> None:
        messages.room = micro_batch == 1
        assert messages.idle is not None
        messages.idle()
        seen.append([to for to, _ in messages.sent])
        messages.room = micro_batch == 1

    Executor(plan.layout, 1, messages, Worker(inside)).run(decoding(2, 2))
    assert seen == [[], [3]]
    assert [to for to, _ in messages.sent] == [3, 3]


def test_a_forward_is_told_with_its_exchanges_and_their_bytes() -> None:
    plan, messages, heard = make_plan(2, "layerwise", 1, tp=2), Messages(), Heard()
    Executor(plan.layout, 0, messages, Worker(), heard).run(decoding(1, 2))
    assert heard.told == [
        (Action(0, 0, Kind.FORWARD, 0), 12, ((1.0, 2.0),)),
        (Action(0, 0, Kind.SEND_FORWARD, 0), 4, ()),
    ]


def test_nobody_is_asked_for_exchanges_where_nothing_is_observed() -> None:
    worker = Worker()
    worker.exchanged = None  # type: ignore[method-assign, assignment]
    Executor(make_plan(2, "layerwise", 1, tp=2).layout, 0, Messages(), worker).run(decoding(1, 2))


def test_the_tracer_is_such_an_observer() -> None:
    tracer = Tracer(0)
    Executor(make_plan(1, "layerwise", 1, tp=2).layout, 0, Messages(), Worker(), tracer).run(decoding(1, 1))
    (span,) = tracer.spans()
    assert (span.action, span.rank, span.payload_bytes) == (Action(0, 0, Kind.FORWARD, 0), 0, 12)
