"""A calibration answers as it was measured, and goes to a file and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plait.costs.calibration import Calibration, Setting, Together, read, write
from plait.costs.curves import Curve, Grid
from plait.costs.measured import Kernel, MeasuredCosts
from plait.costs.protocol import LinkCost, Running
from plait.errors import PlanError
from plait.plans.action import Kind
from plait.plans.layout import Layout, Stage
from plait.plans.round import MicroBatch, Row

SETTING = Setting("box", "a cpu", 2, "2.13", "float32", "float32", 1, "shape", 30, 8, 3)
CALIBRATION = Calibration(
    SETTING,
    decode_s=Grid((1.0, 4.0), (0.0, 1024.0), ((1.0, 2.024), (4.0, 8.096))),
    prefill_s=Grid((64.0, 512.0), (0.0, 512.0), ((10.0, 12.0), (80.0, 100.0))),
    action_s=Curve((1.0, 64.0), (0.5, 6.8)),
    head_s=Curve((1.0, 4.0), (20.0, 26.0)),
    last_s=Grid((64.0, 512.0), (0.0, 512.0), ((15.0, 16.0), (90.0, 95.0))),
    store_s=Curve((64.0, 512.0), (3.0, 24.0)),
    together=(
        Together(2, Curve((1.0, 512.0), (1.2, 1.0))),
        Together(3, Curve((1.0, 512.0), (1.8, 1.5))),
    ),
)
COSTS = MeasuredCosts(30, {Kernel("float32", "float32", 1): CALIBRATION}, LinkCost(1e-5, 1e9))
LAYOUT = Layout({"pp": 3}, tuple(Stage((10 * i, 10 * i + 10), (i,)) for i in range(3)))


def decoding(*cached: int) -> MicroBatch:
    return MicroBatch(tuple(Row(i, i, length - 1, 1, True) for i, length in enumerate(cached)))


def seconds(micro_batch: MicroBatch, layers: int = 1, *, is_last: bool = False) -> float:
    return CALIBRATION.forward_s(micro_batch, layers, is_last=is_last)


def test_decoding_at_the_mean_of_whole_blocks() -> None:
    assert seconds(decoding(512)) == pytest.approx(0.5 + 1.512)
    assert seconds(decoding(500)) == seconds(decoding(512))
    assert seconds(decoding(64, 128, 200, 256), layers=10) == pytest.approx(0.8 + 10 * (4.0 + 4 * 0.176))


def test_decoding_on_the_last_stage_adds_the_head() -> None:
    assert seconds(decoding(512), is_last=True) - seconds(decoding(512)) == pytest.approx(20.0)
    assert seconds(decoding(*[512] * 4), is_last=True) - seconds(decoding(*[512] * 4)) == pytest.approx(26.0)


def test_a_piece_of_a_prompt_by_length_and_start() -> None:
    piece = MicroBatch((Row(0, 0, 512, 64, False),))
    assert seconds(piece, layers=3) == pytest.approx(6.8 + 3 * 12.0)
    assert seconds(piece, layers=3, is_last=True) == pytest.approx(6.8 + 2 * 12.0 + 3.0)
    sampling = MicroBatch((Row(0, 0, 512, 64, True),))
    assert seconds(sampling, layers=3, is_last=True) == pytest.approx(6.8 + 2 * 12.0 + 16.0)


def test_a_mixed_micro_batch_is_the_sum() -> None:
    mixed = MicroBatch((Row(0, 0, 0, 64, False), Row(1, 1, 511, 1, True)))
    assert seconds(mixed) == pytest.approx(6.9 + 10.0 + 1.512)


def test_stages_have_what_is_theirs() -> None:
    one = decoding(1024)
    assert [COSTS.compute_s(LAYOUT, stage, one) for stage in range(3)] == pytest.approx([20.74, 20.74, 40.74])


def test_what_was_never_measured_is_refused() -> None:
    with pytest.raises(PlanError) as raised:
        COSTS.compute_s(LAYOUT, 0, decoding(1024), Kind.BACKWARD)
    assert str(raised.value) == (
        "the calibration of this host measured forward passes, and never backward (B): "
        "predict training from a device's figures instead, with a cluster file"
    )
    with pytest.raises(PlanError, match=r"never reduce_gradients \(G\)"):
        COSTS.reduce_s(LAYOUT, 0, Kind.REDUCE_GRADIENTS)


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
    write(CALIBRATION, path)
    content = json.loads(path.read_text())
    content["decode_s"]["at"] = [4.0, 1.0]
    path.write_text(json.dumps(content))
    assert read(path) is None
