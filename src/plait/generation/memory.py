"""The predicted memory of a run of generation, against what each rank has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plait.planner.capacity import PROCESS_BYTES
from plait.plans.layout import Layout
from plait.plans.plan import Plan
from plait.plans.round import Round
from plait.simulator.generation_memory import generation_memory
from plait.simulator.memory import MemoryCurve, with_memory
from plait.spec.cluster import Cluster
from plait.spec.model import ModelSpec
from plait.timeline.memory import left_by_others
from plait.timeline.timeline import Timeline


def with_generation_memory(
    predicted: Timeline,
    rounds: Sequence[Round],
    plan: Plan,
    spec: ModelSpec,
    *,
    free_bytes: Mapping[str, int] | None = None,
    cluster: Cluster | None = None,
) -> Timeline:
    """The predicted timeline with the memory of its ranks.

    What a rank has is its device's memory in the plan's `cluster`; without one, what of the hosts' `free_bytes` the
    other ranks there and the processes leave, as the check of capacity counts it (`planner.capacity`).
    """
    curves = generation_memory(predicted, rounds, plan.layout, spec, plan.slots, plan.context)
    if cluster is not None:
        limits = _of_devices(plan.layout, cluster)
    else:
        limits = _of_hosts(curves, predicted.hosts, free_bytes or {})
    return with_memory(predicted, curves, limits)


def _of_devices(layout: Layout, cluster: Cluster) -> dict[int, int]:
    return {
        rank: cluster.device(name).memory_bytes
        for stage in layout.stages
        for rank, name in zip(stage.ranks, stage.devices, strict=False)
    }


def _of_hosts(
    curves: Mapping[int, MemoryCurve], hosts: Mapping[int, str], free_bytes: Mapping[str, int]
) -> dict[int, int]:
    grown = {rank: curve.peak_bytes + PROCESS_BYTES for rank, curve in curves.items()}
    left = left_by_others(grown, hosts, free_bytes)
    return {rank: max(0, size - PROCESS_BYTES) for rank, size in left.items()}
