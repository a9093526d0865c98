"""A training step as a round: the schedule's order, lowered to all that every position does."""

from __future__ import annotations

from collections.abc import Sequence

from plait.errors import PlanError
from plait.plans.layout import Layout
from plait.plans.round import MicroBatch, Round, Row
from plait.plans.split import TrainingSetup
from plait.schedules.lowered import Lowered
from plait.schedules.order import Order, Placement
from plait.schedules.passes_training import (
    add_gathers,
    add_messages,
    add_optimizer,
    add_reductions,
    cut_last_backwards,
)
from plait.schedules.training import compute_order


def make_training_round(
    number: int, layout: Layout, setup: TrainingSetup, work: Sequence[MicroBatch], buckets: int = 1
) -> Round:
    """Round `number`: one step over `work`, the micro-batches of one pipeline, a row a sequence.

    `buckets`: parts in which the last backward of each stage is done and its gradients reduced. A pure function: every
    rank makes the same round from the same arguments. Errors: PlanError where layout, setup and work do not agree.
    """
    if len(work) != setup.micro_batches:
        raise PlanError(f"the step has {len(work)} micro-batches of work, but the plan has {setup.micro_batches}")
    order = training_order(layout, setup)
    return Round(number, tuple(work), lower_step(order, layout, setup, buckets).actions(number))


def training_order(layout: Layout, setup: TrainingSetup) -> Order:
    """What each position of the layout computes, in order. Errors: PlanError where its stages stand elsewhere."""
    positions = layout.positions
    order = compute_order(setup.schedule, len(positions), setup.virtual, setup.micro_batches)
    if order.placement != positions:
        raise PlanError(
            f"schedule {setup.schedule} wants stages {_drawn(order.placement)} on its positions, "
            f"but the layout has {_drawn(positions)}"
        )
    return order


def lower_step(order: Order, layout: Layout, setup: TrainingSetup, buckets: int = 1) -> Lowered:
    """Messages, gradient reductions where there are replicas, the update, and the gather of what ZeRO sharded."""
    split = setup.split
    replicas = split.dp * split.ep * split.cp
    step = add_messages(order, layout.link_capacity)
    if replicas > 1:
        step = add_reductions(cut_last_backwards(step, buckets))
    step = add_optimizer(step)
    return add_gathers(step) if replicas > 1 and setup.zero else step


def sequences(micro_batches: int, micro_batch: int, sequence: int) -> tuple[MicroBatch, ...]:
    """The work of one pipeline's step: micro-batches of `micro_batch` sequences of `sequence` tokens each."""
    return tuple(
        MicroBatch(tuple(Row(first + i, i, 0, sequence, False) for i in range(micro_batch)))
        for first in range(0, micro_batches * micro_batch, micro_batch)
    )


def _drawn(placement: Placement) -> str:
    return " | ".join(" ".join(map(str, stages)) for stages in placement)
