"""What a training run leaves behind: a record that `plait report` reads, and its steps as lines of JSON beside it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from plait.plans.file import dump_any_plan
from plait.ranks.emulated_hosts import on_emulated_hosts
from plait.timeline.memory import joined, shifted
from plait.timeline.record import RunRecord, StageSummary
from plait.timeline.span import Part, Span
from plait.timeline.timeline import MemoryTrack, Timeline

if TYPE_CHECKING:
    from plait.trainer.train import Following

STEPS_FILE = "steps.jsonl"


def save_run(following: Following, place: Path) -> RunRecord:
    """Write the record of a run that has ended, and every step's line in `steps.jsonl`."""
    record = run_record(following)
    record.save(place)
    lines = (json.dumps(line.json(following.prediction)) for line in following.lines)
    (place / STEPS_FILE).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return record


def run_record(following: Following) -> RunRecord:
    """The plan, the timelines of the steps that were kept, one after the other, and what was predicted for them."""
    prepared, prediction = following.prepared, following.prediction
    spec, kept = prepared.beginning.spec, following.steps.timelines
    model = {
        "name": prepared.beginning.name,
        "family": spec.family,
        "layers": spec.layers,
        "hidden": spec.hidden,
        "vocab": spec.vocab,
    }
    result = {
        "task": "train",
        "steps": [line.json(prediction) for line in following.lines],
        "kept_steps": sorted(kept),
        "note": prediction.note,
    }
    record = RunRecord(
        dump_any_plan(prepared.planned, prepared.cluster),
        tuple(_stages(following)),
        model,
        (),
        None if prediction.timeline is None else _repeated(prediction.timeline, sorted(kept)),
        _joined(kept),
        result,
    )
    return record if following.emulation is None else on_emulated_hosts(record, following.emulation)


def _stages(following: Following) -> Iterable[StageSummary]:
    layout = following.layout
    for number, stage in enumerate(layout.stages):
        held = sum(1 for other in layout.stages if other.ranks == stage.ranks)
        # a rank tells of all its stages together
        size = sum(following.ready[rank].weight_bytes for rank in stage.ranks) if held == 1 else None
        peak = max(following.finished[rank].peak_bytes for rank in stage.ranks)
        yield StageSummary(number, stage.ranks, stage.layers, stage.dtype, stage.weights, size, peak)


def _joined(timelines: Mapping[int, Timeline]) -> Timeline | None:
    """Steps one after the other, also where others lay between them."""
    if not timelines:
        return None
    return _in_a_row([timelines[step] for step in sorted(timelines)])


def _repeated(timeline: Timeline, steps: Sequence[int]) -> Timeline | None:
    """The same prediction for every step."""
    if not steps:
        return None
    return _in_a_row([replace(timeline, spans=tuple(_as_step(timeline.spans, step))) for step in steps])


def _as_step(spans: Iterable[Span], step: int) -> Iterable[Span]:
    return (span._replace(action=span.action._replace(round=step)) for span in spans)


def _in_a_row(timelines: Sequence[Timeline]) -> Timeline:
    """Spans and memory of each behind those of the one before."""
    spans: list[Span] = []
    tracks: dict[int, list[MemoryTrack]] = {}
    end_s = 0.0
    for one in timelines:
        by_s = end_s - one.start_s
        spans += [_later(span, by_s) for span in one.spans]
        for rank, track in one.memory.items():
            tracks.setdefault(rank, []).append(shifted(track, by_s))
        end_s += one.makespan_s
    memory = {rank: joined(of_rank) for rank, of_rank in tracks.items()}
    return replace(timelines[0], spans=tuple(spans), memory=memory)


def _later(span: Span, by_s: float) -> Span:
    parts = tuple(Part(what, start_s + by_s, end_s + by_s) for what, start_s, end_s in span.parts)
    return span._replace(start_s=span.start_s + by_s, end_s=span.end_s + by_s, parts=parts)
