"""`plait.report()`: a run or a plan, from wherever it is, as text, a page, pictures or a trace.

It stands up here because a plan that nobody ran is simulated first, and that asks for its model.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from plait.errors import PlaitError, UsageError
from plait.generation.record import OTHERS
from plait.plans.file import PlanFile, load_plan_file
from plait.plans.training import TrainingPlan
from plait.reports.plan_in import plan_in
from plait.reports.view import Lost, View
from plait.reports.view_of import Why, make_view, own_reason
from plait.reports.window import RoundRange, choose_window, count_prefill
from plait.spec.job import Job
from plait.timeline.partial import RUN_FILES, load_partial
from plait.timeline.record import RunRecord
from plait.units import format_seconds

if TYPE_CHECKING:
    from rich.console import Console

_LEFT_OUT = "Why other ways lose is not told: no search was made, as was asked for."


class Reported(NamedTuple):
    """A view, and the record that it is of."""

    view: View
    record: RunRecord


def report(
    run: RunRecord | Path | str,
    console: Console | None = None,
    *,
    page: Path | str | None = None,
    perfetto: Path | str | None = None,
    png: Path | str | None = None,
    svg: Path | str | None = None,
    rounds: RoundRange | None = None,
    search: bool = True,
) -> View:
    """Report a run or a plan: print it on `console`, and write the files that are named; returns what is drawn.

    `run`: a run's record or directory, also one that is not whole, or a plan file, which is simulated. `page`: one
    HTML file; `perfetto`: a trace for ui.perfetto.dev; `png` and `svg`: the timeline's picture. `rounds`: those that
    the text and the pictures show. `search`: look again for other ways to split, and say why they lose, where the plan
    names its machines. With neither a console nor a file the text goes to stdout. Errors: UsageError, before anything
    is read where a file cannot be written or is one of the run's own, before anything is written or printed where the
    run has no such rounds or nothing to draw.
    """
    outputs = {
        name: Path(path)
        for name, path in (("page", page), ("perfetto", perfetto), ("png", png), ("svg", svg))
        if path is not None
    }
    require_outputs(outputs)
    if not isinstance(run, RunRecord):
        require_beside(Path(run).expanduser(), outputs)
    found = look_at(run, search=search)
    require_drawable(found.view, outputs, rounds)
    if console is not None or not outputs:
        print_report(found, console, rounds)
    for name, path in outputs.items():
        write_output(found.view, name, path, rounds)
    return found.view


def look_at(run: RunRecord | Path | str, *, search: bool = True) -> Reported:
    """The view of a run or of a plan. Errors: UsageError where it is neither."""
    if isinstance(run, RunRecord):
        return _reported(run, (), search=search)
    place = Path(run).expanduser()
    if place.is_file():
        return _reported(_simulated(_plan_file(place)), (), search=search)
    record, missing = load_partial(place)
    return _reported(record, missing, search=search)


def print_report(found: Reported, console: Console | None = None, rounds: RoundRange | None = None) -> None:
    """The text, on a console or on stdout. Errors: UsageError: no such rounds."""
    import sys

    from rich.console import Console as Terminal

    from plait.reports.text_page import print_view

    prefill = count_prefill(found.record.rounds) if found.record.rounds else 1
    print_view(found.view, console or Terminal(file=sys.stdout, highlight=False), rounds, prefill)


def write_output(view: View, name: str, path: Path, rounds: RoundRange | None = None) -> None:
    """Write a file: "page", "perfetto", "png" or "svg". Errors: UsageError, also where a library is missing."""
    if name == "page":
        from plait.reports.page.page import write_page

        write_page(view, path)
    elif name == "perfetto":
        from plait.reports.perfetto import write_trace

        write_trace(view, path)
    else:
        from plait.reports.stills import write_still

        write_still(view, path, rounds=rounds)


_OPTIONS = {"page": "-o", "perfetto": "--perfetto", "png": "--png", "svg": "--svg"}
_ENDINGS = {"page": (".html", ".htm"), "perfetto": (".json",), "png": (".png",), "svg": (".svg",)}


def require_outputs(outputs: dict[str, Path]) -> None:
    """Every file can be written, has the ending of what it holds, and is named once. Errors: UsageError."""
    seen: dict[Path, str] = {}
    for name, path in outputs.items():
        option, endings = f"{_OPTIONS[name]} {path}", _ENDINGS[name]
        if path == Path():
            raise UsageError(f"{_OPTIONS[name]} names no file: type {_OPTIONS[name]} report{endings[0]}")
        if path.is_dir():
            raise UsageError(f"{option} is a directory: give a file in it, as in {path / f'report{endings[0]}'}")
        if path.suffix.lower() not in endings:
            ending = f"the ending {path.suffix!r}" if path.suffix else "no ending"
            raise UsageError(
                f"{option} has {ending}, but what is written there is {endings[0]}: "
                f"type {_OPTIONS[name]} {path.with_suffix(endings[0])}"
            )
        if not path.parent.is_dir():
            raise UsageError(
                f"{option} cannot be written: there is no directory {path.parent} (mkdir -p {path.parent} makes it)"
            )
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise UsageError(f"{option} cannot be written: you may not write there")
        other = seen.setdefault(_real(path), name)
        if other != name:
            raise UsageError(f"{option} is named twice, also as {_OPTIONS[other]}: give each its own file")


def require_beside(run: Path, outputs: Mapping[str, Path]) -> None:
    """No output is a file of a run, or the plan file that is read. Errors: UsageError, before anything is read."""
    place = _real(run)
    own: dict[Path, Path] = {}
    if not place.is_file():
        own = {path: place for name in RUN_FILES for path in (place / name, _real(place / name))}
    for name, path in outputs.items():
        # a file of a run may be a link: neither it nor what it leads to is written over
        named = _real(path), _real(path.parent) / path.name
        whose = next((own[each] for each in named if each in own), None)
        whose = whose or next((each.parent for each in named if _is_of_run(each)), None)
        if place not in named and whose is None:
            continue
        what = f"is the plan that is read, {run}," if place in named else f"is a file of the run {whose}"
        option, usual = _OPTIONS[name], f"report{_ENDINGS[name][0]}"
        raise UsageError(f"{option} {path} {what} and would be lost: give another file, as in {option} {usual}")


def _is_of_run(path: Path) -> bool:
    return path.name in RUN_FILES and (path.parent / "run.json").is_file()


def _real(path: Path) -> Path:
    """Without links, as far as there are any; a circle of links is no error."""
    return Path(os.path.realpath(path))


def require_drawable(view: View, outputs: Collection[str], rounds: RoundRange | None = None) -> None:
    """All that is asked for is there, before any of it is written. Errors: UsageError: no such rounds, no timeline."""
    if rounds is not None:
        choose_window(view.timelines, rounds)
    if "perfetto" in outputs and not view.timelines:
        raise UsageError("nothing to write for Perfetto: there is neither a predicted nor a measured timeline")


def _plan_file(path: Path) -> PlanFile:
    """A plan file; what is plainly something else is named. Errors: UsageError."""
    if path.name == "run.json" or path.name in ("predicted.json", "measured.json"):
        raise UsageError(f"{path} is a file of a run: give the run's directory, plait report {path.parent}")
    if path.suffix != ".toml":
        raise UsageError(
            f"{path} is neither a run nor a plan: give the directory that `plait generate` or `plait train` named, "
            "or the plan.toml that `plait plan -o` wrote"
        )
    return load_plan_file(path)


def _simulated(file: PlanFile) -> RunRecord:
    """The record of a plan that nobody ran."""
    if not isinstance(file.plan, TrainingPlan):
        from plait.generation.forecast import forecast

        return forecast(file)
    from plait.simulator.step import forecast_step
    from plait.simulator.step_record import step_record
    from plait.weights.model import model_spec

    spec = model_spec(file.plan.model)
    return step_record(forecast_step(file.plan, spec, file.cluster), spec, file.cluster)


def _reported(record: RunRecord, missing: tuple[str, ...], *, search: bool) -> Reported:
    file = plan_in(record).file
    why = None if file is None else _why(file, record, search=search)
    return Reported(make_view(record, missing, why), record)


def _why(file: PlanFile, record: RunRecord, *, search: bool) -> Why:
    if file.cluster is None:
        return Why(own_reason(file), tuple(_lost_here(record)))
    if not search:
        return Why(own_reason(file), (), (_LEFT_OUT,))
    from plait.reports.searched import ask_again
    from plait.weights.model import model_spec

    try:
        spec = model_spec(file.plan.model)
    except PlaitError as error:
        return Why(own_reason(file), (), (f"Why other ways lose is not told: {_sentence(str(error))}",))
    return ask_again(file, spec, _job(record))


def _lost_here(record: RunRecord) -> Iterator[Lost]:
    """What a plan of this machine was chosen against, as the run kept it: nothing is measured or searched again."""
    others = record.result.get(OTHERS)
    for one in others if isinstance(others, list) else ():
        match one:
            case {"name": str(name), "loses": str(loses), "predicted": {"job_s": int() | float() as job_s}}:
                yield Lost(name, f"{format_seconds(job_s)} for the job", loses)
            case {"name": str(name), "loses": str(loses)}:
                yield Lost(name, "cannot be", loses)


def _job(record: RunRecord) -> Job | None:
    """What a plan of generation was simulated for."""
    asked = record.result.get("job")
    return Job(asked["prompt_tokens"], asked["max_tokens"], asked["users"]) if asked else None


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."
