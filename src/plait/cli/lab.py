"""``plait lab``: the well-known claims about splitting, each measured here beside what is predicted for it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli.output import RUN_EXIT, verb, words, write_json
from plait.errors import PlanError

if TYPE_CHECKING:
    from plait.lab.experiment import Outcome, Size
    from plait.lab.folder import Folder
    from plait.lab.results import Broken, Results

_NAMES_HELP = "What to measure, by name; none lists them."
_OUTPUT_HELP = "Write the page, its pictures and results.json to this directory."
_SHORT_HELP = "Small forms, in a few seconds: they show that all works, not what this machine does."


@verb
def lab(
    experiments: Annotated[list[str] | None, typer.Argument(help=_NAMES_HELP, show_default=False)] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them; below 10 minutes on two cores.")] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help=_OUTPUT_HELP)] = None,
    short: Annotated[bool, typer.Option("--short", help=_SHORT_HELP)] = False,
    listed: Annotated[bool, typer.Option("--list", help="Names and claims, without measuring.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead of words.")] = False,
) -> None:
    """Measure what people say of data, tensor and pipeline parallelism on this machine, beside the prediction."""
    if experiments and everything:
        raise PlanError(f"--all measures {', '.join(experiments)} too: leave out one or the other")
    if listed or not (experiments or everything):
        _list(bool(experiments or everything), output, listed=listed, short=short, as_json=json)
    else:
        _measure(experiments or None, output, "short" if short else "full", as_json=json)


def _list(named: bool, output: Path | None, *, listed: bool, short: bool, as_json: bool) -> None:
    """What can be measured. Errors: PlanError for what only a measurement needs."""
    from plait.lab.experiments import EXPERIMENTS
    from plait.lab.words import listing, listing_json

    if listed and named:
        raise PlanError("--list names all experiments and measures none: leave out --list, or what is to be measured")
    for flag, given in (("-o", output is not None), ("--short", short)):
        if given:
            raise PlanError(
                f"{flag} is for a measurement, and none was named: add --all, or names, as in plait lab "
                f"{next(iter(EXPERIMENTS))}"
            )
    if as_json:
        write_json(listing_json(EXPERIMENTS.values()))
    else:
        _write(listing(EXPERIMENTS.values(), _width()))


def _measure(names: list[str] | None, output: Path | None, size: Size, *, as_json: bool) -> None:
    from plait.lab.experiments import EXPERIMENTS, chosen
    from plait.lab.run import run_experiments

    chosen(EXPERIMENTS if names is None else names)
    with _folder(output) as folder:
        ended = _Ended(folder, as_json=as_json)
        try:
            run_experiments(names, size, _say, ended)
        finally:  # what was found before an interrupt is told too
            if ended.results is not None:
                _sum_up(ended.results, output, as_json=as_json)
    if ended.results is not None and not ended.results.holds:
        raise typer.Exit(RUN_EXIT)


class _Ended:
    """Writes and prints what an experiment found as soon as it ends. `results`: all so far; None before the first."""

    def __init__(self, folder: Folder | None, *, as_json: bool) -> None:
        self._folder, self._as_json = folder, as_json
        self.results: Results | None = None

    def __call__(self, results: Results, last: Outcome | Broken | None) -> None:
        self.results = results
        if self._folder is not None:
            self._folder.write(results, last)
        if not self._as_json and last is not None:
            _print(last)


def _sum_up(results: Results, output: Path | None, *, as_json: bool) -> None:
    from plait.lab.results import results_json
    from plait.lab.words import ending

    if as_json:
        write_json(results_json(results))
    if output is not None:
        _say(f"page written to {output / 'index.html'}")
    for line in ending(results):
        _say(line)


def _say(text: str) -> None:
    words().print(text, soft_wrap=True, markup=False)


def _folder(output: Path | None) -> AbstractContextManager[Folder | None]:
    if output is None:
        return nullcontext()
    from plait.lab.folder import Folder

    return Folder(output)


def _print(last: Outcome | Broken) -> None:
    """What an experiment found; that one broke is said at the end."""
    from plait.lab.experiment import Outcome
    from plait.lab.experiments import EXPERIMENTS
    from plait.lab.words import outcome_lines

    if isinstance(last, Outcome):
        _write(outcome_lines(EXPERIMENTS[last.experiment], last, _width()))


def _write(lines: Iterable[str]) -> None:
    """Data; what the terminal cannot write becomes a question mark, never an error."""
    encoding = sys.stdout.encoding or "utf-8"
    for line in lines:
        sys.stdout.write(line.encode(encoding, "replace").decode(encoding) + "\n")
    sys.stdout.flush()


def _width() -> int:
    return shutil.get_terminal_size().columns
