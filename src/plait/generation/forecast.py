"""The predicted timeline of a plan of generation, without running it.

A plan file with a cluster is simulated on the cluster's figures, without torch and without weights; one without is of
this machine, and is simulated on what was measured here.
"""

from __future__ import annotations

from dataclasses import replace

from plait.costs.memory import need_bytes
from plait.costs.protocol import Costs
from plait.costs.serving import ServingModel
from plait.generation.opened import open_model
from plait.generation.planning import CostsFor, measured_costs
from plait.generation.record import model_summary
from plait.plans.file import PlanFile, dump_any_plan
from plait.plans.plan import Plan, check_plan
from plait.schedules.forecast import forecast_rounds
from plait.schedules.prove import prove_plan
from plait.simulator.simulate import simulate
from plait.spec.cluster import Cluster
from plait.spec.model import ModelSpec
from plait.timeline.metrics import generation_metrics
from plait.timeline.record import RoundRecipe, RunRecord, StageSummary
from plait.weights.model import model_spec

_PROMPT_TOKENS = 64


def forecast(
    file: PlanFile,
    prompt_tokens: int | None = None,
    max_tokens: int = 16,
    users: int | None = None,
    costs_for: CostsFor = measured_costs,
) -> RunRecord:
    """The record of a run that was only simulated, by default with prompts of 64 tokens, or of what the context holds.

    Of a plan with replicas one is simulated, with its share of the `users`; `result` says how many there are, and its
    rates are of one. `costs_for`: what a plan of this machine costs. Errors: PlanError, RequestError, WeightsError,
    SpecError.
    """
    plan = file.plan
    assert isinstance(plan, Plan)
    spec, costs, note = _priced(plan, file.cluster, costs_for)
    prove_plan(plan)
    replicas = plan.layout.axes.get("dp", 1) * plan.layout.axes.get("ep", 1)
    plan = _one_replica(plan, replicas)
    if prompt_tokens is None:
        prompt_tokens = max(1, min(_PROMPT_TOKENS, plan.context - max_tokens))
    requests = plan.slots if users is None else -(-users // replicas)
    rounds = forecast_rounds(plan, [prompt_tokens] * requests, max_tokens)
    predicted = simulate(plan.layout, rounds, costs, spec)
    needs = need_bytes(plan.layout, spec, plan.slots, plan.context, plan.chunk)
    stages = tuple(
        StageSummary(
            number,
            stage.ranks,
            stage.layers,
            stage.dtype,
            stage.weights,
            need.weights_bytes,
            None if file.cluster is None else need.total_bytes,
        )
        for number, (stage, need) in enumerate(zip(plan.layout.stages, needs, strict=True))
    )
    recipes = tuple(RoundRecipe(one.number, one.work, one.carried_in, plan.schedule, 0) for one in rounds)
    result = {"predicted": {**generation_metrics(predicted, rounds), "replicas": replicas}, "note": note}
    text = dump_any_plan(file.plan, file.cluster)
    return RunRecord(text, stages, model_summary(plan.model, spec), recipes, predicted, None, result)


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


def _priced(plan: Plan, cluster: Cluster | None, costs_for: CostsFor) -> tuple[ModelSpec, Costs, str]:
    """The model, after the plan was checked against it, what the plan costs, and how far that is calibrated."""
    if cluster is None:
        spec = open_model(plan.model).spec
        check_plan(plan, spec)
        return spec, costs_for(plan, spec), "measured on this machine"
    spec = model_spec(plan.model)
    check_plan(plan, spec)
    first = plan.layout.stages[0]
    model = ServingModel(spec, cluster, first.dtype, first.weights)
    return spec, model.costs(), model.note
