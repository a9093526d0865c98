"""`plait.plan()`: from a model, a cluster and a job to the best way to split, and why the others lose."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

from plait.errors import PlanError, SpecError, nearest
from plait.planner.result import Candidate, Choice, Objective
from plait.planner.serving import plan_serving
from plait.planner.serving_search import ServingLimits
from plait.planner.space import TrainingLimits
from plait.planner.training import plan_training
from plait.plans.layout import Stage
from plait.schedules.generation import require_schedule
from plait.spec.cluster import Cluster
from plait.spec.job import Job, TrainingJob
from plait.spec.model import ModelSpec
from plait.spec.presets import cluster_preset, model_preset

OBJECTIVES: tuple[Objective, ...] = get_args(Objective)


def plan(
    model: ModelSpec | str,
    cluster: Cluster | str,
    job: Job | TrainingJob,
    objective: Objective | None = None,
    *,
    top: int = 10,
    dtype: str | None = None,
    weights: str | None = None,
    limits: Limits | None = None,
) -> Choice:
    """The best plan of `model` on `cluster` for `job`, the others ranked, and what cannot be.

    `model` and `cluster` may be names of presets. `objective` None: `latency`, and `step` for training. `dtype` None:
    bfloat16 where every device has 16-bit figures, else float32; of a training job its own. `weights`: the format that
    weights are stored in, for generation. Errors: SpecError, PlanError, and CapacityError where nothing fits, with the
    shortfall.
    """
    spec = model_preset(model) if isinstance(model, str) else model
    machines = cluster_preset(cluster) if isinstance(cluster, str) else cluster
    wanted = objective or usual_objective(job)
    _require_objective(wanted, job)
    held = limits or Limits()
    if isinstance(job, TrainingJob):
        if weights is not None:
            raise PlanError(f"weights {weights!r} were asked for, but training stores weights in {job.dtype}")
        choice = plan_training(spec, machines, job, "step", top=top, limits=held.training())
    else:
        used = dtype or usual_dtype(machines)
        choice = plan_serving(spec, machines, job, wanted, top=top, dtype=used, weights=weights, limits=held.serving())
    return _on_devices(choice, machines)


@dataclass(frozen=True, slots=True)
class Limits:
    """What the search is held to; None: anything that can be. `virtual`, `micro_batch` are of training alone."""

    dp: int | None = None
    pp: int | None = None
    tp: int | None = None
    ep: int | None = None
    virtual: int | None = None
    micro_batch: int | None = None
    schedule: str | None = None

    def __post_init__(self) -> None:
        for name in ("dp", "pp", "tp", "ep", "virtual", "micro_batch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise PlanError(f"--{name.replace('_', '-')} is {value}, but must be at least 1")

    def serving(self) -> ServingLimits:
        """As the search for generation takes them. Errors: PlanError, also for what is of training alone."""
        for name in ("virtual", "micro_batch"):
            if getattr(self, name) is not None:
                raise PlanError(f"--{name.replace('_', '-')} is of training: --task train")
        if self.ep not in (None, 1):
            raise PlanError(f"--ep {self.ep} was asked for, but generation does not split experts yet: --ep 1")
        if self.schedule is not None:
            require_schedule(self.schedule)
        return ServingLimits(dp=self.dp, pp=self.pp, tp=self.tp, schedule=self.schedule)

    def training(self) -> TrainingLimits:
        """As the search for training takes them. Errors: PlanError, for a schedule that is not there."""
        limits = TrainingLimits(
            dp=self.dp, pp=self.pp, tp=self.tp, ep=self.ep, virtual=self.virtual, micro_batch=self.micro_batch
        )
        return limits if self.schedule is None else replace(limits, schedules=(self.schedule,))


def usual_objective(job: Job | TrainingJob) -> Objective:
    """What is asked for where nobody says: a step's time; the time of a token for just the users that there are.

    `throughput` has to be asked for: its plans may need more users than the job has (decision 0013).
    """
    return "step" if isinstance(job, TrainingJob) else "latency"


def usual_dtype(cluster: Cluster) -> str:
    """bfloat16 where every device has figures for 16 bits, else float32."""
    sixteen = all({"bfloat16", "float16"} & set(device.flops) for device in cluster.devices)
    return "bfloat16" if sixteen else "float32"


def _require_objective(objective: str, job: Job | TrainingJob) -> None:
    if objective not in OBJECTIVES:
        raise SpecError(f"unknown objective {objective!r}: {nearest(objective, OBJECTIVES)}")
    if (objective == "step") != isinstance(job, TrainingJob):
        fitting = "step" if isinstance(job, TrainingJob) else "latency, throughput or ttft"
        task = "train" if isinstance(job, TrainingJob) else "generate"
        raise SpecError(f"objective {objective!r} does not go with --task {task}: --objective {fitting} does")


def _on_devices(choice: Choice, cluster: Cluster) -> Choice:
    """Every plan's stages say on what sort of device and on which host they are."""
    chosen = _candidate(choice.chosen, cluster)
    others = (chosen if one is choice.chosen else _candidate(one, cluster) for one in choice.candidates)
    return replace(choice, chosen=chosen, candidates=tuple(others))


def _candidate(candidate: Candidate, cluster: Cluster) -> Candidate:
    plan = candidate.plan
    stages = tuple(_stage(stage, cluster) for stage in plan.layout.stages)
    layout = replace(plan.layout, stages=stages)
    return replace(candidate, plan=replace(plan, layout=layout))


def _stage(stage: Stage, cluster: Cluster) -> Stage:
    if not stage.devices:
        return stage
    device = cluster.device(stage.devices[0])
    return replace(stage, device=device.kind, host=device.host)
