"""The predicted training step of a plan on a cluster: its round, timeline, memory and figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from plait.costs.executed_costs import ExecutedCosts
from plait.costs.states import rank_parameters
from plait.costs.training import TrainingModel
from plait.costs.training_costs import TrainingCosts
from plait.costs.work import model_flops
from plait.errors import PlanError
from plait.plans.action import Kind
from plait.plans.check_training import check_training_plan
from plait.plans.round import Round
from plait.plans.training import BUCKETS, TrainingPlan
from plait.schedules.step import executed_round, make_training_round, sequences
from plait.simulator.memory import memory_over_time, with_memory
from plait.simulator.simulate import simulate
from plait.simulator.unequal import UnequalCosts
from plait.spec.cluster import Cluster, EqualMachine, equal_machine, only_devices
from plait.spec.job import TrainingJob
from plait.spec.model import ModelSpec
from plait.spec.weakest import weakest_machine
from plait.timeline.record import StageSummary
from plait.timeline.timeline import Timeline
from plait.timeline.training_metrics import training_metrics


@dataclass(frozen=True, slots=True)
class StepForecast:
    """One step. `timeline` has each position's first rank, which stands for the others.

    `predicted` holds the design's keys: seconds of a rank, the mean over all; `comm_bytes` of all ranks. Its `step_s`
    has what the timeline lacks: `residue_s`, and what a step takes beside its actions. `free_bytes`: of each position's
    tightest device. `note` says how far the figures are calibrated.
    """

    plan: TrainingPlan
    round: Round
    timeline: Timeline
    stages: tuple[StageSummary, ...]
    predicted: Mapping[str, float]
    free_bytes: tuple[int, ...]
    note: str


def forecast_step(
    plan: TrainingPlan, spec: ModelSpec, cluster: Cluster | None, *, executed: bool = False, buckets: int = BUCKETS
) -> StepForecast:
    """Predict a step without running it. Errors: PlanError, also for a plan without machines.

    `executed`: the step as the trainer runs it, so that its timeline can be laid on a measured one: with T and N, with
    `buckets` of each stage, and with the bytes that each rank sends. Without it the step is as a search counts it: what
    T exchanges is in the reductions, and buckets are as many as the device's profile hides.
    """
    check_training_plan(plan, spec)
    machines = _priced(plan, spec, cluster, executed=executed)
    work = sequences(plan.setup.micro_batches, plan.setup.micro_batch, plan.sequence)
    if executed:
        one = executed_round(0, plan, spec, buckets)
    else:
        one = make_training_round(0, plan.layout, plan.setup, work, machines.buckets)
    timeline = simulate(plan.layout, [one], machines.costs, spec, replicas=False, slices=executed)
    curves = memory_over_time(timeline, [one], plan.layout, machines.costs)
    peaks = {rank: curve.peak_bytes for rank, curve in curves.items()}
    metrics = training_metrics(
        timeline,
        plan.layout,
        model_flops=model_flops(spec, plan.batch, plan.sequence),
        peak_flops=machines.peak_flops,
        peak_bytes=max(peaks.values()),
    )
    return StepForecast(
        plan,
        one,
        with_memory(timeline, curves, _limits(plan, machines)),
        _stages(plan, spec, peaks, 4 if plan.layout.stages[0].dtype == "float32" else 2),
        _of_one_rank(metrics, machines, plan),
        machines.free_bytes,
        machines.note,
    )


@dataclass(frozen=True, slots=True)
class _Machines:
    """What a plan costs on its machines. `free_bytes`: of each position's tightest device.

    `buckets`: parts of the last backward, each reduced while the next one runs.
    """

    costs: TrainingCosts | UnequalCosts
    peak_flops: float
    free_bytes: tuple[int, ...]
    note: str
    residue: float
    beside_s: float
    tail_s: float
    buckets: int = 1


def _priced(plan: TrainingPlan, spec: ModelSpec, cluster: Cluster | None, *, executed: bool) -> _Machines:
    if cluster is None:
        raise PlanError(
            "the plan names no machines: a plan of training needs a [cluster] table, as plait plan -o writes it"
        )
    layout, setup = plan.layout, plan.setup
    attention: Literal["fused", "unfused"] = "fused" if setup.fused_attention else "unfused"
    job = TrainingJob(plan.batch, plan.sequence, layout.stages[0].dtype, attention)
    machine = equal_machine(cluster) or _used_machine(plan, cluster)
    if machine is None:
        return _unequal(plan, UnequalCosts(plan, spec, job, cluster, executed=executed), cluster)
    if layout.ranks > machine.hosts * machine.devices_per_host:
        devices = machine.hosts * machine.devices_per_host
        raise PlanError(f"the plan has {layout.ranks} ranks, but its cluster {devices} devices")
    model = TrainingModel(spec, job, machine)
    return _Machines(
        ExecutedCosts(model, plan) if executed else model.costs(setup, layout.cut),
        model.rates.flops * layout.ranks,
        (machine.device.memory_bytes,) * len(layout.positions),
        model.note,
        _residue(model, plan),
        model.profile.step_s,
        model.tail_s(setup, layout.cut),
        # of n buckets all but the last can be hidden
        round(1 / (1 - min(model.profile.hidden_reduction, 0.9))),
    )


def _used_machine(plan: TrainingPlan, cluster: Cluster) -> EqualMachine | None:
    """The devices that the plan uses, where they are equal though others are not. Errors: PlanError: it names none."""
    names = [name for stage in plan.layout.stages for name in stage.devices]
    if set(map(len, (stage.devices for stage in plan.layout.stages))) == {0}:
        raise PlanError(
            "the plan's machines are not equal, so each stage must name its devices, as plait plan -o writes them"
        )
    machine = equal_machine(only_devices(cluster, names))
    split = plan.setup.split
    if machine is None and split.tp * split.ep * split.cp * plan.setup.virtual > 1:
        # tensor and expert groups of unequal devices go as fast as the weakest of them
        machine = weakest_machine(cluster, names)
    return machine


def _unequal(plan: TrainingPlan, costs: UnequalCosts, cluster: Cluster) -> _Machines:
    layout, models = plan.layout, costs.models
    tails = [costs.reduce_s(layout, stage, Kind.REDUCE_GRADIENTS) for stage in range(len(layout.stages))]
    free = tuple(min(cluster.device(name).memory_bytes for name in stage.devices) for stage in layout.stages)
    return _Machines(
        costs,
        sum(model.rates.flops for model in models),
        free,
        "; ".join(dict.fromkeys(model.note for model in models)),
        _residue(models[0], plan),
        max(model.profile.step_s for model in models),
        max(tails),
    )


def _residue(model: TrainingModel, plan: TrainingPlan) -> float:
    """The share of the time that perfect times for all actions leave out (`TrainingModel.estimate`)."""
    return model.profile.residue.get(plan.schedule, 0.0) if plan.setup.split.pp > 1 else 0.0


def _of_one_rank(metrics: Mapping[str, float], machines: _Machines, plan: TrainingPlan) -> dict[str, float]:
    """The step's figures as the planner tells them: seconds of a rank, the mean over all.

    The residue, and what a step takes beside its actions, are added to the step and to what a rank waits, so that
    compute, transfer and wait add up to the step.
    """
    residue_s = machines.residue * max(0.0, metrics["step_s"] - machines.tail_s)
    step_s = metrics["step_s"] + residue_s + machines.beside_s
    found = {**metrics, "step_s": step_s, "residue_s": residue_s}
    found |= {key: metrics[key] / plan.layout.ranks for key in ("compute_s", "transfer_s")}
    found["wait_s"] = step_s - found["compute_s"] - found["transfer_s"]
    found["bubble"] = 1 - found["compute_s"] / step_s
    found["mfu"] = metrics["mfu"] * metrics["step_s"] / step_s
    found["tokens_per_s"] = plan.batch * plan.sequence / step_s
    return found


def _limits(plan: TrainingPlan, machines: _Machines) -> dict[int, int]:
    """What each position's first rank has: of its tightest device."""
    layout, free = plan.layout, machines.free_bytes
    return {layout.stages[held[0]].ranks[0]: size for held, size in zip(layout.positions, free, strict=True)}


def _stages(plan: TrainingPlan, spec: ModelSpec, peaks: Mapping[int, int], item_bytes: int) -> tuple[StageSummary, ...]:
    split = plan.setup.split
    return tuple(
        StageSummary(
            index,
            stage.ranks,
            stage.layers,
            stage.dtype,
            stage.weights,
            rank_parameters(spec, (stage.layers,), split.tp, split.ep, stage.shares).total * item_bytes,
            peaks.get(stage.ranks[0]),
        )
        for index, stage in enumerate(plan.layout.stages)
    )
