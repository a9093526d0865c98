"""The predicted timeline of a plan of generation, without running it.

A plan file with a cluster is simulated on the cluster's figures, without torch and without weights; one without is of
this machine, and is simulated on what was measured here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from plait.costs.memory import need_bytes
from plait.costs.protocol import Costs
from plait.costs.serving import ServingModel
from plait.generation.memory import with_generation_memory
from plait.generation.opened import open_model
from plait.generation.planning import CostsFor, measured_costs
from plait.generation.record import model_summary
from plait.planner.serving_units import Demand, Unit, World
from plait.plans.file import PlanFile, dump_any_plan
from plait.plans.plan import Plan, check_plan
from plait.prober.host import free_memory_here
from plait.schedules.forecast import forecast_rounds
from plait.schedules.prove import prove_plan
from plait.simulator.simulate import simulate
from plait.spec.job import Job
from plait.spec.model import ModelSpec
from plait.timeline.metrics import generation_metrics
from plait.timeline.record import RoundRecipe, RunRecord, StageSummary
from plait.weights.model import model_spec

_PROMPT_TOKENS, _MAX_TOKENS = 64, 16


def forecast(
    file: PlanFile,
    prompt_tokens: int | None = None,
    max_tokens: int | None = None,
    users: int | None = None,
    costs_for: CostsFor = measured_costs,
) -> RunRecord:
    """The record of a run that was only simulated: by default of the job that the plan was made for.

    A file without a job is asked for prompts of 64 tokens and answers of 16, or of what the context holds, by as many
    users as have a slot. Of a plan with replicas the fullest is simulated; `result` says how many there are, and its
    rates and bytes are of all of them. `costs_for`: what a plan of this machine costs. Errors: PlanError, RequestError,
    WeightsError, SpecError.
    """
    plan = file.plan
    assert isinstance(plan, Plan)
    replicas = plan.layout.axes.get("dp", 1) * plan.layout.axes.get("ep", 1)
    job = _job(file, plan, replicas, prompt_tokens, max_tokens, users)
    spec, costs, note, model = _priced(file, plan, costs_for)
    prove_plan(plan)
    plan = _one_replica(plan, replicas)
    requests = -(-job.users // replicas)
    rounds = forecast_rounds(plan, [job.prompt_tokens] * requests, job.max_tokens)
    predicted = simulate(plan.layout, rounds, costs, spec)
    predicted = with_generation_memory(predicted, rounds, plan, spec, free_bytes=_free(file), cluster=file.cluster)
    metrics = generation_metrics(predicted, rounds)
    copies = job.users / requests
    figures = {key: value * (copies if key.endswith(_OF_ALL) else 1) for key, value in metrics.items()}
    peaks = _peaks(World(spec, model.cluster, job, model), plan) if model else ()
    if peaks:
        figures["peak_bytes"] = float(max(peaks))
    result = {
        "predicted": {**figures, "replicas": replicas},
        "copies": copies,
        "job": {"prompt_tokens": job.prompt_tokens, "max_tokens": job.max_tokens, "users": job.users},
        "note": note,
    }
    recipes = tuple(RoundRecipe(one.number, one.work, one.carried_in, plan.schedule, 0) for one in rounds)
    text = dump_any_plan(file.plan, file.cluster, file.job)
    return RunRecord(
        text, _stages(plan, spec, peaks), model_summary(plan.model, spec), recipes, predicted, None, result
    )


def _free(file: PlanFile) -> Mapping[str, int]:
    """What is free here, where the plan is of this machine."""
    hosts = {stage.host for stage in file.plan.layout.stages}
    return dict.fromkeys(hosts, free_memory_here()) if file.cluster is None and len(hosts) == 1 else {}


_OF_ALL = ("tokens_per_s", "comm_bytes")
"""Figures of all replicas together."""


def _job(
    file: PlanFile, plan: Plan, replicas: int, prompt_tokens: int | None, max_tokens: int | None, users: int | None
) -> Job:
    """What was asked for, else what the plan was made for, else something short; as much of it as the context holds."""
    usual = file.job or Job(_PROMPT_TOKENS, _MAX_TOKENS, plan.slots * replicas)
    if prompt_tokens is None:
        prompt_tokens = max(1, min(usual.prompt_tokens, plan.context - (max_tokens or usual.max_tokens)))
    if max_tokens is None:
        max_tokens = max(1, min(usual.max_tokens, plan.context - prompt_tokens))
    return Job(prompt_tokens, max_tokens, usual.users if users is None else users)


def _one_replica(plan: Plan, replicas: int) -> Plan:
    """The first of the replicas: a stage's ranks stand replica by replica."""
    if replicas == 1:
        return plan
    stages = []
    for stage in plan.layout.stages:
        width = len(stage.ranks) // replicas
        stages.append(replace(stage, ranks=stage.ranks[:width], devices=stage.devices[:width]))
    axes = {axis: 1 if axis in ("dp", "ep") else size for axis, size in plan.layout.axes.items()}
    return replace(plan, layout=replace(plan.layout, axes=axes, stages=tuple(stages)))


def _priced(file: PlanFile, plan: Plan, costs_for: CostsFor) -> tuple[ModelSpec, Costs, str, ServingModel | None]:
    """The model, after the plan was checked against it, what the plan costs, and how far that is calibrated.

    With the formulas where the plan has a cluster; without one it was measured here.
    """
    if file.cluster is None:
        spec = open_model(plan.model).spec
        check_plan(plan, spec)
        return spec, costs_for(plan, spec), "measured on this machine", None
    spec = model_spec(plan.model)
    check_plan(plan, spec)
    first = plan.layout.stages[0]
    model = ServingModel(spec, file.cluster, first.dtype, first.weights)
    return spec, model.costs(), model.note, model


def _peaks(world: World, plan: Plan) -> tuple[int, ...]:
    """What the fullest device of each stage needs, by the planner's own formula, so that both say the same."""
    rows = -(-plan.slots // plan.micro_batches)
    demand = Demand(rows, plan.slots, world.middle, plan.chunk, plan.context)
    tp = plan.layout.axes.get("tp", 1)
    units = [(Unit(stage.devices[:tp], stage.shares), stage.layers) for stage in plan.layout.stages]
    return tuple(max(world.need_bytes(unit, layers, demand)) for unit, layers in units)


def _stages(plan: Plan, spec: ModelSpec, peaks: Sequence[int]) -> tuple[StageSummary, ...]:
    """`peaks`: what the fullest device of each stage needs; empty where that is not told."""
    needs = need_bytes(plan.layout, spec, plan.slots, plan.context, plan.chunk)
    return tuple(
        StageSummary(
            number,
            stage.ranks,
            stage.layers,
            stage.dtype,
            stage.weights,
            needs[number].weights_bytes,
            peaks[number] if peaks else None,
        )
        for number, stage in enumerate(plan.layout.stages)
    )
