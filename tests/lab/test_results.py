"""results.json: written, read, and refused where it is something else."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.errors import SpecError
from plait.lab.experiment import Chart, Check, Outcome, Series, Table
from plait.lab.results import Broken, Missing, joined, read_results, results_json, this_host, write_results

from .made import FAILS, HOLDS, outcome, results

WORDS = st.text(max_size=8)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
CHECKS = st.builds(Check, WORDS, NUMBERS, NUMBERS, WORDS, st.floats(0, 1), st.booleans())
SERIES = st.lists(st.tuples(NUMBERS | WORDS, NUMBERS), max_size=3).map(
    lambda pairs: Series("s", tuple(x for x, _ in pairs), tuple(y for _, y in pairs), measured=False)
)
CHARTS = st.builds(Chart, WORDS, WORDS, WORDS, st.lists(SERIES, max_size=2).map(tuple), st.booleans(), st.booleans())
TABLES = st.lists(st.tuples(WORDS, WORDS), max_size=3).map(lambda rows: Table(("a", "b"), tuple(rows)))
OUTCOMES = st.builds(
    Outcome,
    WORDS,
    st.lists(CHECKS, max_size=3).map(tuple),
    WORDS,
    TABLES,
    st.lists(CHARTS, max_size=2).map(tuple),
    st.lists(WORDS, max_size=2).map(tuple),
    st.floats(0, 1e6),
)


@given(st.lists(OUTCOMES, max_size=2))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, outcomes: list[Outcome]) -> None:
    path = tmp_path_factory.mktemp("lab") / "results.json"
    missing = (Missing("another", "not measured: interrupted"),)
    whole = results(*outcomes, broken=(Broken("other", "its words"),), missing=missing)
    write_results(whole, path)
    assert read_results(path) == whole


def test_the_file_says_for_every_figure_how_far_off_it_is_and_whether_it_holds(tmp_path: Path) -> None:
    write_results(results(outcome("one", HOLDS, FAILS)), tmp_path / "results.json")
    found = json.loads((tmp_path / "results.json").read_text())
    assert {key: found[key] for key in ("format", "version", "size", "date", "holds")} == {
        "format": "plait-lab",
        "version": 1,
        "size": "full",
        "date": "2026-01-31",
        "holds": False,
    }
    first, second = found["outcomes"][0]["checks"]
    assert first["off"] == pytest.approx(0.05)
    assert (first["holds"], second["holds"]) == (True, False)
    assert second["off"] == pytest.approx(-0.2)


def test_what_is_no_number_is_null_and_holds_nothing(tmp_path: Path) -> None:
    whole = results(outcome("one", HOLDS._replace(measured=math.nan)))
    assert results_json(whole)["outcomes"][0]["checks"][0]["measured"] is None
    write_results(whole, tmp_path / "results.json")
    (check,) = read_results(tmp_path / "results.json").outcomes[0].checks
    assert math.isnan(check.measured)
    assert not check.holds


def test_the_file_says_what_is_missing_and_then_does_not_hold(tmp_path: Path) -> None:
    write_results(results(outcome("one"), missing=(Missing("two", "not measured: interrupted"),)), tmp_path / "r.json")
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["missing"] == [{"experiment": "two", "words": "not measured: interrupted"}]
    assert found["holds"] is False


def test_a_file_from_before_anything_could_be_missing(tmp_path: Path) -> None:
    write_results(results(outcome("one")), tmp_path / "r.json")
    found = json.loads((tmp_path / "r.json").read_text())
    del found["missing"]
    (tmp_path / "r.json").write_text(json.dumps(found))
    assert read_results(tmp_path / "r.json") == results(outcome("one"))


def test_what_was_found_before_is_not_missing() -> None:
    later = "not measured: interrupted"
    before = results(outcome("one"), broken=(Broken("two", "words"),), missing=(Missing("three", "not measured yet"),))
    names = ("one", "two", "three", "four")
    both = joined(before, results(missing=tuple(Missing(name, later) for name in names)))
    assert both.missing == (Missing("three", later), Missing("four", later))
    assert joined(before, results(outcome("three"))).missing == ()
    assert joined(before, results(outcome("one"))).missing == before.missing


def test_a_write_that_is_interrupted_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.json"
    write_results(results(outcome("one")), path)

    def interrupted(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:20])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_bytes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_results(results(outcome("two")), path)
    assert read_results(path) == results(outcome("one"))
    assert [file.name for file in tmp_path.iterdir()] == ["r.json"]


def test_the_host_is_this_one() -> None:
    host = this_host()
    assert host.cores >= 1
    assert all((host.cpu, host.system, host.torch, host.python, host.plait))


def refused(path: Path) -> str:
    with pytest.raises(SpecError) as error:
        read_results(path)
    return str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    assert refused(path) == f"no results of the lab at {path}: plait lab --all -o {tmp_path} writes them"


def test_a_file_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text('{"format": "plait-run", "version": 1}')
    assert refused(path) == f"{path} is not results of the lab: its format is 'plait-run', not 'plait-lab'"


def test_a_file_of_another_version(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text('{"format": "plait-lab", "version": 9}')
    assert refused(path) == (
        f"{path} is of format version 9, but this Plait reads version 1: run plait lab --all -o {tmp_path} again"
    )


@pytest.mark.parametrize("damage", [b'{"format": "plait-lab", "version": 1', b'{"format": "plait-lab", "version": 1}'])
def test_a_file_that_was_cut_off(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "results.json"
    path.write_bytes(damage)
    said = refused(path)
    assert said.startswith(f"{path} is corrupt ({len(damage)} bytes): ")
    assert said.endswith(f"; run plait lab --all -o {tmp_path} again")
