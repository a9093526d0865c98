"""``plait lab``: lists, measures, writes, and fails where a figure is not as predicted."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from plait.cli.main import app

from ..lab.made import FAILS, HOLDS, experiment, known


@pytest.fixture(autouse=True)
def _experiments(monkeypatch: pytest.MonkeyPatch) -> None:
    known(
        monkeypatch, [experiment("good"), experiment("bad", HOLDS, FAILS), experiment("lost", breaks="rank 1 is lost")]
    )
    monkeypatch.setenv("COLUMNS", "100")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["lab", *map(str, arguments)], catch_exceptions=False)


@pytest.mark.parametrize("arguments", [(), ("--list",)])
def test_without_a_name_it_lists(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.exit_code == 0
    assert done.stdout == (
        "good\n  People say good & more.\n\nbad\n  People say bad & more.\n\nlost\n  People say lost & more.\n\n"
        "Measure some: plait lab good. Measure all, and write a page: plait lab --all -o lab/\n"
    )
    assert done.stderr == ""


def test_the_list_as_json() -> None:
    found = json.loads(run("--list", "--json").stdout)["experiments"]
    assert [one["name"] for one in found] == ["good", "bad", "lost"]
    assert set(found[0]) == {"name", "title", "claim", "formula", "how"}


def test_progress_is_on_stderr_and_results_on_stdout() -> None:
    done = run("good", "--short")
    assert done.exit_code == 0
    assert done.stderr.splitlines() == [
        "good: Title of good",
        "good in its short form",
        "the one figure is within its bound, of 1 experiment",
    ]
    assert done.stdout.startswith("Title of good\n  People say good & more.\n")
    assert "good was <measured>." in done.stdout


def test_a_figure_that_is_not_as_predicted_fails_and_all_is_written(tmp_path: Path) -> None:
    done = run("--all", "-o", tmp_path / "lab")
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-3:] == [
        f"page written to {tmp_path / 'lab' / 'index.html'}",
        "not within its bound: bad: tokens of a thing: predicted 100 tokens/s, measured 80 tokens/s, -20.0 % off, "
        "and 10 % is allowed",
        "lost broke: rank 1 is lost",
    ]
    assert "good was <measured>." in done.stdout
    assert "bad was <measured>." in done.stdout
    assert {path.name for path in (tmp_path / "lab").iterdir()} == {"index.html", "results.json", "good.svg", "bad.svg"}
    found = json.loads((tmp_path / "lab" / "results.json").read_text())
    assert [one["experiment"] for one in found["outcomes"]] == ["good", "bad"]
    assert found["broken"] == [{"experiment": "lost", "words": "rank 1 is lost"}]


def test_an_interrupt_keeps_what_was_measured_and_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known(monkeypatch, [experiment("good"), experiment("long", breaks=KeyboardInterrupt()), experiment("last")])
    done = run("--all", "-o", tmp_path / "lab")
    assert done.exit_code == 130
    assert done.stderr.splitlines()[-4:] == [
        f"page written to {tmp_path / 'lab' / 'index.html'}",
        "long was not measured: interrupted",
        "last was not measured: interrupted",
        "stopped",
    ]
    assert "good was <measured>." in done.stdout
    found = json.loads((tmp_path / "lab" / "results.json").read_text())
    assert ([one["experiment"] for one in found["outcomes"]], found["holds"]) == (["good"], False)
    assert [one["experiment"] for one in found["missing"]] == ["long", "last"]
    assert "It was not measured: interrupted." in (tmp_path / "lab" / "index.html").read_text()


def test_after_an_interrupt_the_rest_can_be_measured_into_the_same_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known(monkeypatch, [experiment("good"), experiment("long", breaks=KeyboardInterrupt())])
    assert run("--all", "-o", tmp_path).exit_code == 130
    known(monkeypatch, [experiment("good"), experiment("long")])
    assert run("long", "-o", tmp_path).exit_code == 0
    found = json.loads((tmp_path / "results.json").read_text())
    assert ([one["experiment"] for one in found["outcomes"]], found["missing"]) == (["good", "long"], [])
    assert found["holds"]


def test_an_interrupt_before_anything_was_measured_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known(monkeypatch, [experiment("long", breaks=KeyboardInterrupt()), experiment("last")])
    done = run("--all", "-o", tmp_path / "a" / "lab")
    assert done.exit_code == 130
    assert (done.stdout, done.stderr.splitlines()[-1]) == ("", "stopped")
    assert "page written" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_as_json_has_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, [experiment("good"), experiment("long", breaks=KeyboardInterrupt())])
    done = run("--all", "--json")
    assert done.exit_code == 130
    found = json.loads(done.stdout)
    assert [one["experiment"] for one in found["outcomes"]] == ["good"]
    assert found["missing"] == [{"experiment": "long", "words": "not measured: interrupted"}]


def test_an_error_that_nobody_foresaw_keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    known(monkeypatch, [experiment("good"), experiment("odd", breaks=OSError(28, "No space left on device"))])
    done = run("--all", "-o", tmp_path)
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-2:] == [
        "odd was not measured: stopped by OSError: [Errno 28] No space left on device",
        "error: the system says: [Errno 28] No space left on device",
    ]
    found = json.loads((tmp_path / "results.json").read_text())
    assert [one["experiment"] for one in found["outcomes"]] == ["good"]
    assert [one["experiment"] for one in found["missing"]] == ["odd"]


def test_a_real_signal_ends_it_the_same_way(tmp_path: Path) -> None:
    """In a process of its own: SIGINT, as a terminal sends it, while the second experiment runs."""
    code = (
        "import sys, time; sys.path.insert(0, sys.argv.pop())\n"
        "import pytest\n"
        "from plait.cli.main import main\n"
        "from tests.lab.made import experiment, known\n"
        "long = experiment('long')\n"
        "wait = lambda size, say: [say('now'), time.sleep(60)]\n"
        "known(pytest.MonkeyPatch(), [experiment('good'), type(long)('long', 'L', 'c', 'f', 'h', wait)])\n"
        "main()\n"
    )
    root = Path(__file__).resolve().parents[2]
    arguments = [sys.executable, "-c", code, "lab", "--all", "-o", str(tmp_path / "lab"), str(root)]
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        heard = list(iter(child.stderr.readline, "now\n"))
        child.send_signal(signal.SIGINT)
        said = child.stderr.read().splitlines()
    assert child.returncode == 130, (heard, said)
    assert said[-2:] == ["long was not measured: interrupted", "stopped"]
    found = json.loads((tmp_path / "lab" / "results.json").read_text())
    assert ([one["experiment"] for one in found["outcomes"]], found["holds"]) == (["good"], False)


def test_json_is_one_object_also_where_figures_fail() -> None:
    done = run("bad", "--json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert (found["format"], found["holds"], found["size"]) == ("plait-lab", False, "full")
    assert [check["holds"] for check in found["outcomes"][0]["checks"]] == [True, False]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("goood",), "unknown experiment 'goood': did you mean 'good'?; plait lab --list says what each measures"),
        (("good", "--all"), "--all measures good too: leave out one or the other"),
        (
            ("--list", "good"),
            "--list names all experiments and measures none: leave out --list, or what is to be measured",
        ),
        (("-o", "x"), "-o is for a measurement, and none was named: add --all, or names, as in plait lab good"),
        (("--short",), "--short is for a measurement, and none was named: add --all, or names, as in plait lab good"),
    ],
)
def test_what_cannot_be_meant(arguments: tuple[str, ...], words: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert done.stderr == f"error: {words}\n"
    assert done.stdout == ""


def test_a_directory_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "lab").write_text("")
    done = run("good", "-o", tmp_path / "lab")
    assert done.exit_code == 2
    assert done.stderr == (
        f"error: -o {tmp_path / 'lab'} is a file, and the lab writes a directory: give another name, as in -o lab/\n"
    )


def test_a_terminal_without_these_letters_gets_question_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    room = import_module("plait.cli.lab")

    class Ascii:
        encoding = "ascii"
        written = ""

        def write(self, text: str) -> None:
            text.encode("ascii")
            self.written += text

        def flush(self) -> None:
            return

    stdout = Ascii()
    monkeypatch.setattr("sys.stdout", stdout)
    room._write(["20 µs × 2"])
    assert stdout.written == "20 ?s ? 2\n"
