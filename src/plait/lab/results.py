"""What the lab found, as a file: one JSON object with the host it was measured on, written and read."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from plait.errors import SpecError
from plait.lab.experiment import Chart, Check, Outcome, Series, Size, Table
from plait.prober.host import cpu_model, torch_version, usable_cores

FORMAT, FORMAT_VERSION, FILE = "plait-lab", 1, "results.json"


@dataclass(frozen=True, slots=True)
class Host:
    """The machine that was measured. `system`: its operating system and processor architecture."""

    cpu: str
    cores: int
    system: str
    torch: str
    python: str
    plait: str


@dataclass(frozen=True, slots=True)
class Broken:
    """An experiment that ended in an error, and its words."""

    experiment: str
    words: str


@dataclass(frozen=True, slots=True)
class Missing:
    """An experiment that was asked for and has no end, and why: ``not measured: interrupted``."""

    experiment: str
    words: str


@dataclass(frozen=True, slots=True)
class Results:
    """What experiments found. `date`: when they began, in UTC, as in 2026-01-31.

    `missing`: what was asked for besides; while experiments run, those that are still to come.
    """

    size: Size
    date: str
    host: Host
    outcomes: tuple[Outcome, ...] = ()
    broken: tuple[Broken, ...] = ()
    missing: tuple[Missing, ...] = ()

    @property
    def holds(self) -> bool:
        """Every figure of every experiment is within its bound, none broke, and none is missing."""
        return not (self.broken or self.missing) and all(one.holds for one in self.outcomes)

    @property
    def ended(self) -> frozenset[str]:
        """Experiments that found something, or broke."""
        return frozenset({one.experiment for one in self.outcomes} | {one.experiment for one in self.broken})

    def having(self, last: Outcome | Broken) -> Results:
        """With what one more experiment found."""
        rest = tuple(one for one in self.missing if one.experiment != last.experiment)
        if isinstance(last, Outcome):
            return replace(self, outcomes=(*self.outcomes, last), missing=rest)
        return replace(self, broken=(*self.broken, last), missing=rest)


def joined(before: Results, after: Results) -> Results:
    """With what was found before and not looked at again: of the same host, day and size; else `after` alone.

    What was found before is not missing.
    """
    if (before.size, before.date, before.host) != (after.size, after.date, after.host):
        return after
    outcomes = tuple(one for one in before.outcomes if one.experiment not in after.ended)
    broken = tuple(one for one in before.broken if one.experiment not in after.ended)
    whole = replace(after, outcomes=(*outcomes, *after.outcomes), broken=(*broken, *after.broken))
    return replace(whole, missing=still_missing(whole.ended, before.missing, after.missing))


def still_missing(ended: Iterable[str], *missing: Iterable[Missing]) -> tuple[Missing, ...]:
    """All of `missing` that has not ended, each once and in the latest words."""
    latest = {one.experiment: one for several in missing for one in several}
    return tuple(one for name, one in latest.items() if name not in set(ended))


def this_host() -> Host:
    """The machine that this runs on."""
    system = f"{platform.system()} {platform.machine()}"
    return Host(cpu_model(), usable_cores(), system, torch_version(), platform.python_version(), version("plait"))


def today() -> str:
    """The date, in UTC."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


# --- the file -----------------------------------------------------------------------------------------------


class _Series(msgspec.Struct):
    name: str
    xs: tuple[float | str, ...]
    ys: tuple[float | None, ...]
    measured: bool


class _Chart(msgspec.Struct):
    title: str
    x_label: str
    y_label: str
    series: tuple[_Series, ...]
    bars: bool
    x_log: bool
    y_log: bool


class _Check(msgspec.Struct):
    what: str
    predicted: float | None
    measured: float | None
    unit: str
    bound: float
    relative: bool
    off: float | None
    holds: bool


class _Table(msgspec.Struct):
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class _Outcome(msgspec.Struct):
    experiment: str
    holds: bool
    sentence: str
    notes: tuple[str, ...]
    seconds: float
    checks: tuple[_Check, ...]
    table: _Table
    charts: tuple[_Chart, ...]


class _Results(msgspec.Struct):
    format: str
    version: int
    size: Size
    date: str
    host: Host
    holds: bool
    outcomes: tuple[_Outcome, ...]
    broken: tuple[Broken, ...]
    missing: tuple[Missing, ...] = ()


class _Version(msgspec.Struct):
    format: str = ""
    version: int = 0


def results_json(results: Results) -> dict[str, Any]:
    """The results as one JSON object; a figure that is no number is null."""
    outcomes = tuple(map(_outcome_struct, results.outcomes))
    head = FORMAT, FORMAT_VERSION, results.size, results.date, results.host, results.holds
    whole = _Results(*head, outcomes, results.broken, results.missing)
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(whole))
    return found


def write_results(results: Results, path: Path) -> None:
    """Write them to a file."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(results_json(results))) + b"\n")


def write_whole(path: Path, data: bytes) -> None:
    """Write a file, or, where that is interrupted, leave the one that is there. Errors: OSError."""
    fresh = path.with_name(f".{path.name}.part")
    try:
        fresh.write_bytes(data)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def read_results(path: Path) -> Results:
    """Read what `write_results` wrote. Errors: SpecError for a file that is not that."""
    if not path.is_file():
        raise SpecError(f"no results of the lab at {path}: plait lab --all -o {path.parent} writes them")
    data = path.read_bytes()
    try:
        head = msgspec.json.decode(data, type=_Version)
        if head.format != FORMAT:
            raise SpecError(f"{path} is not results of the lab: its format is {head.format!r}, not {FORMAT!r}")
        if head.version != FORMAT_VERSION:
            raise SpecError(
                f"{path} is of format version {head.version}, but this Plait reads version {FORMAT_VERSION}: "
                f"run plait lab --all -o {path.parent} again"
            )
        found = msgspec.json.decode(data, type=_Results)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SpecError(
            f"{path} is corrupt ({len(data)} bytes): {error}; run plait lab --all -o {path.parent} again"
        ) from error
    return Results(
        found.size, found.date, found.host, tuple(map(_outcome, found.outcomes)), found.broken, found.missing
    )


def _outcome_struct(one: Outcome) -> _Outcome:
    checks = tuple(_Check(**check._asdict(), off=check.off, holds=check.holds) for check in one.checks)
    charts = tuple(
        _Chart(**(chart._asdict() | {"series": tuple(_Series(*each) for each in chart.series)})) for chart in one.charts
    )
    table = _Table(*one.table)
    return _Outcome(one.experiment, one.holds, one.sentence, one.notes, one.seconds, checks, table, charts)


def _outcome(found: _Outcome) -> Outcome:
    checks = tuple(
        Check(one.what, _number(one.predicted), _number(one.measured), one.unit, one.bound, one.relative)
        for one in found.checks
    )
    table = Table(found.table.headings, found.table.rows)
    charts = tuple(map(_chart, found.charts))
    return Outcome(found.experiment, checks, found.sentence, table, charts, found.notes, found.seconds)


def _chart(found: _Chart) -> Chart:
    series = tuple(Series(one.name, one.xs, tuple(map(_number, one.ys)), one.measured) for one in found.series)
    return Chart(found.title, found.x_label, found.y_label, series, found.bars, found.x_log, found.y_log)


def _number(found: float | None) -> float:
    """JSON has no word for what is no number."""
    return float("nan") if found is None else found
