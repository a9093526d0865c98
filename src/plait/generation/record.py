"""What a run leaves behind: its record on disk, and the JSON of ``plait generate --json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plait.generation.answer import Outcome
from plait.generation.opened import Opened
from plait.planner.local_words import Beaten
from plait.plans.file import dump_plan
from plait.plans.layout import Stage
from plait.plans.plan import Plan
from plait.spec.model import ModelSpec
from plait.spec.shards import make_shards
from plait.timeline.metrics import PHASES, generation_metrics
from plait.timeline.record import RunRecord, StageSummary
from plait.timeline.timeline import Timeline

OTHERS = "others"
"""Of a run's result: the ways that lost against its plan, where that was chosen on this machine."""


def model_summary(name: str, spec: ModelSpec) -> dict[str, Any]:
    """What a reader of a run is told of its model."""
    return {"name": name, "family": spec.family, "layers": spec.layers, "hidden": spec.hidden, "vocab": spec.vocab}


def run_record(
    opened: Opened,
    plan: Plan,
    outcome: Outcome,
    predicted: Timeline,
    texts: Sequence[str],
    others: Sequence[Beaten] = (),
) -> RunRecord:
    """The record of a run that has ended. `others`: ways that lost against the plan, where it was chosen here."""
    counts = {request: len(one.tokens) for request, one in enumerate(outcome.answers)}
    stages = _stages(plan, outcome)
    measured = _figures(outcome.measured, outcome, counts)
    measured["peak_bytes"] = max(one.peak_bytes for one in outcome.ranks)
    result = {
        "model": opened.name,
        "dtype": "/".join(sorted({stage.dtype for stage in plan.layout.stages})),
        "plan": _plan_json(plan, stages, opened.spec),
        OTHERS: [{"name": one.name, "predicted": dict(one.predicted), "loses": one.loses} for one in others],
        "requests": [
            {
                "prompt_tokens": one.prompt_tokens,
                "tokens": one.tokens,
                "text": text,
                "finish_reason": one.finish_reason,
            }
            for one, text in zip(outcome.answers, texts, strict=True)
        ],
        "measured": measured,
        "predicted": _figures(predicted, outcome, counts),
    }
    model = model_summary(opened.name, opened.spec)
    return RunRecord(dump_plan(plan), stages, model, outcome.recipes, predicted, outcome.measured, result)


def _figures(timeline: Timeline, outcome: Outcome, counts: Mapping[int, int]) -> dict[str, float | None]:
    """Every key that generation has; None for what needs a token, where no request kept one."""
    metrics = generation_metrics(timeline, outcome.rounds, counts)
    return {**metrics, **{key: metrics.get(key) for key in PHASES}}


def _plan_json(plan: Plan, stages: Sequence[StageSummary], spec: ModelSpec) -> dict[str, Any]:
    return {
        "stages": [
            {
                "stage": one.stage,
                "ranks": list(one.ranks),
                "layers": list(one.layers),
                "dtype": one.dtype,
                "threads": plan.layout.stages[one.stage].threads,
                "weight_bytes": one.weight_bytes,
                "peak_bytes": one.peak_bytes,
                **_deal(plan, plan.layout.stages[one.stage], spec),
            }
            for one in stages
        ],
        "tp": plan.layout.tp,
        "sequence": plan.layout.sequence,
        "schedule": plan.schedule,
        "micro_batches": plan.micro_batches,
        "chunk": plan.chunk,
        "context": plan.context,
        "reason": plan.reason,
    }


def _deal(plan: Plan, stage: Stage, spec: ModelSpec) -> dict[str, list[int]]:
    """How a tensor group shares a layer: the proportions asked for, and the query heads that each rank has."""
    tp = plan.layout.tp
    if tp == 1:
        return {}
    shards = make_shards(spec, tp, stage.shares, stage.weights)
    return {"shares": list(stage.shares or (1,) * tp), "heads": [shard.heads.size for shard in shards]}


def _stages(plan: Plan, outcome: Outcome) -> tuple[StageSummary, ...]:
    return tuple(
        StageSummary(
            number,
            stage.ranks,
            stage.layers,
            stage.dtype,
            stage.weights,
            sum(outcome.weight_bytes[rank] for rank in stage.ranks),
            max(outcome.ranks[rank].peak_bytes for rank in stage.ranks),
        )
        for number, stage in enumerate(plan.layout.stages)
    )
