"""The lab's page: every claim, its figure, its numbers and its sentence, in one file that needs no other."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from plait.errors import UsageError
from plait.lab.experiment import Check, Experiment, Outcome
from plait.lab.experiments import EXPERIMENTS
from plait.lab.results import Results
from plait.lab.words import bound_words, off_words, value_words
from plait.reports.charts import chart_svg
from plait.units import format_seconds

if TYPE_CHECKING:
    from jinja2 import Template


class Figure(NamedTuple):
    """A check in words."""

    what: str
    predicted: str
    measured: str
    off: str
    allowed: str
    holds: bool


class Section(NamedTuple):
    """An experiment on the page. `outcome`: None where there is none, and `broken` or `missing` says why."""

    experiment: Experiment
    outcome: Outcome | None
    figures: tuple[Figure, ...]
    pictures: tuple[str, ...]
    took: str
    broken: str = ""
    missing: str = ""


def require_jinja() -> None:
    """Errors: UsageError where it is not installed."""
    try:
        import jinja2  # noqa: F401
    except ImportError:
        raise UsageError("the page needs jinja2, which is not installed: pip install 'plait[report]' adds it") from None


def page_html(results: Results) -> str:
    """The page of these results, for any browser: no script, nothing loaded."""
    sections = list(_sections(results))
    missing = [section for section in sections if section.missing]
    ended = [section for section in sections if not section.missing]
    failed = sum(section.outcome is None or not section.outcome.holds for section in ended)
    told = {"sections": sections, "ended": len(ended), "missing": missing, "failed": failed}
    return _template().render(results=results, host=results.host, **told)


def _sections(results: Results) -> Iterator[Section]:
    outcomes = {one.experiment: one for one in results.outcomes}
    broken = {one.experiment: one.words for one in results.broken}
    missing = {one.experiment: one.words for one in results.missing}
    for name, experiment in EXPERIMENTS.items():
        outcome = outcomes.get(name)
        if outcome is not None:
            pictures = tuple(chart_svg(chart) for chart in outcome.charts)
            figures = tuple(map(_figure, outcome.checks))
            yield Section(experiment, outcome, figures, pictures, format_seconds(outcome.seconds))
        elif name in broken or name in missing:
            yield Section(experiment, None, (), (), "", broken.get(name, ""), missing.get(name, ""))


def _figure(check: Check) -> Figure:
    predicted, measured = (value_words(value, check.unit) for value in (check.predicted, check.measured))
    return Figure(check.what, predicted, measured, off_words(check), bound_words(check), check.holds)


def _template() -> Template:
    """Everything that is put in is escaped, but for the pictures, which are ours."""
    from jinja2 import Environment, StrictUndefined

    options: dict[str, Any] = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    text = (files("plait.lab") / "page.html").read_text(encoding="utf-8")
    return Environment(autoescape=True, **options).from_string(text)
