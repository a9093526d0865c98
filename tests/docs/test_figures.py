"""Figures and numbers of the pages are those of docs/figures/results.json and of Plait's formulas."""

from __future__ import annotations

import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from plait.lab.experiment import Chart, Check, Outcome, Series, Table
from plait.lab.experiments import EXPERIMENTS
from plait.lab.results import Host, Results, read_results

from .tools import DOCS, ROOT, tool

fill = tool("fill")

CONCEPTS = sorted(page for page in (DOCS / "concepts").glob("*.md") if page.name != "index.md")
PARTS = ("## Formula", "## A worked number", "## Takeaway")
ONE_KB, MOST_KB, ALL_KB = 1000, 250, 2000


@pytest.fixture(scope="module")
def results() -> Results:
    return read_results(fill.RESULTS)


def outcome(name: str = "pipeline", **changes: Any) -> Outcome:
    checks = (Check("bubble", 20.0, 21.0, "points", 2.5, relative=False), Check("bytes", 8.0, 8.0, "bytes", 0.0))
    chart = Chart("Bubble [4]", "micro-batches", "%", (Series("measured", (2.0, 4.0), (60.0, 42.9)),))
    made = Outcome(name, checks, "Of 4 stages 42.9 % idle.", Table(("m", "%"), (("4", "42.9"),)), (chart,), ("a", "b"))
    return replace(made, **changes)


def made(*outcomes: Outcome) -> Results:
    return Results("full", "2026-01-31", Host("a CPU", 2, "Linux x86_64", "2.0", "3.11", "0.1"), outcomes)


# --- the pages that are committed -----------------------------------------------------------------------


def test_pages_are_filled(results: Results) -> None:
    stale = [str(page.relative_to(ROOT)) for page in fill.stale_pages(results)]
    assert stale == [], "type: python docs/tools/fill.py"


def test_charts_are_drawn(results: Results) -> None:
    stale = [name for name, text in fill.charts(results) if (fill.FIGURES / name).read_text() != text]
    assert stale == [], "type: python docs/tools/fill.py"


def test_every_experiment_is_measured_in_full_and_within_its_bounds(results: Results) -> None:
    assert results.size == "full"
    assert [one.experiment for one in results.outcomes] == list(EXPERIMENTS), "type: make figures"
    assert results.holds


def test_results_name_no_machine() -> None:
    text = fill.RESULTS.read_text()
    assert not re.search(r"/(home|root|tmp|work|Users)/", text)
    assert socket.gethostname().lower() not in text.lower()


@pytest.mark.parametrize("page", CONCEPTS, ids=lambda page: page.stem)
def test_a_concept_has_its_parts(page: Path) -> None:
    text = page.read_text()
    places = [text.index(part) for part in PARTS]
    assert places == sorted(places)
    assert f"<!-- worked:{page.stem} -->" in text
    assert "bound" in text[places[0] : places[1]].lower()
    if page.stem == "expert-parallel":  # the one that cannot be run: it says so, instead of a figure
        assert "Planned, not run yet" in text
        assert "## Measured" not in text
        return
    assert places[1] < text.index("## Measured") < places[2]
    for what in ("how", "sentence", "figures", "table", "checks", "notes"):
        assert f"<!-- lab:{page.stem}:{what} -->" in text, what


def test_every_experiment_has_a_page() -> None:
    assert set(EXPERIMENTS) <= {page.stem for page in CONCEPTS}


def test_figures_are_shown_and_small() -> None:
    shown = {
        Path(target).name
        for page in (ROOT / "README.md", *DOCS.rglob("*.md"))
        for target in re.findall(r"\]\(([^)\s]*figures/[^)\s]+)\)", page.read_text())
    }
    pictures = [file for file in fill.FIGURES.iterdir() if file.suffix in (".svg", ".png")]
    assert {file.name for file in pictures} == shown
    for file in pictures:
        assert file.stat().st_size < MOST_KB * ONE_KB, file.name
    assert sum(file.stat().st_size for file in pictures) < ALL_KB * ONE_KB


def test_pictures_of_reports_are_pictures() -> None:
    pictures = sorted(fill.FIGURES.glob("*.png"))
    assert "report.png" in [file.name for file in pictures]
    for file in pictures:
        with Image.open(file) as image:
            assert image.width >= 390, file.name
            assert len(image.convert("L").resize((200, 200)).getcolors() or []) > 10, f"{file.name} is empty"


# --- the filler -----------------------------------------------------------------------------------------


def test_a_page_is_filled_by_hand() -> None:
    page = "<!-- lab:host -->x<!-- /lab -->\n<!-- lab:pipeline:sentence -->old<!-- /lab -->\nmine\n"
    assert fill.filled(page, made(outcome()), 1) == (
        "<!-- lab:host -->\n2026-01-31, a CPU, 2 cores, Linux x86_64; Python 3.11, torch 2.0, `plait lab --all`\n"
        "<!-- /lab -->\n<!-- lab:pipeline:sentence -->\n\n> Of 4 stages 42.9 % idle.\n\n<!-- /lab -->\nmine\n"
    )


def test_filling_twice_is_filling_once() -> None:
    marks = ("sentence", "checks", "table", "notes", "figures", "how")
    page = "\n".join(f"<!-- lab:pipeline:{what} --><!-- /lab -->" for what in marks)
    page += "\n<!-- worked:pipeline --><!-- /worked -->"
    once = fill.filled(page, made(outcome()), 1)
    assert fill.filled(once, made(outcome()), 1) == once
    assert "![Bubble (4)](../figures/pipeline.svg)" in once
    assert "| bubble | 20.0 % | 21.0 % | +1 points | 2.5 points | yes |" in once
    assert "- a\n- b" in once


def test_what_is_outside_its_bound_is_said() -> None:
    broken = outcome(checks=(Check("bubble", 20.0, 25.0, "points", 2.5, relative=False),))
    page = "<!-- lab:pipeline:checks --><!-- /lab -->"
    assert '??? failure "Only 0 of 1 figures' in fill.filled(page, made(broken), 1)
    assert '??? note "All 2 figures' in fill.filled(page, made(outcome()), 1)


def test_what_was_not_measured_is_said() -> None:
    page = "<!-- lab:pipeline:sentence --><!-- /lab -->"
    assert "*Not measured yet; `plait lab pipeline` measures it.*" in fill.filled(page, made(), 1)


@pytest.mark.parametrize("mark", ["<!-- lab:pipeline:sentense --><!-- /lab -->", "<!-- worked:pip --><!-- /worked -->"])
def test_a_marker_that_nothing_fills_is_an_error(mark: str) -> None:
    with pytest.raises(KeyError):
        fill.filled(mark, made(outcome()), 1)


def test_another_result_makes_the_pages_stale(results: Results) -> None:
    first, *others = results.outcomes
    other = replace(results, outcomes=(replace(first, sentence=f"{first.sentence} Or not."), *others))
    assert [page.stem for page in fill.stale_pages(other)] == [first.experiment]
