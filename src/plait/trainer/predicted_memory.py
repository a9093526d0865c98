"""The predicted memory of a training step, against what each rank has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from plait.planner.capacity import PROCESS_BYTES
from plait.plans.layout import Layout
from plait.plans.training import TrainingPlan
from plait.prober.host import free_memory_here
from plait.schedules.step import executed_round
from plait.simulator.memory import MemoryCurve, memory_over_time, with_memory
from plait.spec.cluster import Cluster
from plait.spec.model import ModelSpec
from plait.timeline.memory import left_by_others
from plait.trainer.settings import Settings
from plait.trainer.train_figures import Prediction
from plait.trainer.train_memory import plan_memory


def with_step_memory(
    prediction: Prediction,
    plan: TrainingPlan,
    spec: ModelSpec,
    settings: Settings,
    buckets: int,
    cluster: Cluster | None,
) -> Prediction:
    """The prediction, its timeline with the memory of every rank, if it has one.

    What a rank has is its device's memory in the plan's `cluster`; without one, what of this host's free memory the
    other ranks and the processes leave.
    """
    timeline = prediction.timeline
    if timeline is None:
        return prediction
    memory = plan_memory(plan, spec, settings)
    curves = memory_over_time(timeline, [executed_round(0, plan, spec, buckets)], plan.layout, memory)
    limits = _of_this_host(curves) if cluster is None else _of_devices(plan.layout, cluster)
    return replace(prediction, timeline=with_memory(timeline, curves, limits))


def _of_this_host(curves: Mapping[int, MemoryCurve]) -> dict[int, int]:
    grown = {rank: curve.peak_bytes + PROCESS_BYTES for rank, curve in curves.items()}
    left = left_by_others(grown, {}, {"": free_memory_here()})
    return {rank: max(0, size - PROCESS_BYTES) for rank, size in left.items()}


def _of_devices(layout: Layout, cluster: Cluster) -> dict[int, int]:
    """Where stages name no devices, all of the cluster are equal."""
    least = min(device.memory_bytes for device in cluster.devices)
    limits = dict.fromkeys(range(layout.ranks), least)
    for stage in layout.stages:
        named = zip(stage.ranks, stage.devices, strict=False)
        limits |= {rank: cluster.device(name).memory_bytes for rank, name in named}
    return limits
