"""`plait.simulate()`: the predicted timeline of a plan file, on this host's measured costs, without running it."""

from __future__ import annotations

from pathlib import Path

from plait.costs.memory import need_bytes
from plait.generation.opened import open_model
from plait.generation.planning import CostsFor, measured_costs
from plait.generation.record import model_summary
from plait.plans.file import dump_plan, load_plan
from plait.plans.plan import check_plan
from plait.schedules.forecast import forecast_rounds
from plait.schedules.prove import prove_plan
from plait.simulator.simulate import simulate
from plait.timeline.metrics import generation_metrics
from plait.timeline.record import RoundRecipe, RunRecord, StageSummary

_PROMPT_TOKENS = 64


def forecast(
    path: Path,
    prompt_tokens: int | None = None,
    max_tokens: int = 16,
    users: int | None = None,
    costs_for: CostsFor = measured_costs,
) -> RunRecord:
    """The record of a run that was only simulated, by default with prompts of 64 tokens, or of what the context holds.

    Errors: PlanError, RequestError, WeightsError.
    """
    plan = load_plan(path)
    opened = open_model(plan.model)
    check_plan(plan, opened.spec)
    prove_plan(plan)
    if prompt_tokens is None:
        prompt_tokens = max(1, min(_PROMPT_TOKENS, plan.context - max_tokens))
    rounds = forecast_rounds(plan, [prompt_tokens] * (users or plan.slots), max_tokens)
    predicted = simulate(plan.layout, rounds, costs_for(plan, opened.spec), opened.spec)
    needs = need_bytes(plan.layout, opened.spec, plan.slots, plan.context, plan.chunk)
    stages = tuple(
        StageSummary(number, stage.ranks, stage.layers, stage.dtype, stage.weights, need.weights_bytes)
        for number, (stage, need) in enumerate(zip(plan.layout.stages, needs, strict=True))
    )
    recipes = tuple(RoundRecipe(one.number, one.work, one.carried_in, plan.schedule, 0) for one in rounds)
    result = {"predicted": generation_metrics(predicted, rounds)}
    return RunRecord(dump_plan(plan), stages, model_summary(plan.model, opened.spec), recipes, predicted, None, result)
