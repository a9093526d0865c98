"""``plait validate``: the tables that come with Plait, tables of one's own, and what cannot be compared."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner, Result

from plait.cli.main import app
from plait.validator.validate import table_paths

KEYS = {"table", "rows", "calibrated_on", "mean_abs_error_pct", "worst_pct", "regret_pct"}
TABLE = "megatron2021_table1"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments], env={"COLUMNS": "100", "NO_COLOR": "1"})


def test_the_json() -> None:
    done = run("validate", TABLE, "--json")
    assert done.exit_code == 0, done.stderr
    (table,) = json.loads(done.stdout)["tables"]
    assert set(table) >= KEYS
    assert (table["table"], table["rows"]) == (TABLE, 10)
    assert 0 < table["mean_abs_error_pct"] <= table["worst_pct"]


def test_row_by_row() -> None:
    done = run("validate", TABLE)
    assert done.exit_code == 0, done.stderr
    assert "1008.0B on 3072" in done.stdout
    assert "published   predicted" in done.stdout


def test_a_table_of_ones_own_is_known_by_its_columns(tmp_path: Path) -> None:
    known = next(path for path in table_paths() if path.stem == TABLE)
    lines = known.read_text().splitlines()
    (tmp_path / "mine.csv").write_text("\n".join(lines[:-7]))
    (table,) = json.loads(run("validate", tmp_path / "mine.csv", "--json").stdout)["tables"]
    assert table["table"] == "mine"
    assert table["rows"] == 3


def test_a_page_for_the_docs(tmp_path: Path) -> None:
    out = tmp_path / "validation.md"
    done = run("validate", TABLE, "-o", out)
    assert done.exit_code == 0, done.stderr
    assert done.stdout == ""
    assert out.read_text().startswith("# Published runs")


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    done = run("validate", "megatron2021_table")
    assert done.exit_code == 2
    assert done.stderr == (
        "error: unknown table 'megatron2021_table' (did you mean 'megatron2021_table1'?); a file of your own ends in "
        ".csv\n"
    )
    assert run("validate", "nothere.csv").stderr == "error: table nothere.csv: no such file\n"
    (tmp_path / "odd.csv").write_text("a,b\n1,2\n")
    assert run("validate", tmp_path / "odd.csv").stderr.startswith(
        f"error: table {tmp_path / 'odd.csv'} has columns of no table that Plait knows; nearest is "
    )
