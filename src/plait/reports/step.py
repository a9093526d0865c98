"""A predicted training step as a page: its figures, a line for every position, and the picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from plait.reports.choice import figure
from plait.reports.marks import UNICODE, Glyphs
from plait.reports.picture import picture, wrapped
from plait.simulator.step import StepForecast
from plait.timeline.compare import Shares, summarise
from plait.timeline.record import StageSummary
from plait.timeline.timeline import Timeline
from plait.units import format_bytes, format_seconds

_SHOWN = 16
"""Positions that get a line and a row; --json has all of them."""

_FIGURES = (
    ("step_s", "time of a step"),
    ("mfu", "MFU"),
    ("bubble", "bubble"),
    ("residue_s", "residue"),
    ("comm_bytes", "bytes sent"),
    ("peak_bytes", "peak memory"),
)


def step_json(forecast: StepForecast) -> dict[str, Any]:
    """The step under the keys that Plait uses everywhere. Seconds of a stage are of one rank, `comm_bytes` of all."""
    shares, sent = _shares(forecast.timeline), _sent(forecast)
    plan = forecast.plan
    return {
        "model": plan.model,
        "schedule": plan.schedule,
        "micro_batches": plan.micro_batches,
        "split": dict(plan.layout.axes),
        "stages": [_facts(one) for one in forecast.stages],
        "predicted": {
            **forecast.predicted,
            "stages": [
                {**_facts(one), **shares[one.stage]._asdict(), "comm_bytes": sent.get(one.stage, 0)}
                for one in forecast.stages
            ],
        },
        "measured": None,
        "note": forecast.note,
    }


def step_page(forecast: StepForecast, width: int, glyphs: Glyphs = UNICODE) -> Text:
    """The whole page in lines of at most `width` columns."""
    parts = [_head(forecast, width), _positions(forecast), picture(_first(forecast), None, width, glyphs=glyphs)]
    return Text("\n\n", no_wrap=True, overflow="ignore").join(parts)


def _head(forecast: StepForecast, width: int) -> Text:
    plan, predicted = forecast.plan, forecast.predicted
    axes = " × ".join(f"{axis} {size}" for axis, size in plan.layout.axes.items() if size > 1) or "one device"
    lines = [Text(f"{plan.model}: {axes}, {plan.schedule}, {plan.micro_batches} micro-batches", "bold")]
    lines += [Text(f"  {name:<20}{figure(key, predicted[key])}") for key, name in _FIGURES if key in predicted]
    spent = ", ".join(f"{name} {format_seconds(predicted[f'{name}_s'])}" for name in _COLUMNS[:3])
    lines.append(Text(f"  {'of a rank':<20}{spent}"))
    lines += wrapped(forecast.note.split(), " ", width)
    return Text("\n").join(lines)


def _positions(forecast: StepForecast) -> Text:
    """A line for each position: what it holds, and where the time of one of its ranks goes."""
    timeline, layout = forecast.timeline, forecast.plan.layout
    by_rank = _of_ranks(timeline)
    shown = layout.positions[:_SHOWN]
    rows: list[tuple[str, ...]] = [("position", "layers", "ranks", *_COLUMNS)]
    for position, stages in enumerate(shown):
        ranks = layout.stages[stages[0]].ranks
        shares = by_rank[ranks[0]]
        layers = ", ".join(_range(layout.stages[stage].layers) for stage in stages)
        peak = forecast.stages[stages[0]].peak_bytes
        seconds = (format_seconds(each) for each in (shares.compute_s, shares.transfer_s, shares.wait_s))
        used = "-" if peak is None else f"{format_bytes(peak)} of {format_bytes(forecast.free_bytes[position])}"
        rows.append((str(position), layers, _ranks(ranks), *seconds, f"{shares.bubble * 100:.1f} %", used))
    wide = [max(len(row[column]) for row in rows) for column in range(3)]
    texts = ["  ".join(f"{cell:<{size}}" for cell, size in zip(row[:3], wide, strict=True)) for row in rows]
    figures = ["".join(f"{cell:>10}" for cell in row[3:7]) + f"  {row[7]}" for row in rows]
    lines = [Text(text + cells) for text, cells in zip(texts, figures, strict=True)]
    lines[0].stylize("dim")
    rest = len(layout.positions) - _SHOWN
    if rest > 0:
        lines.append(Text(f"and {rest} positions more (--json has all of them)", "dim"))
    return Text("\n").join(lines)


_COLUMNS = ("compute", "transfer", "wait", "bubble", "peak")


def _first(forecast: StepForecast) -> Timeline:
    """The timeline of the positions that get a row."""
    layout = forecast.plan.layout
    shown = {rank for stages in layout.positions[:_SHOWN] for rank in layout.stages[stages[0]].ranks}
    timeline = forecast.timeline
    return Timeline(timeline.source, tuple(span for span in timeline.spans if span.rank in shown), timeline.hosts)


def _range(layers: tuple[int, int]) -> str:
    return f"{layers[0]}" if layers[1] - layers[0] == 1 else f"{layers[0]} to {layers[1] - 1}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"{ranks[0]}" if len(ranks) == 1 else f"{ranks[0]} to {ranks[-1]}"


def _facts(one: StageSummary) -> dict[str, Any]:
    return {**one._asdict(), "ranks": list(one.ranks), "layers": list(one.layers)}


def _shares(timeline: Timeline) -> Mapping[int, Shares]:
    return {one.stage: one.shares for one in summarise(timeline).stages}


def _sent(forecast: StepForecast) -> Mapping[int, int]:
    """What the ranks of each stage send: messages, reductions, and exchanges inside their actions."""
    sent: Counter[int] = Counter()
    for span in forecast.timeline.spans:  # of one rank, which stands for all of its stage
        sent[span.action.stage] += span.payload_bytes * len(forecast.plan.layout.stages[span.action.stage].ranks)
    return sent


def _of_ranks(timeline: Timeline) -> Mapping[int, Shares]:
    """Shares of each rank, all its stages together, of the whole step."""
    of_rank = tuple(span._replace(action=span.action._replace(stage=span.rank)) for span in timeline.spans)
    return _shares(Timeline(timeline.source, of_rank))
