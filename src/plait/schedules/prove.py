"""Proves a plan free of deadlock before anything runs: every shape of round that it can make, for its k.

Training repeats one round. In generation a round is proved alone, with what the round before it left in flight. That is
enough: lanes keep their order, and more progress never takes a possibility away (`plans.check`); so where every round
comes to its end alone, they do one after another, and no less when they overlap.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from plait.errors import PlanError
from plait.plans.check import check_rounds
from plait.plans.check_step import check_training_round
from plait.plans.plan import Plan
from plait.plans.round import MicroBatch, Round, Row
from plait.plans.training import TrainingPlan
from plait.schedules.generation import make_round
from plait.schedules.step import executed_round
from plait.spec.model import ModelSpec


def prove_plan(plan: Plan) -> None:
    """Errors: PlanError, with the actions that would wait for each other and the link_capacity that helps."""
    stages, capacity = len(plan.layout.stages), plan.layout.link_capacity
    for one in _shapes(plan, stages):
        try:
            check_rounds([one], stages, capacity)
        except PlanError as error:
            raise PlanError(
                f"link_capacity = {capacity} is too small for {plan.micro_batches} micro-batches ({error}): "
                f"link_capacity = {plan.micro_batches} is enough"
            ) from None


def prove_training_plan(plan: TrainingPlan, spec: ModelSpec) -> None:
    """The round that the trainer runs is complete, in order and free of deadlock for the plan's k. Errors: PlanError.

    One step is enough: it leaves nothing in flight.
    """
    check_training_round(executed_round(0, plan, spec), plan.layout)


def _shapes(plan: Plan, stages: int) -> Iterator[Round]:
    """Every kind of work after every kind that may come before it, dealt alike or anew; and rounds that only drain.

    Of decoding rounds those of neighbouring sizes follow each other here, and a single micro-batch follows all: what is
    carried over is token messages in order; how many there are, and where they are needed, is all that matters.
    """
    works = list(_works(plan))
    for before in works:
        first = make_round(0, stages, before, (), plan.schedule)
        yield first
        for work in (*works, ()):
            if len(work) > 1 and abs(len(work) - len(before)) > 1:
                continue
            for front in {0, 1, len(first.carried_out)}:
                if front <= len(first.carried_out):
                    yield make_round(1, stages, work, first.carried_out, plan.schedule, front)
    yield from _overdue(plan, stages)


def _overdue(plan: Plan, stages: int) -> Iterator[Round]:
    """A token that nothing needs, while the chunks of another prompt go through: carried on until it is old."""
    first, other = _chunk(plan, 0, samples=True), _chunk(plan, 1, samples=False)
    one = make_round(0, stages, (first,), (), plan.schedule)
    for number in range(1, stages + 3):
        one = make_round(number, stages, (other,), one.carried_out, plan.schedule)
        yield one


def _works(plan: Plan) -> Iterator[tuple[MicroBatch, ...]]:
    for samples in (False, True):
        yield (_chunk(plan, 0, samples),)
    users = list(range(plan.slots))
    for count in range(1, min(plan.micro_batches, plan.slots) + 1):
        bounds = [part * len(users) // count for part in range(count + 1)]
        yield tuple(_decoding(users[first:end]) for first, end in pairwise(bounds))
        if count == min(plan.micro_batches, plan.slots):
            yield tuple(_decoding(users[part::count]) for part in range(count))


def _chunk(plan: Plan, request: int, samples: bool) -> MicroBatch:
    return MicroBatch((Row(request, request, 0, plan.chunk, samples),))


def _decoding(requests: list[int]) -> MicroBatch:
    return MicroBatch(tuple(Row(request, request, 1, 1, True) for request in requests))
