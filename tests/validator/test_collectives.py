"""All-reduce fits: exact where the model is, within the promised bound on the published table, judged on other rows."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from plait.validator.collectives import COLUMNS, chosen_points, validate
from plait.validator.table import Record, read_records

TABLE = Path(str(files("plait.validator") / "tables" / "vtrain_nccl_allreduce.csv"))
SIZES = tuple(2**power for power in range(20, 31))


def table(seconds_of: dict[tuple[str, int], tuple[float, float]]) -> list[Record]:
    """Rows of machines with exactly one latency and one bandwidth."""
    return [
        {
            "gpu": gpu,
            "n_gpus": str(ranks),
            "size_bytes": str(size),
            "out_of_place_us": repr(1e6 * (2 * (ranks - 1) * (latency + size / ranks / bandwidth))),
        }
        for (gpu, ranks), (latency, bandwidth) in seconds_of.items()
        for size in SIZES
    ]


def test_a_machine_of_one_latency_and_one_bandwidth_is_found_exactly() -> None:
    records = table({("a", 2): (5e-6, 200e9), ("a", 8): (3e-6, 150e9), ("b", 3): (1e-5, 1e9)})
    for validation in validate("made", records):
        assert len(validation.rows) == 33
        assert validation.worst_pct < 1e-6


def test_a_wrong_measurement_is_seen() -> None:
    records = table({("a", 4): (5e-6, 200e9)})
    records[5]["out_of_place_us"] = repr(2 * float(records[5]["out_of_place_us"]))
    for validation in validate("made", records):
        assert validation.worst_pct == pytest.approx(50)
        assert [row.name for row in validation.rows if abs(row.error_pct) > 1] == ["a × 4 32.0 MiB"]


def test_the_published_table() -> None:
    """154 rows; two figures or a curve of four points for each of 14 series; below 6 % mean on the rows left."""
    line, curve = validate("vtrain_nccl_allreduce", read_records(TABLE))
    assert (len(line.rows), len(line.judged), len(curve.judged)) == (154, 126, 98)
    assert line.mean_abs_error_pct < 6
    assert curve.mean_abs_error_pct < 3
    assert not any(row.calibrated for row in line.judged)
    assert all(abs(row.error_pct) < 1e-6 for row in (*line.rows, *curve.rows) if row.calibrated)


def test_which_rows_are_fitted() -> None:
    points = [(float(size), 1.0) for size in SIZES]
    mebi = [size / 2**20 for size, _ in chosen_points(points, few=False)]
    assert mebi == [1, 4, 16, 1024]
    assert [size / 2**20 for size, _ in chosen_points(points, few=True)] == [1, 1024]
    assert chosen_points(points[:1], few=False) == points[:1]
    from_bytes = [(float(2**power), 1.0) for power in range(3, 34)]
    assert [size for size, _ in chosen_points(from_bytes, few=False)] == [8, 2**20, 2**22, 2**24, 2**33]


def test_columns_are_those_of_the_table() -> None:
    assert set(read_records(TABLE)[0]) >= COLUMNS
