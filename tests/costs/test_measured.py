"""A calibration answers as it was measured, and goes to a file and back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from plait.costs.calibration import Calibration, Setting, Together, read, write
from plait.costs.curves import Curve, Grid
from plait.costs.exchange_times import ExchangeTimes
from plait.costs.measured import Kernel, MeasuredCosts
from plait.costs.protocol import LinkCost, Running
from plait.errors import PlanError
from plait.plans.action import Kind
from plait.plans.exchanges import Collective, Op, forward_bytes, forward_exchanges
from plait.plans.layout import Layout, Stage
from plait.plans.round import MicroBatch, Row
from plait.spec.model import ModelSpec, Rope

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
SPEC = ModelSpec("m", "llama", 30, 576, 9, 3, 64, 1536, 1000, 4096, 1e-5, Rope(10_000.0, 64), (None,) * 30)
COSTS = MeasuredCosts(SPEC, {Kernel("float32", "float32", 1): CALIBRATION}, LinkCost(1e-5, 1e9))
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


GROUPS = Layout(
    {"pp": 2, "tp": 2}, (Stage((0, 20), (0, 1), shares=(5, 4)), Stage((20, 30), (2, 3), shares=(5, 4))), sequence=True
)
TIMES = ExchangeTimes(*(Curve((0.0, 1e6), (seconds, seconds + 1e3)) for seconds in (1.0, 2.0, 3.0)))
SHARED = Kernel("float32", "float32", 1, 2, (5, 4), sequence=True)


def of_groups(layout: Layout) -> MeasuredCosts:
    kernel = Kernel.of(layout, 0)
    return MeasuredCosts(SPEC, {kernel: CALIBRATION}, LinkCost(1e-5, 1e9), {kernel: TIMES})


def test_a_tensor_group_is_a_kernel_of_its_own() -> None:
    assert Kernel.of(GROUPS, 1) == SHARED
    assert Kernel.of(replace(GROUPS, sequence=False), 0) == SHARED._replace(sequence=False)
    alone = replace(LAYOUT, stages=tuple(replace(stage, shares=(1,)) for stage in LAYOUT.stages), sequence=True)
    assert Kernel.of(alone, 0) == Kernel("float32", "float32", 1)


def test_seconds_of_exchanges_by_their_bytes() -> None:
    """By hand, 1 ms a byte: sums of 2000 and 1000, a gather of 500."""
    found = [
        Collective(Op.ALL_REDUCE, 10, 50, 4),
        Collective(Op.REDUCE_SCATTER, 10, 50, 2),
        Collective(Op.ALL_GATHER, 5, 50, 2),
    ]
    assert TIMES.seconds(found) == pytest.approx((1.0 + 2.0) + (2.0 + 1.0) + (3.0 + 0.5))


def test_ranks_of_a_group_compute_together_and_exchange_in_between() -> None:
    """By hand, without sequence: two ranks take 1.2 × as long; a sum is 1 + 576 × 4 ÷ 1000 s, 20 layers and the entry
    have 41. On the last stage 9 layers, an entry that gathers, two sums and a gather of two candidates of 16 bytes.
    """
    layout = replace(GROUPS, sequence=False)
    costs = of_groups(layout)
    summed, gathered, candidates = 3.304, 5.304, 3.032
    one = decoding(1024)
    within = [41 * summed, gathered + 18 * summed + 2 * summed + candidates]
    inside = [costs.exchange(layout, stage, one, Kind.FORWARD) for stage in (0, 1)]
    assert [each.seconds for each in inside] == pytest.approx(within)
    assert [each.by_rank(2) for each in inside] == [forward_bytes(SPEC, layout, stage, one) for stage in (0, 1)]
    alone = [CALIBRATION.forward_s(one, 20, is_last=False), CALIBRATION.forward_s(one, 10, is_last=True)]
    slower = CALIBRATION.slowdown(2, 1)
    assert slower == 1.2
    found = [costs.compute_s(layout, stage, one) for stage in (0, 1)]
    assert found == pytest.approx([slower * seconds + more for seconds, more in zip(alone, within, strict=True)])


def test_with_sequence_ranks_may_send_unequal_bytes() -> None:
    costs = of_groups(GROUPS)
    odd = decoding(*[64] * 3)
    found = costs.exchange(GROUPS, 0, odd, Kind.FORWARD)
    assert found.by_rank(2) == forward_bytes(SPEC, GROUPS, 0, odd)
    assert len(set(found.by_rank(2))) == 2
    assert found.seconds == pytest.approx(TIMES.seconds(forward_exchanges(SPEC, GROUPS, 0, odd)))
    with pytest.raises(PlanError, match=r"never backward \(B\)"):
        costs.exchange(GROUPS, 0, odd, Kind.BACKWARD)


def test_ranks_of_a_group_slow_each_other_down_once() -> None:
    """Alone a group goes as fast as `compute_s` says; beside another of two ranks, four ranks share the cores."""
    costs = of_groups(GROUPS)
    assert costs.speeds(GROUPS, [Running(0, 1)]) == (1.0,)
    four = CALIBRATION.slowdown(4, 1)
    assert costs.speeds(GROUPS, [Running(0, 1), Running(1, 1)]) == pytest.approx([1.2 / four] * 2)


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
