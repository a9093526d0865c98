"""The predicted training step of a plan on a cluster: its round, timeline, memory and figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from plait.costs.states import rank_parameters
from plait.costs.training import TrainingModel
from plait.costs.work import model_flops
from plait.errors import PlanError
from plait.plans.check_training import check_training_plan
from plait.plans.round import Round
from plait.plans.training import TrainingPlan
from plait.schedules.step import make_training_round, sequences
from plait.simulator.memory import memory_over_time
from plait.simulator.simulate import simulate
from plait.spec.cluster import Cluster, equal_machine
from plait.spec.job import TrainingJob
from plait.spec.model import ModelSpec
from plait.timeline.record import StageSummary
from plait.timeline.timeline import Timeline
from plait.timeline.training_metrics import training_metrics


@dataclass(frozen=True, slots=True)
class StepForecast:
    """One step. `timeline` has each position's first rank, which stands for the others.

    `predicted` holds the design's keys: its `step_s` has what the timeline lacks, `residue_s` and what a step takes
    beside its actions. `free_bytes`: of one device. `note` says how far the figures are calibrated.
    """

    plan: TrainingPlan
    round: Round
    timeline: Timeline
    stages: tuple[StageSummary, ...]
    predicted: Mapping[str, float]
    free_bytes: int
    note: str


def forecast_step(plan: TrainingPlan, spec: ModelSpec, cluster: Cluster | None) -> StepForecast:
    """Predict a step without running it. Errors: PlanError, also for a plan without machines, or with unequal ones."""
    check_training_plan(plan, spec)
    model = _model(plan, spec, cluster)
    setup, cut = plan.setup, plan.layout.cut
    costs = model.costs(setup, cut)
    work = sequences(setup.micro_batches, setup.micro_batch, plan.sequence)
    one = make_training_round(0, plan.layout, setup, work)
    timeline = simulate(plan.layout, [one], costs, spec, replicas=False)
    curves = memory_over_time(timeline, [one], plan.layout, costs)
    peaks = {rank: curve.peak_bytes for rank, curve in curves.items()}
    device = model.machine.device
    metrics = training_metrics(
        timeline,
        plan.layout,
        model_flops=model_flops(spec, plan.batch, plan.sequence),
        peak_flops=model.rates.flops * plan.layout.ranks,
        peak_bytes=max(peaks.values()),
    )
    return StepForecast(
        plan,
        one,
        timeline,
        _stages(plan, spec, peaks, model.item_bytes),
        _with_residue(metrics, model, plan),
        device.memory_bytes,
        model.note,
    )


def _model(plan: TrainingPlan, spec: ModelSpec, cluster: Cluster | None) -> TrainingModel:
    if cluster is None:
        raise PlanError(
            "the plan names no machines: a plan of training needs a [cluster] table, as plait plan -o writes it"
        )
    machine = equal_machine(cluster)
    if machine is None:
        raise PlanError(
            "the plan's machines are not equal, and a training step can be simulated on equal ones only yet"
        )
    devices = machine.hosts * machine.devices_per_host
    if plan.layout.ranks > devices:
        raise PlanError(f"the plan has {plan.layout.ranks} ranks, but its cluster {devices} devices")
    attention = "fused" if plan.setup.fused_attention else "unfused"
    job = TrainingJob(plan.batch, plan.sequence, plan.layout.stages[0].dtype, attention)  # type: ignore[arg-type]
    return TrainingModel(spec, job, machine)


def _with_residue(metrics: Mapping[str, float], model: TrainingModel, plan: TrainingPlan) -> dict[str, float]:
    """The step's seconds with what perfect times for all actions leave out, as `TrainingModel.estimate` counts it."""
    setup = plan.setup
    running_s = metrics["step_s"] - model.tail_s(setup, plan.layout.cut)
    share = model.profile.residue.get(setup.schedule, 0.0) if setup.split.pp > 1 else 0.0
    residue_s = share * max(0.0, running_s)
    step_s = metrics["step_s"] + residue_s + model.profile.step_s
    found = {**metrics, "step_s": step_s, "residue_s": residue_s}
    if "mfu" in metrics:
        found["mfu"] = metrics["mfu"] * metrics["step_s"] / step_s
    return found


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
