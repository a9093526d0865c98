"""Rounds of generation: forward passes through the stages, and tokens back to the first.

    layerwise, 2 stages            pipelined, 2 stages, 2 micro-batches
    stage 0  F0 ·· F0 ··           stage 0  F0 F1 F0 F1 ··
    stage 1  ·· F0 ·· F0           stage 1  ·· F0 F1 F0 F1

Layer-wise has one micro-batch in flight: each round is answered (with its tokens, or with none) before the next begins.
Pipelined rounds begin as soon as the tokens that their first micro-batch needs are back; the others follow in time.
"""

from __future__ import annotations

from collections.abc import Sequence

from plait.errors import PlanError, nearest
from plait.plans.action import Action, Kind
from plait.plans.round import Carried, MicroBatch, Round
from plait.schedules.passes import (
    Positions,
    add_activations,
    add_token_receives,
    add_token_sends,
    requests_of,
)

LAYERWISE, PIPELINED = "layerwise", "pipelined"
SCHEDULES = (LAYERWISE, PIPELINED)


def require_schedule(name: str) -> str:
    """`name`, if it is a schedule of generation. Errors: PlanError, with the nearest known name."""
    if name not in SCHEDULES:
        raise PlanError(f"unknown schedule {name!r} for generation: {nearest(name, SCHEDULES)}")
    return name


def forwards(number: int, stages: int, micro_batches: int) -> Positions:
    """Every stage computes the micro-batches in order."""
    return tuple(
        tuple(Action(number, stage, Kind.FORWARD, micro_batch) for micro_batch in range(micro_batches))
        for stage in range(stages)
    )


def make_round(
    number: int,
    stages: int,
    work: tuple[MicroBatch, ...],
    carried: tuple[Carried, ...] = (),
    schedule: str = PIPELINED,
    front: int = 0,
) -> Round:
    """Round `number` over `work`, with the token messages `carried` in flight; the first `front` of them come first.

    A pure function: every rank makes the same round from the same arguments.
    """
    layerwise = require_schedule(schedule) == LAYERWISE
    sent = _sent(stages, work, layerwise)
    places = _places(number, stages, work, carried, layerwise, front)
    positions = add_activations(forwards(number, stages, len(work)))
    positions = add_token_sends(positions, sent)
    positions = add_token_receives(positions, places, number)
    fresh = tuple(Carried(number, index, requests_of(work[index])) for index in sent)
    return Round(number, work, positions, carried, carried[len(places) :] + fresh)


def _sent(stages: int, work: Sequence[MicroBatch], layerwise: bool) -> list[int]:
    """Micro-batches whose end the last stage tells the first: those that sample; all where one is in flight."""
    if stages == 1:
        return []
    return [index for index, micro_batch in enumerate(work) if layerwise or micro_batch.sampled]


def _places(
    number: int, stages: int, work: Sequence[MicroBatch], carried: Sequence[Carried], layerwise: bool, front: int
) -> list[tuple[Carried, int]]:
    """Before which forward each carried message is received; messages that nothing needs yet stay in flight.

    They arrive in the order in which they were sent, so one that is needed brings all before it along. One that is more
    than `stages` rounds old is taken first of all: a first stage that is so far ahead of the last may as well wait, and
    the token does not lie there until something needs it.
    """
    place: float = float("inf")
    places: list[tuple[Carried, int]] = []
    for index in range(len(carried) - 1, -1, -1):
        old = not work or carried[index].round < number - stages
        needed = 0 if layerwise or old or index < front else _first_need(carried[index], work)
        if needed is not None:
            place = min(place, needed)
        if place != float("inf"):
            places.append((carried[index], int(place)))
    return places[::-1]


def _first_need(carried: Carried, work: Sequence[MicroBatch]) -> int | None:
    requests = set(carried.requests)
    return next((i for i, micro_batch in enumerate(work) if requests.intersection(requests_of(micro_batch))), None)
