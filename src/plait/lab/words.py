"""What the lab says in a terminal: its experiments, and what each found, beside the prediction and the bound."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from plait.lab.experiment import Check, Experiment, Outcome, Table
from plait.lab.results import Results
from plait.units import format_rate, format_seconds

_SMALLEST_WIDTH = 40
_ROUNDING = 1e-12
_ABSENT = "no number"


def listing(experiments: Iterable[Experiment], width: int) -> Iterator[str]:
    """Every experiment's name and claim, and how to measure them."""
    known = list(experiments)
    for one in known:
        yield one.name
        yield from _wrapped(one.claim, width, "  ")
        yield ""
    yield f"Measure some: plait lab {known[0].name}. Measure all, and write a page: plait lab --all -o lab/"


def listing_json(experiments: Iterable[Experiment]) -> dict[str, Any]:
    """The same for programs."""
    keys = "name", "title", "claim", "formula", "how"
    return {"experiments": [{key: getattr(one, key) for key in keys} for one in experiments]}


def outcome_lines(experiment: Experiment, outcome: Outcome, width: int) -> Iterator[str]:
    """The claim, the table, every figure beside its prediction and its bound, and the sentence."""
    yield experiment.title
    yield from _wrapped(experiment.claim, width, "  ")
    yield ""
    yield from table_lines(outcome.table)
    yield ""
    yield from table_lines(checks_table(outcome.checks))
    yield ""
    yield from _wrapped(outcome.sentence, width)
    for note in outcome.notes:
        yield from _wrapped(note, width, "  ")
    yield f"  Measured in {format_seconds(outcome.seconds)}."
    yield ""


def ending(results: Results) -> Iterator[str]:
    """Which figures are not within their bounds, and by how much; what broke, what is missing; or that all is well."""
    count = sum(len(one.checks) for one in results.outcomes)
    for one in results.outcomes:
        for check in one.checks:
            if not check.holds:
                yield f"not within its bound: {one.experiment}: {check_words(check)}"
    for broken in results.broken:
        yield f"{broken.experiment} broke: {broken.words}"
    for missing in results.missing:
        yield f"{missing.experiment} was {missing.words}"
    if results.holds:
        figures = "the one figure is within its bound" if count == 1 else f"all {count} figures are within their bounds"
        yield f"{figures}, of {len(results.outcomes)} experiment{'' if len(results.outcomes) == 1 else 's'}"


def check_words(check: Check) -> str:
    """``bubble of 1f1b, …: predicted 20.0 %, measured 24.0 %, +4.0 points off, and 2.5 points are allowed``."""
    predicted, measured = (value_words(value, check.unit) for value in (check.predicted, check.measured))
    allowed = bound_words(check)
    are = "is" if allowed.endswith(" %") or not check.bound else "are"
    return (
        f"{check.what}: predicted {predicted}, measured {measured}, {off_words(check)} off, and {allowed} {are} allowed"
    )


def checks_table(checks: Sequence[Check]) -> Table:
    """A row a figure."""
    rows = tuple(
        (
            one.what,
            value_words(one.predicted, one.unit),
            value_words(one.measured, one.unit),
            off_words(one),
            bound_words(one),
            "yes" if one.holds else "NO",
        )
        for one in checks
    )
    return Table(("figure", "predicted", "measured", "off", "allowed", "within"), rows)


def value_words(value: float, unit: str) -> str:
    """A figure with its unit: ``20.0 %`` of points, ``12.5 ms`` of s, ``1,024 bytes``, ``1 Gb/s``-like rates as B/s."""
    match unit:
        case "points":
            return f"{value:.1f} %"
        case "s":
            return format_seconds(value) if value == value else _ABSENT
        case "bytes":
            return f"{value:,.0f} bytes" if value == value else _ABSENT
        case "bytes/s":
            return format_rate(value)
        case _:
            return f"{value:.4g} {unit}".rstrip()


def off_words(check: Check) -> str:
    """Measured from predicted, as the bound counts it."""
    if abs(check.measured - check.predicted) <= _ROUNDING * max(1.0, abs(check.predicted)):
        return "0"
    if check.relative and check.predicted:
        return f"{100 * check.off:+.1f} %"
    return _plain(check.off, check.unit, sign=True)


def bound_words(check: Check) -> str:
    """How far off a figure may be."""
    if not check.bound:
        return "nothing"
    return f"{100 * check.bound:g} %" if check.relative else _plain(check.bound, check.unit)


def _plain(value: float, unit: str, *, sign: bool = False) -> str:
    """A difference: points stay points."""
    plus = "+" if sign and value > 0 else ""
    return f"{plus}{value:.3g} points" if unit == "points" else plus + value_words(value, unit)


def table_lines(table: Table) -> Iterator[str]:
    """Columns side by side: the first to the left, and all of words; figures to the right."""
    columns = list(zip(table.headings, *table.rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    left = [at == 0 or not any(map(_is_figure, column[1:])) for at, column in enumerate(columns)]
    for row in (table.headings, *table.rows):
        cells = (
            f"{cell:<{width}}" if to_left else f"{cell:>{width}}"
            for cell, width, to_left in zip(row, widths, left, strict=True)
        )
        yield "  ".join(cells).rstrip()


def _is_figure(cell: str) -> bool:
    return cell[:1].isdigit() or (cell[:1] in ("+", "-", "−") and cell[1:2].isdigit())


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    room = max(_SMALLEST_WIDTH, width)
    return textwrap.wrap(text, room, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
