"""A run whose directory is not whole: what is there, and sentences on what is not.

A run is written beside its place and moved there whole (`record`), but copies stop half way, disks fill up, and a run
that was killed leaves an empty directory.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from plait.errors import PlanError, UsageError
from plait.plans.file import plan_file_from_table
from plait.timeline.impossible import known_result, without_impossible
from plait.timeline.record import FORMAT, FORMAT_VERSION, RunHead, RunRecord, StageSummary, neighbours
from plait.timeline.span import Span
from plait.timeline.timeline import Timeline

_RUN, _PLAN, _TIMELINES = "run.json", "plan.toml", ("predicted", "measured")
_FILES = (_RUN, _PLAN, *(f"{name}.json" for name in _TIMELINES))
RUN_FILES = (*_FILES, "steps.jsonl")
"""What `plait generate` and `plait train` write into a run's directory."""

_LOST = {
    _RUN: "what the run was asked for and what came of it is not known",
    _PLAN: "the plan, and why it was chosen, is not known",
    "predicted.json": "nothing is known of what was predicted",
    "measured.json": "nothing is known of what was measured",
}
"""What is not known without a file."""


class Partial(NamedTuple):
    """A record as far as it could be read, and in sentences what could not."""

    record: RunRecord
    missing: tuple[str, ...]


def load_partial(directory: Path | str) -> Partial:
    """The run in `directory`, or what is left of it. Errors: UsageError where it is no run, or nothing can be drawn."""
    place = Path(directory)
    _require_run(place)
    missing: list[str] = []
    head = _head(place, missing)
    plan = _plan(place, missing)
    wanted = None if head is None else set(head.files)
    timelines = {name: _timeline(place / f"{name}.json", name, wanted, missing) for name in _TIMELINES}
    stages = _stages(plan) if head is None else head.stages
    if head is not None and not stages:
        stages = _stages(plan)
        missing.append("run.json names no stages: they are told by the plan and the timelines, as far as these do.")
    if not plan.strip() and not any(timelines.values()):
        raise UsageError(f"{place} holds nothing that can be drawn: {' '.join(missing)} Run again to get a whole one")
    record = RunRecord(
        plan,
        stages,
        {} if head is None else head.model,
        () if head is None or not stages else head.rounds,
        timelines["predicted"],
        timelines["measured"],
        {} if head is None else known_result(head.result, missing),
    )
    return Partial(record, tuple(missing))


def _require_run(place: Path) -> None:
    if not place.exists():
        raise UsageError(f"no such run: {place}{neighbours(place)}")
    if any((place / name).is_file() for name in _FILES):
        return
    if any(place.iterdir()):
        raise UsageError(
            f"{place} is not a run: it holds none of {', '.join(_FILES[:-1])} and {_FILES[-1]}; "
            "give the directory that `plait generate` or `plait train` named"
        )
    copies = sorted(str(beside) for beside in place.parent.glob(f".{place.name}.*.new"))
    left = f"; what it had written lies in {copies[-1]}: plait report {copies[-1]}" if copies else ""
    raise UsageError(
        f"{place} is empty: the run that began there still runs, or was stopped before anything was written{left}; "
        "run again, or give a run that has ended"
    )


def _head(place: Path, missing: list[str]) -> RunHead | None:
    """run.json; one of another format or version is refused, not guessed at. Errors: UsageError."""
    data = _bytes(place / _RUN, missing)
    if data is None:
        return None
    try:
        found = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        missing.append(_damaged(_RUN, data, error))
        return None
    kind = found.get("format") if isinstance(found, dict) else None
    if kind != FORMAT:
        raise UsageError(f"{place} is not a run: its {_RUN} says format {kind!r}, not {FORMAT!r}")
    if found.get("version") != FORMAT_VERSION:
        raise UsageError(
            f"{place} is a run of format version {found.get('version')}, but this Plait reads version "
            f"{FORMAT_VERSION}; read it with the Plait that wrote it, or run again"
        )
    try:
        return msgspec.json.decode(data, type=RunHead)
    except msgspec.MsgspecError as error:
        missing.append(_damaged(_RUN, data, error))
        return None


def _plan(place: Path, missing: list[str]) -> str:
    data = _bytes(place / _PLAN, missing)
    if data is None:
        return ""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        missing.append(_damaged(_PLAN, data, error))
        return ""
    if not text.strip():
        missing.append(f"{_PLAN} is empty: {_LOST[_PLAN]}.")
    return text


def _stages(plan: str) -> tuple[StageSummary, ...]:
    """What the plan says of the stages, where the run's own words are lost."""
    try:
        layout = plan_file_from_table(tomllib.loads(plan)).plan.layout
    except (PlanError, tomllib.TOMLDecodeError, RecursionError):
        return ()
    return tuple(
        StageSummary(number, stage.ranks, stage.layers, stage.dtype, stage.weights)
        for number, stage in enumerate(layout.stages)
    )


def _timeline(path: Path, source: str, wanted: set[str] | None, missing: list[str]) -> Timeline | None:
    """The timeline; of one that is cut off or damaged the spans that can be read; None where there are none."""
    if wanted is not None and path.name not in wanted:
        if path.is_file():
            missing.append(f"{path.name} is there, but {_RUN} does not name it: it is left out.")
        return None
    data = _bytes(path, missing)
    if data is None:
        return None
    try:
        found = msgspec.json.decode(data, type=Timeline)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return _rest(path, source, data, error, missing)
    if found.source != source:
        missing.append(f"{path.name} says that it was {found.source}: it is left out.")
        return None
    return without_impossible(found, missing)


def _rest(path: Path, source: str, data: bytes, error: Exception, missing: list[str]) -> Timeline | None:
    """The spans before the damage, in whole rounds and parts of one."""
    spans = tuple(_spans(data.decode("utf-8", "replace")))
    if not spans:
        missing.append(_damaged(path.name, data, error))
        return None
    said = f"{len(spans):,} span{'s' if len(spans) > 1 else ''}"
    missing.append(f"{path.name} is damaged after {said} ({error}): what stands before that is shown, and no more.")
    return without_impossible(Timeline("predicted" if source == "predicted" else "measured", spans), missing)


def _spans(text: str) -> Iterator[Span]:
    """One span after the other, as long as they can be read."""
    mark = '"spans":['
    at = text.find(mark)
    if at < 0:
        return
    at += len(mark)
    decoder = json.JSONDecoder(parse_constant=_no_number)
    while text[at : at + 1] == "[":
        try:
            value, at = decoder.raw_decode(text, at)
            yield msgspec.convert(value, Span)
        except (ValueError, msgspec.ValidationError, RecursionError):
            return
        at += text[at : at + 1] == ","


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no time")


def _bytes(path: Path, missing: list[str]) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        missing.append(f"{path.name} is missing: {_LOST[path.name]}.")
    except OSError as error:
        missing.append(f"{path.name} cannot be read ({error.strerror}): {_LOST[path.name]}.")
    return None


def _damaged(name: str, data: bytes, error: Any) -> str:
    return f"{name} is damaged ({len(data)} bytes: {error}): {_LOST[name]}."
