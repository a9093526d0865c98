"""The commands that make figures and fill pages: what they say to input that is none."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

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
