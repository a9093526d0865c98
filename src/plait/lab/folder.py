"""The lab's directory: a page that needs nothing else, its charts as pictures, and results.json."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from plait.errors import PlanError, UsageError
from plait.lab.experiment import Outcome
from plait.lab.page import page_html, require_jinja
from plait.lab.results import FILE, Broken, Results, joined, read_results, write_results, write_whole
from plait.reports.canvas import require_matplotlib
from plait.reports.charts import write_chart

PAGE = "index.html"


class Folder:
    """A directory to write to, made where it is not there. Errors: UsageError, before anything is measured.

    What it holds of the same host, day and size stays, where it is not measured again. As a context it goes away at
    the end, where it was made for nothing.
    """

    def __init__(self, place: Path) -> None:
        require_matplotlib()
        require_jinja()
        _require_ours(place)
        self._made = [folder for folder in (place, *place.parents) if not folder.exists()]
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PlanError(f"-o {place} cannot be made: {error.strerror or error}; give another directory") from error
        if not os.access(place, os.W_OK):
            raise PlanError(f"-o {place} cannot be written: you may not write there; give another directory")
        self._place = place
        self._before = read_results(place / FILE) if (place / FILE).exists() else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # something is in it
            for folder in self._made:
                folder.rmdir()

    def write(self, results: Results, last: Outcome | Broken | None) -> None:
        """All that was found so far, and the pictures of the last; None: of all. Errors: UsageError: cannot write."""
        whole = results if self._before is None else joined(self._before, results)
        try:
            write_results(whole, self._place / FILE)
            write_whole(self._place / PAGE, page_html(whole).encode())
        except OSError as error:
            raise UsageError(f"cannot write to {self._place}: {error.strerror or error}") from error
        for one in results.outcomes if last is None else (last,):
            if isinstance(one, Outcome):
                for index, chart in enumerate(one.charts, 1):
                    write_chart(chart, self._place / chart_name(one.experiment, index, len(one.charts)))


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
