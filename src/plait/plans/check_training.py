"""Does a plan of training fit its model and itself?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from plait.errors import PlanError
from plait.plans.check import check_layout
from plait.plans.layout import Layout
from plait.plans.plan import check_stage
from plait.plans.split import RECOMPUTE, Split, TrainingSetup
from plait.plans.training import TrainingPlan
from plait.spec.model import ModelSpec


def check_training_plan(plan: TrainingPlan, spec: ModelSpec) -> None:
    """Layout, split, batch and model agree, whether this version can run the plan or not. Errors: PlanError."""
    for problem in (
        *_setup(plan.setup),
        *_layout(plan.layout, plan.setup),
        *_batch(plan),
        *_model(plan, spec),
    ):
        raise PlanError(problem)
    # the cut alone: that several stages share ranks was looked at above
    stages = tuple(replace(stage, ranks=(index,)) for index, stage in enumerate(plan.layout.stages))
    check_layout(Layout({"pp": len(stages)}, stages, plan.layout.link_capacity), spec.layers)
    for index, stage in enumerate(plan.layout.stages):
        check_stage(index, stage, plan.setup.split.tp)


def _setup(setup: TrainingSetup) -> Iterator[str]:
    sizes = {**{axis: getattr(setup.split, axis) for axis in Split.__dataclass_fields__}, "virtual": setup.virtual}
    sizes |= {"micro_batch": setup.micro_batch, "micro_batches": setup.micro_batches}
    for name, value in sizes.items():
        if value < 1:
            yield f"{name} is {value}, but must be at least 1"
    if setup.recompute not in RECOMPUTE:
        yield f"recompute is {setup.recompute!r}, but must be one of {', '.join(RECOMPUTE)}"
    if setup.zero not in range(4):
        yield f"zero is {setup.zero}, but must be 0, 1, 2 or 3"


def _layout(layout: Layout, setup: TrainingSetup) -> Iterator[str]:
    split = setup.split
    for axis in Split.__dataclass_fields__:
        if layout.axes.get(axis, 1) != getattr(split, axis):
            yield f"axis {axis} is {layout.axes.get(axis, 1)} in the layout, but {getattr(split, axis)} in the split"
    if layout.ranks != split.ranks:
        yield f"the axes {dict(layout.axes)} make {layout.ranks} ranks, but the split has {split.ranks}"
    if len(layout.stages) != split.pp * setup.virtual:
        yield (
            f"there are {len(layout.stages)} stages, but {split.pp} positions of {setup.virtual} "
            f"make {split.pp * setup.virtual}"
        )
    positions = layout.positions
    if [len(held) for held in positions] != [setup.virtual] * split.pp:
        counts = [len(held) for held in positions]
        yield f"positions hold {counts} stages, but each of {split.pp} must hold {setup.virtual}"
    ranks = [rank for held in positions for rank in layout.stages[held[0]].ranks]
    if sorted(ranks) != list(range(layout.ranks)):
        yield f"the positions name {len(ranks)} ranks, but must name each of 0 to {layout.ranks - 1} once"
    widths = sorted({len(stage.ranks) for stage in layout.stages})
    if widths != [split.ranks // split.pp]:
        yield f"positions have {' and '.join(map(str, widths))} ranks, but must have {split.ranks // split.pp} each"


def _batch(plan: TrainingPlan) -> Iterator[str]:
    if plan.sequence < 1:
        yield f"sequence is {plan.sequence}, but must be at least 1"
    setup, split = plan.setup, plan.setup.split
    made = setup.micro_batch * setup.micro_batches * split.dp * split.ep
    if made != plan.batch:
        yield (
            f"batch is {plan.batch} sequences, but {setup.micro_batches} micro-batches of {setup.micro_batch} over "
            f"dp × ep = {split.dp * split.ep} make {made}"
        )


def _model(plan: TrainingPlan, spec: ModelSpec) -> Iterator[str]:
    split = plan.setup.split
    if split.tp > spec.heads:
        yield f"tp is {split.tp}, but {spec.name} has {spec.heads} heads: {_ranks(split.tp - spec.heads)} have none"
    experts = 1 if spec.experts is None else spec.experts.count
    if split.ep > experts:
        yield (
            f"ep is {split.ep}, but {spec.name} has no experts"
            if spec.experts is None
            else f"ep is {split.ep}, but {spec.name} has {experts} experts: {_ranks(split.ep - experts)} have none"
        )
    if spec.learned_positions and plan.sequence > spec.max_positions:
        yield (
            f"sequence is {plan.sequence} tokens, but {spec.name} has positions for {spec.max_positions}: "
            f"{plan.sequence - spec.max_positions} too many"
        )


def _ranks(count: int) -> str:
    return f"{count} rank{'s' if count > 1 else ''} would"
