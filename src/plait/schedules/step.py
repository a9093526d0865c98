"""A training step as a round: the schedule's order, lowered to all that every position does."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from plait.errors import PlanError
from plait.plans.layout import Layout
from plait.plans.round import MicroBatch, Round, Row
from plait.plans.split import TrainingSetup
from plait.plans.training import BUCKETS, TrainingPlan
from plait.schedules.lowered import Lowered
from plait.schedules.order import Order, Placement
from plait.schedules.passes_training import (
    add_gathers,
    add_messages,
    add_norm,
    add_optimizer,
    add_reductions,
    add_tied,
    cut_last_backwards,
)
from plait.schedules.training import compute_order
from plait.spec.model import ModelSpec


def make_training_round(
    number: int,
    layout: Layout,
    setup: TrainingSetup,
    work: Sequence[MicroBatch],
    buckets: int | Sequence[int] = 1,
    *,
    tied: bool = False,
    norm: bool = False,
) -> Round:
    """Round `number`: one step over `work`, the micro-batches of one pipeline, a row a sequence.

    `buckets`, `tied` and `norm` as in `lower_step`. A pure function: every rank makes the same round from the same
    arguments. Errors: PlanError where layout, setup, work and buckets do not agree.
    """
    if len(work) != setup.micro_batches:
        raise PlanError(f"the step has {len(work)} micro-batches of work, but the plan has {setup.micro_batches}")
    order = training_order(layout, setup)
    step = lower_step(order, layout, setup, buckets, tied=tied, norm=norm)
    return Round(number, tuple(work), step.actions(number))


def executed_round(
    number: int, plan: TrainingPlan, spec: ModelSpec, buckets: int = BUCKETS, frozen: Collection[str] = ()
) -> Round:
    """Round `number` as the trainer runs it: norm, buckets, and the sum of a tied embedding that is not `frozen`.

    `buckets`: parts of each stage's last backward; a stage has no more of them than layers. Errors: PlanError.
    """
    setup = plan.setup
    work = sequences(setup.micro_batches, setup.micro_batch, plan.sequence)
    tied = spec.tied and "embed.weight" not in frozen
    return make_training_round(number, plan.layout, setup, work, plan.parts(buckets), tied=tied, norm=True)


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


def lower_step(
    order: Order,
    layout: Layout,
    setup: TrainingSetup,
    buckets: int | Sequence[int] = 1,
    *,
    tied: bool = False,
    norm: bool = False,
) -> Lowered:
    """Messages, gradient reductions where there are replicas, the update, and the gather of what ZeRO sharded.

    `buckets`: parts in which the last backward of each stage is done and its gradients reduced, for all stages or one
    number a stage; without replicas nothing is cut. `tied`: the first and the last stage share the embedding, and its
    gradient is summed over both. `norm`: the gradient norm of the whole mesh stands before the update. Errors:
    PlanError for buckets below 1, or not one number a stage.
    """
    split = setup.split
    replicas = split.dp * split.ep * split.cp
    parts = _parts(buckets, order.stages)
    step = add_messages(order, layout.link_capacity)
    if replicas > 1:
        step = add_reductions(cut_last_backwards(step, parts))
    step = add_tied(step) if tied else step
    step = add_norm(step) if norm else step
    step = add_optimizer(step)
    return add_gathers(step) if replicas > 1 and setup.zero else step


def _parts(buckets: int | Sequence[int], stages: int) -> Sequence[int]:
    parts = [buckets] * stages if isinstance(buckets, int) else list(buckets)
    if len(parts) != stages:
        raise PlanError(f"there are {len(parts)} numbers of buckets, but {stages} stages: give one a stage")
    if min(parts) < 1:
        raise PlanError(f"stage {parts.index(min(parts))} has {min(parts)} buckets, but needs at least 1")
    return parts


def sequences(micro_batches: int, micro_batch: int, sequence: int) -> tuple[MicroBatch, ...]:
    """The work of one pipeline's step: micro-batches of `micro_batch` sequences of `sequence` tokens each."""
    return tuple(
        MicroBatch(tuple(Row(first + i, i, 0, sequence, False) for i in range(micro_batch)))
        for first in range(0, micro_batches * micro_batch, micro_batch)
    )


def _drawn(placement: Placement) -> str:
    return " | ".join(" ".join(map(str, stages)) for stages in placement)
