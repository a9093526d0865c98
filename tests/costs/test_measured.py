"""A calibration answers as it was measured, and goes to a file and back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from plait.costs.calibration import Calibration, Setting, Together, read, write
from plait.costs.curves import Curve, Grid
from plait.costs.measured import Kernel, MeasuredCosts
from plait.costs.protocol import LinkCost, Running
from plait.plans.layout import Layout, Stage
from plait.plans.round import MicroBatch, Row

SETTING = Setting("box", "a cpu", 2, "2.13", "float32", "float32", 1, "shape", 30, 3)
CALIBRATION = Calibration(
    SETTING,
    decode_s=Grid((1.0, 4.0), (0.0, 1000.0), ((1.0, 2.0), (4.0, 8.0))),
    prefill_s=Grid((64.0, 512.0), (0.0, 512.0), ((10.0, 12.0), (80.0, 100.0))),
    action_s=Curve((1.0,), (0.5,)),
    embed_s=Curve((1.0, 64.0), (0.0, 6.3)),
    head_s=Curve((1.0, 4.0), (20.0, 26.0)),
    together=(
        Together(2, Curve((1.0, 512.0), (1.2, 1.0))),
        Together(3, Curve((1.0, 512.0), (1.8, 1.5))),
    ),
)
COSTS = MeasuredCosts(30, {Kernel("float32", "float32", 1): CALIBRATION}, LinkCost(1e-5, 1e9))
LAYOUT = Layout({"pp": 3}, tuple(Stage((10 * i, 10 * i + 10), (i,)) for i in range(3)))


def decoding(*cached: int) -> MicroBatch:
    return MicroBatch(tuple(Row(i, i, length - 1, 1, True) for i, length in enumerate(cached)))


def test_decoding_at_the_mean_cache_length() -> None:
    assert CALIBRATION.layer_s(decoding(500)) == pytest.approx(1.5)
    assert CALIBRATION.layer_s(decoding(100, 200, 300, 400)) == pytest.approx(4.0 + 1.0)


def test_prefill_by_length_and_start() -> None:
    assert CALIBRATION.layer_s(MicroBatch((Row(0, 0, 512, 64, True),))) == 12.0


def test_a_mixed_micro_batch_is_the_sum() -> None:
    mixed = MicroBatch((Row(0, 0, 0, 64, False), Row(1, 1, 0, 1, True)))
    assert CALIBRATION.layer_s(mixed) == pytest.approx(10.0 + 1.001)


def test_stages_have_what_is_theirs() -> None:
    one = decoding(1000)
    assert [COSTS.compute_s(LAYOUT, stage, one) for stage in range(3)] == [20.5, 20.5, 40.5]
    chunk = MicroBatch((Row(0, 0, 0, 64, False),))
    assert [COSTS.compute_s(LAYOUT, stage, chunk) for stage in range(3)] == pytest.approx([106.8, 100.5, 100.5])


def test_slowdown_by_how_many_run_and_what() -> None:
    assert COSTS.speeds(LAYOUT, [Running(0, 1)]) == (1.0,)
    assert COSTS.speeds(LAYOUT, [Running(0, 1), Running(1, 512)]) == pytest.approx((1 / 1.2, 1.0))
    assert COSTS.speeds(LAYOUT, [Running(i, 1) for i in range(3)]) == pytest.approx([1 / 1.8] * 3)
    assert CALIBRATION.slowdown(6, 1) == pytest.approx(3.6)  # beyond: the cores are shared as at the last count


def test_loads_are_few() -> None:
    assert [COSTS.load(LAYOUT, 0, decoding(*[9] * rows)) for rows in (1, 2, 3, 5, 8)] == [1, 2, 4, 8, 8]


def test_a_file_and_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "calibration.json"
    write(CALIBRATION, path)
    assert read(path) == CALIBRATION
    assert [entry.name for entry in path.parent.iterdir()] == ["calibration.json"]


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"[1]", b"\xff"])
def test_a_corrupt_file_is_no_calibration(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "calibration.json"
    path.write_bytes(content)
    assert read(path) is None


def test_a_file_with_axes_that_cannot_be_is_no_calibration(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    write(replace(CALIBRATION, together=()), path)
    path.write_text(
        path.read_text()
        .replace('"at": [1.0, 4.0]', '"at": [4.0, 1.0]')
        .replace("1.0,\n        4.0", "4.0,\n        1.0")
    )
    assert read(path) is None
