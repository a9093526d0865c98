"""Proves a plan free of deadlock before anything runs: every shape of round that it can make, for its k.

A round is proved alone, with what the round before it left in flight. That is enough: lanes keep their order, and more
progress never takes a possibility away (`plans.check`); so where every round comes to its end alone, they do one after
another, and no less when they overlap.
"""

from __future__ import annotations

from collections.abc import Iterator

from plait.errors import PlanError
from plait.plans.check import check_rounds
from plait.plans.plan import Plan
from plait.plans.round import MicroBatch, Round, Row
from plait.schedules.generation import make_round


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


def _shapes(plan: Plan, stages: int) -> Iterator[Round]:
    """Every kind of work, after every kind of work, dealt alike or anew; and the round that only drains."""
    works = list(_works(plan))
    for before in works:
        first = make_round(0, stages, before, (), plan.schedule)
        yield first
        for work in (*works, ()):
            for front in range(len(first.carried_out) + 1):
                yield make_round(1, stages, work, first.carried_out, plan.schedule, front)


def _works(plan: Plan) -> Iterator[tuple[MicroBatch, ...]]:
    for samples in (False, True):
        yield (MicroBatch((Row(0, 0, 0, plan.chunk, samples),)),)
    for count in range(1, min(plan.micro_batches, plan.slots) + 1):
        users = list(range(plan.slots))
        yield tuple(_decoding(users[part::count]) for part in range(count))
        yield tuple(
            _decoding(users[part * len(users) // count : (part + 1) * len(users) // count]) for part in range(count)
        )


def _decoding(requests: list[int]) -> MicroBatch:
    return MicroBatch(tuple(Row(request, request, 1, 1, True) for request in requests))
