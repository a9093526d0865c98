"""GPipe's and torchgpipe's speed-ups, as far as bubbles explain them."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from plait.schedules.clock import Run, tick
from plait.schedules.closed import step_s
from plait.schedules.training import compute_order
from plait.validator.gpipe import batch_s, slowest_share, validate, validate_torchgpipe
from plait.validator.table import Validation, read_records


def found(function: object, name: str) -> dict[str, Validation]:
    assert callable(function)
    records = read_records(Path(str(files("plait.validator") / "tables" / f"{name}.csv")))
    return {each.quantity: each for each in function(name, records)}


def test_transformers_with_many_micro_batches_are_within_ten_per_cent() -> None:
    every = found(validate, "gpipe2019_tables2_3")
    first = every["Transformer, table 2, M = 32, bubbles alone"]
    assert [row.name for row in first.rows] == [f"Transformer-48, K = {parts}, M = 32" for parts in (2, 4, 8)]
    assert first.worst_pct < 10
    assert every["Transformer, table 3, M = 32, bubbles alone"].worst_pct < 5
    assert sum(len(each.rows) for each in every.values() if each.quantity.endswith("alone")) == 24 - 4


def test_a_slowest_partition_explains_torchgpipe() -> None:
    """All but K = 4, M = 4 (17 %): within 8 %. Equal partitions alone: up to 37 %."""
    every = found(validate_torchgpipe, "torchgpipe_speed")
    fitted = every["speed, smaller M, with a slowest partition"]
    assert sorted(abs(row.error_pct) for row in fitted.judged)[-2] < 8
    assert fitted.mean_abs_error_pct < every["speed, smaller M, bubbles alone"].mean_abs_error_pct / 2
    assert all(row.error_pct == pytest.approx(0) for row in fitted.rows if row.calibrated)
    assert "10 rows do not say how many micro-batches they had: left out" in fitted.note


def test_equal_partitions_are_the_closed_form() -> None:
    for parts, count in ((2, 1), (4, 4), (8, 32)):
        share_s = 1 / (3 * parts * count)
        assert batch_s(parts, count) == pytest.approx(step_s("gpipe", parts, 1, count, share_s, share_s, share_s))


def test_a_slowest_partition_is_what_the_order_takes() -> None:
    """Unequal stages in GPipe's own order."""
    shares = [0.2, 0.5, 0.3]
    for count in (1, 3, 8):
        third = [share / (3 * count) for share in shares]
        ticks = tick([Run(compute_order("gpipe", 3, 1, count), third, third, third, [0, 0], [0, 0])])[0]
        assert batch_s(3, count, 0.5) == pytest.approx(float((ticks.begin_s + ticks.seconds).max()))
    assert slowest_share(1 / batch_s(3, 32, 0.5), 32) == pytest.approx(0.5)
