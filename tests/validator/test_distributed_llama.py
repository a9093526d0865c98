"""distributed-llama's tables: kilobytes to the last one, and a token's time from few rows."""

from __future__ import annotations

from pathlib import Path

import pytest

import plait.validator
from plait.errors import SpecError
from plait.validator.distributed_llama import (
    CALIBRATIONS,
    COLUMNS,
    SPEED,
    TRANSFER,
    is_calibrated,
    nonnegative_fit,
    profiles,
    read_row,
    validate,
)
from plait.validator.distributed_llama_model import SPECS, Profile, exchanged, kilobytes, predict
from plait.validator.table import Record, read_records

TABLES = Path(plait.validator.__file__).parent / "tables"


def records(name: str) -> list[Record]:
    return read_records(TABLES / f"{name}.csv")


@pytest.mark.parametrize("name", [SPEED, TRANSFER])
def test_columns_are_there(name: str) -> None:
    assert set(COLUMNS[name]) <= set(records(name)[0])


@pytest.mark.parametrize(
    ("nodes", "buffer", "total"), [(2, "F32", 2048), (4, "F32", 6144), (8, "F32", 14336), (8, "Q80", 3808)]
)
def test_the_formula_of_the_readme(nodes: int, buffer: str, total: int) -> None:
    """Llama 3 8B: kB = 2L × 2(n − 1) × hidden × bytes ÷ 1024, L = 32, hidden = 4096."""
    assert sum(kilobytes("0.11 (Dec 2024)", SPECS["Llama 3 8B"], nodes, buffer)) == total


def test_kilobytes_of_a_version_between() -> None:
    """b4rtaz/distributed-llama pull request 64, column "0.5.0": with 2 machines and with 4."""
    spec = SPECS["Llama 3 8B"]
    assert kilobytes("0.7.0", spec, 2, "Q80") == (510, 442)
    assert kilobytes("0.7.0", spec, 4, "Q80") == (1887, 867)
    assert kilobytes("PR64", spec, 2, "Q80") == (272, 272)


def test_kilobytes_of_a_line_of_the_speed_table() -> None:
    """Its note: S 2295 kB, R 714 kB."""
    assert kilobytes("early 2024", SPECS["Llama 3 8B"], 4, "Q80") == (2295, 714)


def test_one_machine_sends_nothing() -> None:
    for version in ("0.1.0", "0.7.0", "0.11"):
        assert kilobytes(version, SPECS["Llama 2 7B"], 1, "Q80") == (0, 0)


def test_every_kilobyte_of_the_table() -> None:
    found = validate(TRANSFER, records(TRANSFER))
    assert [(one.quantity, len(one.rows)) for one in found] == [
        ("kB a token", 21),
        ("kB sent by the root", 15),
        ("kB received by the root", 15),
    ]
    assert [one.worst_pct for one in found] == [0.0, 0.0, 0.0]


def test_time_a_token() -> None:
    (found,) = validate(SPEED, records(SPEED))
    judged = {row.name for row in found.judged}
    assert judged == {
        "0.3.1, Llama 3 8B, 2 machines",
        "0.3.1, Llama 3 8B, 4 machines",
        "0.6.0, Llama 3 8B, 4 machines",
        "0.7.0, TinyLlama 1.1B, 2 machines",
        "PR64, TinyLlama 1.1B, 2 machines",
    }
    assert found.worst_pct < 5
    assert max(abs(row.error_pct) for row in found.rows) < 5
    assert found.regret_pct == 0
    assert found.note == (
        "best number of machines right in 5 of 5 series; 2 hold rows not fitted on; "
        "in all of them the most machines are the fastest"
    )


def test_regret_of_a_wrong_choice() -> None:
    """Were four machines slower than two, the model would still choose them: one of five series is wrong."""
    lines = records(SPEED)
    for line in lines:
        if (line["version"], line["model"], line["nodes"]) == ("0.3.1", "Llama 3 8B", "4"):
            line["total_ms"] = "888.54"
    (found,) = validate(SPEED, lines)
    assert found.regret_pct == pytest.approx((888.54 / 444.27 - 1) * 100 / 5)
    assert found.note == "best number of machines right in 4 of 5 series; 2 hold rows not fitted on"


