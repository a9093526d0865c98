"""A plan: a layout, and the name and parameters of the schedule that makes its rounds. It holds no time."""

from __future__ import annotations

from dataclasses import dataclass

from plait.errors import PlanError
from plait.plans.check import check_layout
from plait.plans.layout import DTYPES, Layout, Stage
from plait.plans.rules import DTYPE_BYTES
from plait.spec.model import ModelSpec

GRID = 64
"""Prompts are cut at multiples of this many positions, so that a replay runs the same shapes."""

LOCALHOST = "localhost"
"""The machine that a plan is run from, in its stages."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How one model is split for generation.

    `chunk`: positions of a prompt that go through the stages together, a multiple of 64. `context`: positions that a
    request's KV cache holds. `slots`: requests in flight at most, of each replica: of the whole plan dp × ep times as
    many. `reason` says why it was chosen.
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
    """The plan fits the model and itself, whether this version can run it or not. Errors: PlanError."""
    check_layout(plan.layout, spec.layers)
    for index, stage in enumerate(plan.layout.stages):
        check_stage(index, stage, plan.layout.tp)
    if plan.layout.sequence and plan.layout.tp == 1:
        raise PlanError(
            "the plan splits activations along the sequence over a tensor group, but tp is 1: "
            "write sequence = false, or plan with --tp 2"
        )
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


def check_stage(index: int, stage: Stage, tp: int = 1) -> None:
    """Dtype, threads, devices and shares fit the stage's ranks and its tensor group. Errors: PlanError."""
    if stage.dtype not in DTYPE_BYTES:
        raise PlanError(f"stage {index}: unknown dtype {stage.dtype!r} (known: {', '.join(sorted(DTYPE_BYTES))})")
    if stage.threads < 1:
        raise PlanError(f"stage {index} has {stage.threads} threads, but needs at least 1")
    if stage.devices and len(stage.devices) != len(stage.ranks):
        raise PlanError(f"stage {index} has {len(stage.ranks)} ranks, but names {len(stage.devices)} devices")
    if stage.shares and (len(stage.shares) != tp or min(stage.shares) < 1):
        raise PlanError(
            f"stage {index} has shares {', '.join(map(str, stage.shares))}, but its tensor group has {tp} "
            f"rank{'s' if tp > 1 else ''}: write {tp} number{'s' if tp > 1 else ''} above 0, "
            "in proportion to the devices' speed"
        )


def check_runnable(plan: Plan, machine: str = LOCALHOST) -> None:
    """What `plait generate` can run yet: stages and tensor groups, rank after rank, on the CPU of this machine.

    `machine` is this host's own name, under which a plan may know it. Errors: PlanError, which says what is needed.
    """
    split = {axis: size for axis, size in plan.layout.axes.items() if axis not in ("pp", "tp") and size != 1}
    if split:
        ways = ", ".join(f"{axis} = {size}" for axis, size in split.items())
        flags = " ".join(f"--{axis} 1" for axis in split)
        raise PlanError(
            f"the plan splits along {ways}, but only pp and tp can be run yet: plan again with {flags}, "
            "or look at this plan with plait simulate"
        )
    _check_host(plan, machine)
    for index, stage in enumerate(plan.layout.stages):
        _check_stage_runs(index, stage, plan.layout.tp)


def _check_host(plan: Plan, machine: str) -> None:
    hosts = sorted({stage.host for stage in plan.layout.stages})
    if len(hosts) > 1:
        raise PlanError(
            f"the plan is for {len(hosts)} hosts ({', '.join(hosts[:4])}{', …' if len(hosts) > 4 else ''}), but ranks "
            "can be started on this machine only: start them there with torchrun, try it here over emulated links "
            "(--emulate 1gbit,200us), or look at this plan with plait simulate"
        )
    if hosts[0] not in (LOCALHOST, machine):
        raise PlanError(
            f"the plan is for host {hosts[0]!r}, and this machine is {machine!r}: run it there, "
            f"or write host = {LOCALHOST!r} in its stages if it is this one"
        )


def _check_stage_runs(index: int, stage: Stage, tp: int) -> None:
    group = tuple(range(index * tp, (index + 1) * tp))
    if stage.ranks != group:
        needed = f"rank {index} alone" if tp == 1 else f"ranks {list(group)}, in this order"
        raise PlanError(f"stage {index} is on ranks {list(stage.ranks)}, but must be on {needed}")
    if stage.device != "cpu":
        raise PlanError(
            f"stage {index} is on device {stage.device!r}, but only 'cpu' can be run yet: plan for the CPU of this "
            "machine, or look at this plan with plait simulate"
        )
    for name, value in (("dtype", stage.dtype), ("weights", stage.weights)):
        if value not in DTYPES:
            raise PlanError(f"stage {index}: {name} {value!r} cannot be run yet (known: {', '.join(DTYPES)})")
    if stage.weights != stage.dtype:
        raise PlanError(f"stage {index} stores weights as {stage.weights} but computes in {stage.dtype}: not supported")
