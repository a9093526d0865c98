"""The lab's page and its directory."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from plait.errors import PlanError, SpecError
from plait.lab.folder import Folder
from plait.lab.page import page_html
from plait.lab.results import Broken, Missing, read_results

from .made import FAILS, HOLDS, HOST, experiment, known, outcome, results


@pytest.fixture(autouse=True)
def _experiments(monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, [experiment("one"), experiment("two"), experiment("three")])


class Tags(HTMLParser):
    """What a page opens and loads, and what it says."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.words = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href"):
                self.loads.append(value or "")
            if name == "id":
                self.ids.append(value or "")

    def handle_data(self, data: str) -> None:
        self.words += data


def test_a_page_says_everything_and_loads_nothing() -> None:
    page = Tags(page_html(results(outcome("one"), outcome("two"))))
    assert page.tags.count("section") == 2
    assert "script" not in page.tags
    assert all(load.startswith(("#", "data:,")) for load in page.loads)
    assert len(page.ids) == len(set(page.ids))
    for said in ("People say one & more.", "one was <measured>.", "a <row>", "A formula.", "So it is measured."):
        assert said in page.words
    assert "Every figure lies within its bound of the prediction." in page.words
    assert "a <processor>, 2 cores, Linux x86_64" in page.words


def test_what_experiments_say_is_escaped_and_pictures_are_not() -> None:
    html = page_html(results(outcome("one", HOLDS._replace(what="<script>alert(1)</script>"))))
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "one was &lt;measured&gt;." in html
    assert "<svg" in html


def test_a_page_shows_what_is_not_as_predicted() -> None:
    page = Tags(page_html(results(outcome("one", FAILS), outcome("two"), broken=(Broken("three", "rank 1 <died>"),))))
    words = re.sub(r"\s+", " ", page.words)
    assert "2 of 3 experiments are not as predicted." in words
    assert "It broke: rank 1 <died>" in words
    assert "Not all figures are within their bounds" in words
    assert "The one figure is within its bound" in words


def test_a_page_says_what_is_missing() -> None:
    why = "not measured: interrupted"
    whole = results(outcome("one"), missing=(Missing("three", why), Missing("two", why)))
    words = re.sub(r"\s+", " ", Tags(page_html(whole)).words)
    assert "Every figure that was measured lies within its bound of the prediction." in words
    assert f"2 of 3 experiments are missing: two ({why}), three ({why})." in words
    assert words.count("It was not measured: interrupted.") == 2
    assert "not as predicted" not in words
    assert "broke" not in words


def test_a_page_tells_what_is_missing_from_what_is_not_as_predicted() -> None:
    whole = results(outcome("one", FAILS), missing=(Missing("two", "not measured: stopped by OSError: <no>"),))
    words = re.sub(r"\s+", " ", Tags(page_html(whole)).words)
    assert "1 of 1 experiment is not as predicted." in words
    assert "1 of 2 experiments is missing: two (not measured: stopped by OSError: <no>)." in words
    assert "lies within" not in words


def test_a_short_run_says_so() -> None:
    found = results(outcome("one"))
    assert "Short forms" in page_html(replace(found, size="short"))
    assert "Short forms" not in page_html(found)


def test_a_directory_holds_page_pictures_and_results(tmp_path: Path) -> None:
    place = tmp_path / "a" / "lab"
    folder = Folder(place)
    found = results(outcome("one"))
    folder.write(found, found.outcomes[-1])
    two = outcome("two")
    more = results(outcome("one"), type(two)("two", two.checks, two.sentence, two.table, two.charts * 2))
    folder.write(more, more.outcomes[-1])
    broken = results(*more.outcomes, broken=(Broken("three", "words"),))
    folder.write(broken, broken.broken[-1])
    assert {path.name for path in place.iterdir()} == {
        "index.html",
        "one.svg",
        "results.json",
        "two-1.svg",
        "two-2.svg",
    }
    assert read_results(place / "results.json") == broken
    Folder(place)  # its own directory is written again


def test_a_directory_that_was_made_for_nothing_goes_away(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), Folder(tmp_path / "a" / "b"):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    with Folder(tmp_path / "mine" / "lab"):
        assert (tmp_path / "mine" / "lab").is_dir()
    with Folder(tmp_path / "mine"):
        pass
    assert [path.name for path in tmp_path.rglob("*")] == ["mine"]  # who made it may want it


def test_a_directory_in_which_something_lies_stays(tmp_path: Path) -> None:
    found = results(outcome("one"))
    with Folder(tmp_path / "a" / "b") as folder:
        folder.write(found, found.outcomes[-1])
    assert read_results(tmp_path / "a" / "b" / "results.json") == found


def test_at_an_early_end_the_pictures_of_all_are_written(tmp_path: Path) -> None:
    Folder(tmp_path).write(results(outcome("one"), outcome("two"), missing=(Missing("three", "why"),)), None)
    assert {path.name for path in tmp_path.iterdir()} == {"index.html", "results.json", "one.svg", "two.svg"}


def test_what_was_measured_before_stays_unless_it_is_measured_again(tmp_path: Path) -> None:
    first = results(outcome("one", FAILS), outcome("two"), broken=(Broken("three", "words"),))
    Folder(tmp_path).write(first, first.outcomes[-1])
    again = results(outcome("one"), outcome("three"))
    Folder(tmp_path).write(again, again.outcomes[-1])
    found = read_results(tmp_path / "results.json")
    assert [one.experiment for one in found.outcomes] == ["two", "one", "three"]
    assert found.holds
    assert Tags((tmp_path / "index.html").read_text()).tags.count("section") == 3


@pytest.mark.parametrize("other", [{"date": "2026-02-01"}, {"size": "short"}, {"host": replace(HOST, cores=4)}])
def test_what_was_measured_elsewhere_or_another_day_does_not_stay(tmp_path: Path, other: dict[str, Any]) -> None:
    first = results(outcome("one"), outcome("two"))
    Folder(tmp_path).write(replace(first, **other), first.outcomes[-1])
    again = results(outcome("one"))
    Folder(tmp_path).write(again, again.outcomes[-1])
    assert read_results(tmp_path / "results.json") == again


def test_results_that_cannot_be_read_are_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text('{"format": "other"}')
    with pytest.raises(SpecError, match="is not results of the lab"):
        Folder(tmp_path)


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    place = tmp_path / "lab"
    place.write_text("")
    with pytest.raises(PlanError) as error:
        Folder(place)
    assert str(error.value) == f"-o {place} is a file, and the lab writes a directory: give another name, as in -o lab/"


def test_a_page_of_something_else_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("mine")
    with pytest.raises(PlanError) as error:
        Folder(tmp_path)
    assert str(error.value) == (
        f"-o {tmp_path} holds an index.html that the lab did not write (there is no results.json beside it): "
        f"give another directory, as in -o {tmp_path / 'lab'}"
    )
    assert (tmp_path / "index.html").read_text() == "mine"


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    place = tmp_path / "file" / "lab"
    with pytest.raises(PlanError) as error:
        Folder(place)
    assert str(error.value) == f"-o {place} cannot be made: Not a directory; give another directory"
