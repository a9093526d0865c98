"""The commands that make figures and fill pages: what they say to input that is none."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plait.errors import SpecError
from plait.lab.experiment import Outcome, Table
from plait.lab.results import Broken, Host, Missing, Results

from .tools import ROOT, tool

figures = tool("figures")
fill = tool("fill")


def test_make_knows_the_targets() -> None:
    for target in ("docs", "figures", "reference"):
        done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_results_that_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(figures, "find_browser", lambda: "chromium")
    assert figures.main(["--results", str(tmp_path / "lab" / "results.json")]) == 2
    place = tmp_path / "lab"
    assert capfd.readouterr().err == (
        f"error: no results of the lab at {place / 'results.json'}: plait lab --all -o {place} writes them\n"
    )


def test_no_browser_is_said_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(figures, "measure", lambda folder: pytest.fail("it measured"))
    assert figures.main([]) == 2
    assert capfd.readouterr().err == (
        "error: none of chromium, chromium-browser, google-chrome is installed; type: apt-get install chromium\n"
    )


def test_a_command_that_fails_says_its_words(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"plait report nothing ended with 2:\n.*nothing"):
        figures.plait(tmp_path, "report", "nothing")


def test_fill_refuses_what_it_does_not_know(capfd: pytest.CaptureFixture) -> None:
    assert fill.main(["--chek"]) == 2
    assert capfd.readouterr().err == "unknown: --chek (known: --check)\n"


def test_every_picture_of_a_report_is_asked_for() -> None:
    asked = {shot.file for one in figures.PICTURES for shot in one.shots}
    stills = {one.still for one in figures.PICTURES if one.still}
    assert asked == {file.name for file in fill.FIGURES.glob("*.png")}
    assert stills == set(fill.STILLS)


def results(*names: str, broken: tuple[str, ...] = (), **changes: Any) -> Results:
    outcomes = tuple(Outcome(name, (), f"{name} says.", Table((), ())) for name in names)
    host = Host("a CPU", 2, "Linux x86_64", "2.0", "3.11", "0.1")
    return replace(
        Results("full", "2026-01-31", host, outcomes, tuple(Broken(one, "why") for one in broken)), **changes
    )


def test_an_experiment_again_takes_the_place_of_the_older() -> None:
    old = results("pipeline", "braid", broken=("quiz", "layer-wise"))
    new = results("quiz", "pipeline", broken=("braid",), date="2026-02-01")
    both = figures.merged(old, new)
    assert [one.experiment for one in both.outcomes] == ["pipeline", "quiz"]
    assert {one.experiment for one in both.broken} == {"layer-wise", "braid"}
    assert both.date == "2026-02-01"
    assert both.outcomes[0] is new.outcomes[1]


def test_what_was_measured_before_or_again_is_not_missing() -> None:
    why = "not measured: interrupted"
    old = results("pipeline", missing=(Missing("quiz", why), Missing("braid", why)))
    new = results("quiz", missing=(Missing("pipeline", why),))
    assert figures.merged(old, new).missing == (Missing("braid", why),)


def test_results_of_another_machine_do_not_stand_beside_ours() -> None:
    other = replace(results().host, cores=64)
    with pytest.raises(SpecError, match=r"cannot stand beside those of .*: measure all of them, make figures$"):
        figures.merged(results("pipeline"), results("quiz", host=other))


def test_an_experiment_that_is_none(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(figures, "find_browser", lambda: "chromium")
    assert figures.main(["--again", "braids"]) == 2
    assert capfd.readouterr().err == (
        "error: unknown experiment 'braids': did you mean 'braid'?; plait lab --list says what each measures\n"
    )


@pytest.mark.soak
def test_pictures_and_json_keys_are_what_runs_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real runs, as `make figures` makes them, into another folder."""
    tool("screenshot").find_browser()
    place = tmp_path / "figures"
    place.mkdir()
    monkeypatch.setattr(figures, "FIGURES", place)
    said = figures.draw(tmp_path)
    assert {file.name for file in place.iterdir()} == {
        file.name for file in fill.FIGURES.iterdir() if file.suffix == ".png" or file.name in fill.STILLS
    }
    kept = json.loads(figures.KEPT.read_text())
    assert list(kept) == list(said), "type: make figures"
    for command, value in said.items():
        assert [key for key, _ in figures.keys_of(value)] == [key for key, _ in kept[command]], command
