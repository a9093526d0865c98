"""A plan: a layout, and the name and parameters of the schedule that makes its rounds. It holds no time."""

from __future__ import annotations

from dataclasses import dataclass

from plait.errors import PlanError
from plait.plans.check import check_layout
from plait.plans.layout import DTYPES, Layout
from plait.spec.model import ModelSpec

GRID = 64
"""Prompts are cut at multiples of this many positions, so that a replay runs the same shapes."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How one model is split for generation.

    `chunk`: positions of a prompt that go through the stages together, a multiple of 64. `context`: positions that a
    request's KV cache holds. `slots`: requests in flight at most. `reason` says why it was chosen.
    """

    model: str
    layout: Layout
    schedule: str
    micro_batches: int
    chunk: int
    context: int
    slots: int
    reason: str = ""


def check_plan(plan: Plan, spec: ModelSpec) -> None:
    """The plan fits the model and itself. Errors: PlanError."""
    check_layout(plan.layout, spec.layers)
    _check_axes(plan)
    for index, stage in enumerate(plan.layout.stages):
        for name, value in (("dtype", stage.dtype), ("weights", stage.weights)):
            if value not in DTYPES:
                raise PlanError(f"stage {index}: unknown {name} {value!r} (known: {', '.join(DTYPES)})")
        if stage.weights != stage.dtype:
            raise PlanError(
                f"stage {index} stores weights as {stage.weights} but computes in {stage.dtype}: not supported"
            )
        if stage.threads < 1:
            raise PlanError(f"stage {index} has {stage.threads} threads, but needs at least 1")
    for name in ("micro_batches", "slots", "context"):
        if getattr(plan, name) < 1:
            raise PlanError(f"{name} is {getattr(plan, name)}, but must be at least 1")
    if plan.chunk < GRID or plan.chunk % GRID:
        raise PlanError(f"chunk is {plan.chunk}, but must be a multiple of {GRID} positions")
    if plan.context > spec.max_positions:
        raise PlanError(
            f"context is {plan.context} positions, but {spec.name} was made for at most {spec.max_positions}: "
            f"{plan.context - spec.max_positions} too many"
        )


def _check_axes(plan: Plan) -> None:
    """What this version can run: stages alone, stage i on rank i, on the CPU."""
    others = [axis for axis, size in plan.layout.axes.items() if axis != "pp" and size != 1]
    if others:
        raise PlanError(f"the plan splits along {', '.join(others)}, but only pp can be run yet")
    for index, stage in enumerate(plan.layout.stages):
        if stage.ranks != (index,):
            raise PlanError(f"stage {index} is on ranks {list(stage.ranks)}, but must be on rank {index} alone")
        if stage.device != "cpu":
            raise PlanError(f"stage {index} is on device {stage.device!r}, but only 'cpu' can be run yet")
