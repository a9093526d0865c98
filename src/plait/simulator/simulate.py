"""Reader 1: a plan's rounds and costs become the predicted timeline.

    rounds ──lowering──> lanes in columns ──replay──> begin and end of every step ──> spans

Links: a send begins when it is first in its lane and its message exists, waits while k messages lie unreceived on its
link, then keeps lane and link for bytes ÷ bandwidth; the message is there `latency_s` later. A buffered link
(`LinkCost.buffered`) takes the message as soon as there is room, and the lane goes on; it sends one message after the
other. The span of such a send ends when the link has sent it, so that it may reach over those after it in its lane. A
receive ends when it is first in its lane and its message is there. Reductions run beside computations, in a lane of
their own. What meets actions of other positions (`rules.meetings`) begins when it is first in its lane, and waits until
all of them are there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from plait.costs.protocol import Costs
from plait.plans.action import Action, Kind, Lane
from plait.plans.collection import no_collection
from plait.plans.layout import Layout
from plait.plans.round import Round
from plait.simulator.lanes import LaneState
from plait.simulator.lowering import Lowering
from plait.simulator.replay import Replay
from plait.spec.model import ModelSpec
from plait.timeline.compare import COMPUTE, TRANSFER, WAIT
from plait.timeline.span import Part, Span
from plait.timeline.timeline import Timeline


def simulate(
    layout: Layout,
    rounds: Sequence[Round],
    costs: Costs,
    spec: ModelSpec,
    *,
    replicas: bool = True,
    slices: bool = True,
) -> Timeline:
    """The predicted timeline of consecutive rounds, from second 0. Errors: PlanError where they get stuck.

    Ranks of one position do the same at the same time; bytes are each rank's own. `replicas`: spans of all of them;
    without, of each position's first rank alone, which stands for the others (a mesh of 16,384 ranks has few
    positions). `slices`: each rank of a tensor group hands on its rows of the activations, as generation does, and not
    all of them.
    """
    with no_collection():
        lowering = Lowering(layout, costs, spec.hidden, len(rounds), slices=slices)
        for carried in rounds[0].carried_in if rounds else ():
            lowering.carry_in(Action(carried.round, len(layout.stages) - 1, Kind.SEND_TOKENS, carried.micro_batch))
        for one in rounds:
            lowering.add(one)
        lowering.finish()
        Replay(layout, costs, lowering).run()
        ranks = [layout.stages[stages[0]].ranks for stages in layout.positions]
        shown = ranks if replicas else [of_position[:1] for of_position in ranks]
        hosts = {rank: stage.host for stage in layout.stages for rank in stage.ranks[: None if replicas else 1]}
        return Timeline("predicted", _spans(lowering.lanes, shown, layout), hosts)


def _spans(
    positions: Sequence[Sequence[LaneState]], ranks: Sequence[tuple[int, ...]], layout: Layout
) -> tuple[Span, ...]:
    """All spans in the order of their start."""
    spans: list[Span] = []
    starts_s: list[float] = []
    for lanes, of_position in zip(positions, ranks, strict=True):
        for lane in lanes:
            make = _of_moves if lane.moves else _of_works
            for place, rank in enumerate(of_position):
                spans += make(lane, rank, layout.epoch, place % layout.tp)
                starts_s += lane.starts_s
    order = np.argsort(np.array(starts_s), kind="stable")
    return tuple([spans[index] for index in order.tolist()])


# tuple.__new__ spares the Python frame of a NamedTuple's own constructor: half of the time that a span takes
_new = tuple.__new__


def _of_works(lane: LaneState, rank: int, epoch: int, index: int) -> list[Span]:
    spans = _plain_works(lane, rank, epoch, index)
    for at, met_s in lane.met_s.items():
        action, work, start_s, end_s = lane.actions[at], lane.works[at], lane.starts_s[at], lane.ends_s[at]
        turn_s = end_s - work.exchange_s if action.kind.lane is Lane.COMPUTE else met_s
        bounds = ((WAIT, start_s, met_s), (COMPUTE, met_s, turn_s), (TRANSFER, turn_s, end_s))
        parts = tuple(Part(*bound) for bound in bounds if bound[2] > bound[1])
        spans[at] = spans[at]._replace(parts=parts)
    return spans


def _plain_works(lane: LaneState, rank: int, epoch: int, index: int) -> list[Span]:
    return [
        _new(
            Span,
            (
                epoch,
                action,
                rank,
                start_s,
                end_s,
                work[4][index] if work[4] else work[3],
                (Part(COMPUTE, start_s, end_s - work[2]), Part(TRANSFER, end_s - work[2], end_s)) if work[2] else (),
            ),
        )
        for action, work, start_s, end_s in zip(lane.actions, lane.works, lane.starts_s, lane.ends_s, strict=True)
    ]


def _of_moves(lane: LaneState, rank: int, epoch: int, index: int) -> list[Span]:
    spans = []
    ends_s, sent_s = lane.ends_s, lane.sent_s
    if sent_s:
        ends_s = [sent_s.get(at, end_s) for at, end_s in enumerate(ends_s)]
    columns = zip(lane.actions, lane.moves, lane.starts_s, lane.moved_s, ends_s, strict=True)
    for action, (_, sends, _, payload_bytes, each), start_s, moved_s, end_s in columns:
        if each:
            payload_bytes = each[index]
        parts: tuple[Part, ...] = ()
        if not sends:
            parts = (_new(Part, (WAIT, start_s, end_s)),)
        elif moved_s > start_s:
            parts = (_new(Part, (WAIT, start_s, moved_s)), _new(Part, (TRANSFER, moved_s, end_s)))
        spans.append(_new(Span, (epoch, action, rank, start_s, end_s, payload_bytes, parts)))
    return spans
