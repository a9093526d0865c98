"""Many stages as one line each: where a block of lines for every stage would fill pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from plait.units import format_bytes, format_seconds

MOST_STAGES = 8
"""So many stages get a block of lines each."""

_SHOWN = 32

_HEAD = ("stage", "layers", "ranks", "", "compute", "transfer", "wait", "bubble", "sent")


def compact_table(figures: Mapping[str, Any]) -> Text:
    """A line for each stage and timeline; `figures` are those of `report_json`."""
    sources = [source for source in ("predicted", "measured") if figures[source] is not None]
    numbers = sorted({stage["stage"] for source in sources for stage in figures[source]["stages"]})
    rows: list[tuple[str, ...]] = [_HEAD]
    for number in numbers[:_SHOWN]:
        for source in sources:
            found = [one for one in figures[source]["stages"] if one["stage"] == number]
            rows += [_row(one, source if len(sources) > 1 else "", named=source == sources[0]) for one in found]
    left = [max(len(row[column]) for row in rows) for column in range(4)]
    right = [max(len(row[column]) for row in rows) for column in range(4, len(_HEAD))]
    lines = []
    for row in rows:
        cells = [f"{cell:<{wide}}" for cell, wide in zip(row[:4], left, strict=True) if wide]
        cells += [f"{cell:>{wide}}" for cell, wide in zip(row[4:], right, strict=True)]
        lines.append(Text(" ".join(cells).rstrip()))
    lines[0].stylize("dim")
    if len(numbers) > _SHOWN:
        lines.append(Text(f"and {len(numbers) - _SHOWN} stages more (--json has all)", "dim"))
    return Text("\n").join(lines)


def _row(stage: Mapping[str, Any], source: str, *, named: bool) -> tuple[str, ...]:
    layers, ranks = stage.get("layers"), stage.get("ranks")
    facts = (str(stage["stage"]), _range(layers[0], layers[1] - 1) if layers else "-", _ranks(ranks))
    seconds = (format_seconds(stage[key]) for key in ("compute_s", "transfer_s", "wait_s"))
    figures = (*seconds, f"{stage['bubble'] * 100:.0f} %", format_bytes(stage["comm_bytes"]))
    return (*(facts if named else ("", "", "")), source[:4], *figures)


def _ranks(ranks: list[int] | None) -> str:
    return _range(ranks[0], ranks[-1]) if ranks else "-"


def _range(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first}-{last}"