def test_versions_with_one_row_predict_nothing() -> None:
    (found,) = validate(SPEED, records(SPEED))
    assert all(row.calibrated for row in found.rows if row.name.startswith(("0.1.0", "early 2024")))
    assert "0.1.0: Llama 2 7B on 1" in found.calibrated_on
    assert "0.6.0: Llama 3 8B on 2, with the latency of 0.7.0" in found.calibrated_on


def test_rows_that_are_predicted_are_not_looked_at() -> None:
    """A row that is not named may say what it likes: the profiles stay."""
    rows = [read_row(record) for record in records(SPEED)]
    changed = [row if is_calibrated(row, rows) else row._replace(compute_s=9.0, network_s=9.0) for row in rows]
    assert rows != changed
    assert profiles(rows) == profiles(changed)


def test_a_version_never_heard_of() -> None:
    """Fitted on its first row, or of three and more on the two with the fewest machines."""
    rows = [read_row(record)._replace(version="0.99") for record in records(SPEED) if record["version"] == "0.3.1"]
    assert [is_calibrated(row, rows) for row in rows] == [True, True, False, False, False, False]
    assert [is_calibrated(row, rows[:2]) for row in rows[:2]] == [True, False]


def test_calibrated_rows_are_in_the_table() -> None:
    there = {(row.version, row.model, row.nodes) for row in map(read_row, records(SPEED))}
    for version, calibration in CALIBRATIONS.items():
        assert {(version, *row) for row in calibration.rows} <= there


def test_a_fit_finds_what_it_was_made_from() -> None:
    """Rows made by a profile give it back, and the row that is left out is met exactly."""
    made = Profile(1e10, 1.0, 3e-7, 0.25, 2e-4)
    lines = []
    for model, nodes in (("Llama 3 8B", 2), ("Llama 3 8B", 4), ("TinyLlama 1.1B", 2)):
        milli = [1e3 * seconds for seconds in predict(made, "PR64", SPECS[model], nodes)]
        figures = {"total_ms": sum(milli), "compute_ms": milli[0], "network_ms": milli[1]}
        lines.append(
            {"version": "PR64", "model": model, "sync_buffer": "Q80", "nodes": str(nodes)}
            | {name: repr(value) for name, value in figures.items()}
        )
    found = profiles([read_row(line) for line in lines])["PR64"]
    assert (found.bandwidth, found.alone_s) == pytest.approx((1e10, 3e-7))
    assert (found.lag, found.latency_s) == pytest.approx((0.25, 2e-4))
    assert validate(SPEED, lines)[0].worst_pct == pytest.approx(0, abs=1e-6)


def test_more_machines_wait_for_more_messages() -> None:
    """Latency: 2 waits a layer for each worker; wire: 1,632 kB less 544 kB."""
    spec = SPECS["Llama 3 8B"]
    two, four = (predict(Profile(1e10, latency_s=1e-3), "PR64", spec, nodes).network_s for nodes in (2, 4))
    assert exchanged("PR64", spec, 2).waits == 2
    assert four - two == pytest.approx(2 * 32 * 2 * 1e-3 + (1632 - 544) * 1024 / 125e6)


def test_nonnegative_fit() -> None:
    assert nonnegative_fit([[1.0, 0.0], [1.0, 1.0]], [2.0, 5.0]) == pytest.approx((2.0, 3.0))
    assert nonnegative_fit([[1.0, 0.0], [1.0, 1.0]], [4.0, 2.0]) == pytest.approx((3.0, 0.0))
    assert nonnegative_fit([[1.0], [1.0]], [-1.0, -1.0]) == (0.0,)


def line(**changes: str) -> Record:
    return {**records(SPEED)[0], **changes}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model": "Llama 3 9B"},
            "no model 'Llama 3 9B' in the tables of distributed-llama: did you mean 'Llama 3 8B'?",
        ),
        ({"total_ms": "fast"}, "total_ms is 'fast', but must be a number above 0"),
        ({"compute_ms": "0"}, "compute_ms is '0', but must be a number above 0"),
        ({"network_ms": "-1"}, "network_ms is '-1', but must be a number from 0 on"),
        ({"nodes": "1.5"}, "nodes is '1.5', but must be a whole number from 1 to 1,024"),
    ],
)
def test_bad_lines(changes: dict[str, str], message: str) -> None:
    with pytest.raises(SpecError) as raised:
        validate(SPEED, [line(**changes)])
    place = ", ".join(f"{column} {text}" for column, text in list(line(**changes).items())[:4])
    assert str(raised.value) == f"the row {place}: {message}"
