"""What a run leaves behind: its record on disk, and the JSON of ``plait generate --json``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import platformdirs

from plait.errors import RequestError
from plait.generation.answer import Outcome
from plait.generation.opened import Opened
from plait.plans.file import dump_plan
from plait.plans.layout import Stage
from plait.plans.plan import Plan
from plait.spec.model import ModelSpec
from plait.spec.shards import make_shards
from plait.timeline.metrics import generation_metrics
from plait.timeline.record import RunRecord, StageSummary
from plait.timeline.timeline import Timeline


@contextmanager
def reserved_run(asked: Path | None) -> Iterator[Path]:
    """The directory for a run: `asked`, or a new one below the user's state directory. Made now, to be filled later.

    It goes away again where the run failed and left it empty. Errors: RequestError where it cannot be made, or
    something else is there.
    """
    place = _reserve(asked or _new_run())
    try:
        yield place
    finally:
        with suppress(OSError):  # it is not empty: the run is in it
            place.rmdir()


def _reserve(place: Path) -> Path:
    try:
        place.mkdir(parents=True, exist_ok=True)
        taken = [path.name for path in place.iterdir()]
    except OSError as error:
        raise RequestError(f"--run {place} cannot be made: {error.strerror}") from None
    if taken and "run.json" not in taken:
        raise RequestError(f"--run {place} holds something else than a run ({taken[0]}): give another directory")
    return place


def _new_run() -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    runs = Path(platformdirs.user_state_dir("plait")) / "runs"
    for number in count():
        place = runs / (stamp if number == 0 else f"{stamp}-{number}")
        try:
            place.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError:  # reserve_run says why
            return place
        return place
    raise AssertionError("unreachable")


def model_summary(name: str, spec: ModelSpec) -> dict[str, Any]:
    """What a reader of a run is told of its model."""
    return {"name": name, "family": spec.family, "layers": spec.layers, "hidden": spec.hidden, "vocab": spec.vocab}


def run_record(opened: Opened, plan: Plan, outcome: Outcome, predicted: Timeline, texts: Sequence[str]) -> RunRecord:
    """The record of a run that has ended."""
    counts = {request: len(one.tokens) for request, one in enumerate(outcome.answers)}
    stages = _stages(plan, outcome)
    measured: dict[str, float] = generation_metrics(outcome.measured, outcome.rounds, counts)
    measured["peak_bytes"] = max(one.peak_bytes for one in outcome.ranks)
    result = {
        "model": opened.name,
        "dtype": "/".join(sorted({stage.dtype for stage in plan.layout.stages})),
        "plan": _plan_json(plan, stages, opened.spec),
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
        "predicted": generation_metrics(predicted, outcome.rounds, counts),
    }
    model = model_summary(opened.name, opened.spec)
    return RunRecord(dump_plan(plan), stages, model, outcome.recipes, predicted, outcome.measured, result)


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
