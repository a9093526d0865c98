"""Does the plan fit in memory? If not: need, free and shortfall, and what would fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from plait.costs.memory import FORMAT_BYTES, need_bytes
from plait.costs.work import cache_values
from plait.errors import CapacityError
from plait.plans.layout import Stage
from plait.plans.plan import GRID, Plan
from plait.plans.rules import DTYPE_BYTES
from plait.spec.model import ModelSpec
from plait.spec.shards import Shard, make_shards, shard_tensors
from plait.units import format_bytes

PROCESS_BYTES = 350 * 2**20
"""What a rank's process takes before it holds any weights: Python and torch, measured on Linux."""


def need_by_host(plan: Plan, spec: ModelSpec) -> dict[str, int]:
    """Bytes that the plan's ranks take on each host: weights, KV cache, workspace and the processes themselves.

    Of a tensor group each rank takes its own shard; the workspace is that of the largest, for all of them.
    """
    needs = need_bytes(plan.layout, spec, plan.slots, plan.context, plan.chunk)
    hosts: dict[str, int] = {}
    for stage, need in zip(plan.layout.stages, needs, strict=True):
        groups = len(stage.ranks) // plan.layout.tp
        held = need.weights_bytes + need.kv_bytes
        if plan.layout.tp > 1:
            held = sum(_held_bytes(plan, spec, stage, shard) for shard in _shards(plan, spec, stage))
        beside = (need.workspace_bytes + PROCESS_BYTES) * plan.layout.tp
        hosts[stage.host] = hosts.get(stage.host, 0) + groups * (held + beside)
    return hosts


def _shards(plan: Plan, spec: ModelSpec, stage: Stage) -> Sequence[Shard]:
    return make_shards(spec, plan.layout.tp, stage.shares, stage.weights)


def _held_bytes(plan: Plan, spec: ModelSpec, stage: Stage, shard: Shard) -> int:
    """Weights and KV cache of one rank of a tensor group."""
    parameters = sum(prod(piece.shape) for piece in shard_tensors(spec, *stage.layers, shard).values())
    position = cache_values(spec, shard.kv_heads.size) * DTYPE_BYTES[stage.dtype]
    cached = stage.layer_count * plan.slots * plan.context * position
    return round(parameters * FORMAT_BYTES[stage.weights]) + cached


def require_memory(plan: Plan, spec: ModelSpec, free_bytes: Mapping[str, int]) -> None:
    """Every host named in `free_bytes` can hold its part. Errors: CapacityError."""
    for host, need in need_by_host(plan, spec).items():
        free = free_bytes.get(host)
        if free is not None and need > free:
            raise CapacityError(
                f"{spec.name} does not fit on {host}: it needs {format_bytes(need)}, {format_bytes(free)} are free, "
                f"{format_bytes(need - free)} are missing; {_what_fits(plan, spec, free_bytes)}"
            )


def _fits(plan: Plan, spec: ModelSpec, free_bytes: Mapping[str, int]) -> bool:
    return all(need <= free_bytes.get(host, need) for host, need in need_by_host(plan, spec).items())


def _what_fits(plan: Plan, spec: ModelSpec, free_bytes: Mapping[str, int]) -> str:
    context = _largest_context(plan, spec, free_bytes)
    if context:
        return f"a context of {context} would fit (--context {context})"
    stages = tuple(replace(stage, dtype="bfloat16", weights="bfloat16") for stage in plan.layout.stages)
    smaller = replace(plan, layout=replace(plan.layout, stages=stages))
    context = _largest_context(smaller, spec, free_bytes)
    if context and smaller != plan:
        return f"in bfloat16 a context of {context} would fit (--dtype bfloat16 --context {context})"
    return "no context and no weight format that Plait has would fit: use a smaller model or more machines"


def _largest_context(plan: Plan, spec: ModelSpec, free_bytes: Mapping[str, int]) -> int:
    """The largest context on the grid, up to the plan's, with which the plan fits; 0 where none does."""
    low, high = 0, plan.context // GRID
    while low < high:
        middle = (low + high + 1) // 2
        if _fits(replace(plan, context=middle * GRID), spec, free_bytes):
            low = middle
        else:
            high = middle - 1
    return low * GRID
