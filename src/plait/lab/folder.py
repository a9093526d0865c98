"""The lab's directory: a page that needs nothing else, its charts as pictures, and results.json."""

from __future__ import annotations

import os
from pathlib import Path

from plait.errors import PlanError, UsageError
from plait.lab.experiment import Outcome
from plait.lab.page import page_html, require_jinja
from plait.lab.results import FILE, Broken, Results, joined, read_results, write_results
from plait.reports.canvas import require_matplotlib
from plait.reports.charts import write_chart

PAGE = "index.html"


class Folder:
    """A directory to write to, made where it is not there. Errors: UsageError, before anything is measured.

    What it holds of the same host, day and size stays, where it is not measured again.
    """

    def __init__(self, place: Path) -> None:
        require_matplotlib()
        require_jinja()
        _require_ours(place)
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PlanError(f"-o {place} cannot be made: {error.strerror or error}; give another directory") from error
        if not os.access(place, os.W_OK):
            raise PlanError(f"-o {place} cannot be written: you may not write there; give another directory")
        self._place = place
        self._before = read_results(place / FILE) if (place / FILE).exists() else None

    def write(self, results: Results, last: Outcome | Broken) -> None:
        """All that was found so far, and the pictures of the last. Errors: UsageError where it cannot be written."""
        whole = results if self._before is None else joined(self._before, results)
        try:
            write_results(whole, self._place / FILE)
            (self._place / PAGE).write_text(page_html(whole), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write to {self._place}: {error.strerror or error}") from error
        if isinstance(last, Outcome):
            for index, chart in enumerate(last.charts, 1):
                write_chart(chart, self._place / chart_name(last.experiment, index, len(last.charts)))


def chart_name(experiment: str, index: int, count: int) -> str:
    """``pipeline.svg``, or ``pipeline-2.svg`` where an experiment has several."""
    return f"{experiment}.svg" if count == 1 else f"{experiment}-{index}.svg"


def _require_ours(place: Path) -> None:
    """Errors: PlanError for a file, and for a directory whose page is not the lab's."""
    if place.exists() and not place.is_dir():
        raise PlanError(f"-o {place} is a file, and the lab writes a directory: give another name, as in -o lab/")
    if (place / PAGE).exists() and not (place / FILE).exists():
        raise PlanError(
            f"-o {place} holds an {PAGE} that the lab did not write (there is no {FILE} beside it): "
            f"give another directory, as in -o {place / 'lab'}"
        )
