"""Settings that a run can have, and a mesh that there is."""

from __future__ import annotations

from typing import get_args

from plait.errors import PlanError, UsageError, nearest
from plait.plans.check_training import check_training_plan
from plait.plans.layout import Layout
from plait.plans.training import TrainingPlan
from plait.spec.model import ModelSpec
from plait.trainer.rates import check_rate
from plait.trainer.settings import OptimizerName, Settings


def check_settings(settings: Settings) -> None:
    """Settings that a run can have. Errors: UsageError."""
    check_rate(settings.rate)
    names = get_args(OptimizerName)
    shares = {"beta1": settings.beta1, "beta2": settings.beta2, "momentum": settings.momentum}
    for name, value in (shares | {"dropout": settings.dropout}).items():
        if not 0 <= value < 1:
            raise UsageError(f"{name} is {value:g}, but must be from 0 to below 1")
    if settings.optimizer not in names:
        raise UsageError(f"unknown optimizer {settings.optimizer!r}: {nearest(settings.optimizer, names)}")
    if settings.weight_decay < 0 or settings.eps <= 0:
        raise UsageError(
            f"weight_decay is {settings.weight_decay:g} and eps {settings.eps:g}, but must be 0 or more, and above 0"
        )
    if settings.clip is not None and not settings.clip > 0:
        raise UsageError(f"clip is {settings.clip:g}, but must be above 0: leave it out to clip nothing")
    if settings.check_every < 0:
        raise UsageError(f"check_every is {settings.check_every}, but must be 0 (never) or a number of steps")


def check_mesh(plan: TrainingPlan, spec: ModelSpec, ranks: int) -> None:
    """The plan can be run, and by so many ranks as were started. Errors: PlanError."""
    check_training_plan(plan, spec)
    layout, split = plan.layout, plan.setup.split
    axes = " × ".join(f"{axis} {size}" for axis, size in layout.axes.items())
    if layout.ranks != ranks:
        more = "more than there are" if layout.ranks > ranks else "and the others would do nothing"
        raise PlanError(
            f"the mesh {axes} takes {_ranks(layout.ranks)}, but {ranks} were started: "
            f"{abs(layout.ranks - ranks)} {more}. Start {layout.ranks}, or change the axes"
        )
    for axis in ("ep", "cp"):
        if getattr(split, axis) > 1:
            raise PlanError(f"axis {axis} is {getattr(split, axis)}, but it can be planned only so far: set it to 1")
    if plan.setup.zero > 1:
        raise PlanError(f"zero is {plan.setup.zero}, but only 0 and 1 can run so far: set it to 1")
    _check_tied(layout, spec)


def check_buckets(buckets: int) -> None:
    """Parts in which gradients are reduced. Errors: UsageError."""
    if buckets < 1:
        raise UsageError(f"gradients are to be reduced in {buckets} buckets, but it must be at least 1")


def _check_tied(layout: Layout, spec: ModelSpec) -> None:
    first, last = layout.stages[0], layout.stages[-1]
    if spec.tied and first.shares != last.shares:
        raise PlanError(
            f"{spec.name} ties its embedding to its LM head, and ranks of the first and the last stage hold the same "
            f"rows of it: their shares must be the same, not {list(first.shares)} and {list(last.shares)}"
        )
    if spec.tied and first.dtype != last.dtype:
        raise PlanError(
            f"{spec.name} ties its embedding to its LM head: the first and the last stage must have the same dtype, "
            f"not {first.dtype} and {last.dtype}"
        )


def _ranks(count: int) -> str:
    return f"{count} rank{'s' if count != 1 else ''}"
