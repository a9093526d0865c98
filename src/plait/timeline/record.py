"""RunRecord: what a run leaves behind, in one directory that can be read again, compared and drawn.

    RUN/
      run.json         format and version, the model, the stages, the rounds' work, the result
      plan.toml        the plan file
      predicted.json   the predicted timeline, where there is one
      measured.json    the measured one

A directory is written beside its place and moved there whole: there is never half a run.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from plait.errors import UsageError, nearest
from plait.plans.round import Carried, MicroBatch, Round
from plait.schedules.generation import PIPELINED, make_round
from plait.timeline.timeline import Timeline

FORMAT = "plait-run"
FORMAT_VERSION = 1
_RUN, _PLAN, _PREDICTED, _MEASURED = "run.json", "plan.toml", "predicted.json", "measured.json"

T = TypeVar("T")


class RoundRecipe(NamedTuple):
    """The arguments that a round is made from; its actions follow from them."""

    number: int
    work: tuple[MicroBatch, ...]
    carried_in: tuple[Carried, ...] = ()
    schedule: str = PIPELINED
    front: int = 0

    def make(self, stages: int) -> Round:
        """The round, for a plan of so many stages."""
        return make_round(self.number, stages, self.work, self.carried_in, self.schedule, self.front)


class StageSummary(NamedTuple):
    """What a reader of the run must know of one stage. Bytes are None where nobody measured them."""

    stage: int
    ranks: tuple[int, ...]
    layers: tuple[int, int]
    dtype: str
    weights: str = ""
    weight_bytes: int | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run: `plan` is the plan file's text, `model` and `result` are JSON objects; either timeline may be absent."""

    plan: str
    stages: tuple[StageSummary, ...]
    model: Mapping[str, Any] = field(default_factory=dict)
    rounds: tuple[RoundRecipe, ...] = ()
    predicted: Timeline | None = None
    measured: Timeline | None = None
    result: Mapping[str, Any] = field(default_factory=dict)

    def make_rounds(self) -> tuple[Round, ...]:
        """The rounds with their actions, made again."""
        return tuple(recipe.make(len(self.stages)) for recipe in self.rounds)

    def save(self, directory: Path | str) -> Path:
        """Write the run to `directory`, over a run that is there. Errors: UsageError where something else is there."""
        place = Path(directory)
        _require_free(place)
        place.parent.mkdir(parents=True, exist_ok=True)
        fresh = _beside(place, "new")
        fresh.mkdir()
        try:
            _write(self, fresh)
            _move(fresh, place)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        return place

    @classmethod
    def load(cls, directory: Path | str) -> RunRecord:
        """The run that `save` wrote to `directory`. Errors: UsageError."""
        place = Path(directory)
        head = _read_head(place)
        timelines = {name: _read(place / name, Timeline) for name in (_PREDICTED, _MEASURED) if name in head.files}
        return cls(
            plan=_read_text(place / _PLAN),
            stages=head.stages,
            model=head.model,
            rounds=head.rounds,
            predicted=timelines.get(_PREDICTED),
            measured=timelines.get(_MEASURED),
            result=head.result,
        )


class _Version(msgspec.Struct, frozen=True):
    """Read before anything else."""

    format: str
    version: int


class RunHead(msgspec.Struct, frozen=True, kw_only=True):
    """run.json: what stands beside plan and timelines. `files`: the others that belong to the run."""

    format: str
    version: int
    files: tuple[str, ...]
    model: dict[str, Any]
    stages: tuple[StageSummary, ...]
    rounds: tuple[RoundRecipe, ...]
    result: dict[str, Any]


def _write(record: RunRecord, place: Path) -> None:
    timelines = {_PREDICTED: record.predicted, _MEASURED: record.measured}
    present = {name: timeline for name, timeline in timelines.items() if timeline is not None}
    head = RunHead(
        format=FORMAT,
        version=FORMAT_VERSION,
        files=(_PLAN, *present),
        model=dict(record.model),
        stages=record.stages,
        rounds=record.rounds,
        result=dict(record.result),
    )
    (place / _RUN).write_bytes(msgspec.json.format(msgspec.json.encode(head, enc_hook=_plain), indent=1))
    (place / _PLAN).write_text(record.plan, encoding="utf-8", newline="")
    for name, timeline in present.items():
        (place / name).write_bytes(msgspec.json.encode(timeline, enc_hook=_plain))


def _plain(value: Any) -> Any:
    """Read-only mappings as dicts, for JSON."""
    if isinstance(value, Mapping):
        return dict(value)
    raise NotImplementedError(f"a run's JSON cannot hold {type(value).__name__}: {value!r}")


def _beside(place: Path, what: str) -> Path:
    """A name in the same directory that nobody else uses."""
    return place.with_name(f".{place.name}.{secrets.token_hex(4)}.{what}")


def _require_free(place: Path) -> None:
    if not place.exists():
        return
    if not place.is_dir():
        raise UsageError(f"cannot save a run to {place}: a file is there, not a directory; give another name")
    if any(place.iterdir()) and not (place / _RUN).is_file():
        raise UsageError(
            f"cannot save a run to {place}: the directory holds other files and no {_RUN}; "
            "give an empty or a new directory"
        )


def _move(fresh: Path, place: Path) -> None:
    """Put `fresh` in the place of `place`; a run that was there goes away only when the new one stands."""
    if not place.exists():
        fresh.rename(place)
        return
    old = _beside(place, "old")
    place.rename(old)
    try:
        fresh.rename(place)
    except OSError:
        old.rename(place)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _read_head(place: Path) -> RunHead:
    if not place.exists():
        raise UsageError(f"no such run: {place}{neighbours(place)}")
    if not (place / _RUN).is_file():
        raise UsageError(
            f"{place} is not a run: it holds no {_RUN}; give the directory that `plait generate` or `plait train` named"
        )
    version = _read(place / _RUN, _Version)
    if version.format != FORMAT:
        raise UsageError(f"{place} is not a run: its {_RUN} says format {version.format!r}, not {FORMAT!r}")
    if version.version != FORMAT_VERSION:
        raise UsageError(
            f"{place} is a run of format version {version.version}, but this Plait reads version {FORMAT_VERSION}; "
            "read it with the Plait that wrote it, or run again"
        )
    return _read(place / _RUN, RunHead)


def neighbours(place: Path) -> str:
    """The runs beside a run that is not there, or the nearest of them."""
    runs: Sequence[str] = []
    if place.parent.is_dir():
        runs = [beside.parent.name for beside in place.parent.glob(f"*/{_RUN}")]
    return f" ({nearest(place.name, runs)})" if runs else f" (there are no runs in {place.parent})"


def _read(path: Path, shape: type[T]) -> T:
    data = _read_bytes(path)
    try:
        return msgspec.json.decode(data, type=shape)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _corrupt(path, data, error) from error


def _read_text(path: Path) -> str:
    data = _read_bytes(path)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise _corrupt(path, data, error) from error


def _corrupt(path: Path, data: bytes, error: Exception) -> UsageError:
    return UsageError(f"{path} is corrupt ({len(data)} bytes): {error}; run again to get a whole one")


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"{path.parent} is not whole: {path.name} is missing; run again to get a whole one") from None
