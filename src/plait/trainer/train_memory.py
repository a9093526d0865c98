"""Is there memory for a training run? Looked at before a rank is started."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from plait.costs.plan_memory import PlanMemory
from plait.costs.states import recipe_for
from plait.errors import CapacityError
from plait.plans.training import TrainingPlan
from plait.prober.host import free_memory_here
from plait.spec.model import ModelSpec
from plait.spec.shards import make_shards, shard_tensors
from plait.trainer.settings import Settings
from plait.units import format_bytes


def require_memory(plan: TrainingPlan, spec: ModelSpec, settings: Settings, ranks: Iterable[int]) -> None:
    """This host holds weights, gradients and optimizer states of `ranks`; activations come on top of that.

    Errors: CapacityError, with need, free and shortfall.
    """
    need = sum(states_bytes(plan, spec, settings, rank) for rank in ranks)
    free = free_memory_here()
    if need > free:
        split = plan.setup.split
        shard = " or --zero 1" if split.dp > 1 and not plan.setup.zero and settings.optimizer == "adamw" else ""
        raise CapacityError(
            f"weights, gradients and optimizer states of {spec.name} take {format_bytes(need)} on this host, and "
            f"{format_bytes(free)} are free: {format_bytes(need - free)} too little; take a smaller model, fewer "
            f"replicas{shard}, or more hosts (torchrun)"
        )


def plan_memory(plan: TrainingPlan, spec: ModelSpec, settings: Settings) -> PlanMemory:
    """What lies on the plan's ranks over a step, with what their optimizer holds."""
    alone = {
        number: max(stage_states_bytes(plan, spec, settings, number, rank) for rank in stage.ranks[: plan.layout.tp])
        for number, stage in enumerate(plan.layout.stages)
    }
    return PlanMemory(spec, plan, alone, dropout=settings.dropout > 0)


def states_bytes(plan: TrainingPlan, spec: ModelSpec, settings: Settings, rank: int) -> int:
    """Bytes of one rank's weights, gradients and optimizer states, for all of its stages."""
    held = [number for number, stage in enumerate(plan.layout.stages) if rank in stage.ranks]
    return sum(stage_states_bytes(plan, spec, settings, number, rank) for number in held)


def stage_states_bytes(plan: TrainingPlan, spec: ModelSpec, settings: Settings, number: int, rank: int) -> int:
    """Those of one of its stages."""
    layout, setup, stage = plan.layout, plan.setup, plan.layout.stages[number]
    shard = make_shards(spec, layout.tp, stage.shares)[layout.tensor_group(number, rank).index(rank)]
    items = sum(prod(piece.shape) for piece in shard_tensors(spec, *stage.layers, shard).values())
    recipe = recipe_for(stage.dtype)
    states = recipe.optimizer_bytes - (8 if settings.optimizer == "sgd" else 0)  # of it two moments of Adam
    return round(items * (recipe.weight_bytes + recipe.gradient_bytes + states / (setup.split.dp if setup.zero else 1)))
