"""What lies in memory while a model answers, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plait.costs.generation_memory import stage_memories
from plait.costs.memory import kv_bytes, need_bytes, weights_bytes, workspace_bytes
from plait.costs.protocol import FixedCosts
from plait.plans.layout import Layout, Stage
from plait.plans.round import MicroBatch, Row
from plait.schedules.generation import make_round
from plait.simulator.generation_memory import generation_memory
from plait.simulator.memory import with_memory
from plait.simulator.simulate import simulate
from plait.timeline.timeline import MemoryTrack
from tests.simulator.training_rounds import TINY

ONE = Layout({"pp": 1}, (Stage((0, 4), (0,)),))
SECONDS = FixedCosts(dict.fromkeys(range(4), 1.0))


def rounds_of(*rows: tuple[Row, ...], stages: int = 1):
    return [make_round(number, stages, (MicroBatch(row),)) for number, row in enumerate(rows)]


def test_the_cache_fills_and_a_slot_that_is_used_again_takes_nothing_new() -> None:
    """A prompt of 3, two tokens; then another request in the same slot, of 2 and 4 positions."""
    rows = [(0, 3, True), (3, 1, True), (4, 1, True), (0, 2, True), (2, 4, False)]
    rounds = rounds_of(
        *[(Row(index // 3, 0, start, length, samples),) for index, (start, length, samples) in enumerate(rows)]
    )
    timeline = simulate(ONE, rounds, SECONDS, TINY)
    curve = generation_memory(timeline, rounds, ONE, TINY, 2, 64)[0]
    stage = ONE.stages[0]
    weights, a_position = weights_bytes(stage, TINY), kv_bytes(stage, TINY, 1, 1)
    after = [3, 4, 5, 5, 6]
    assert curve.static_bytes == weights
    assert curve.used_bytes[1::2].tolist() == [weights + count * a_position for count in after]
    working = [workspace_bytes(stage, TINY, length, int(samples), start + length) for start, length, samples in rows]
    assert (curve.used_bytes[::2] - curve.used_bytes[1::2]).tolist() == working
    assert curve.times_s.tolist() == [0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0, 5.0]


def test_other_devices_take_the_whole_cache_at_the_start() -> None:
    layout = replace(ONE, stages=(replace(ONE.stages[0], device="cuda"),))
    rounds = rounds_of((Row(0, 0, 0, 3, True),))
    curve = generation_memory(simulate(layout, rounds, SECONDS, TINY), rounds, layout, TINY, 2, 64)[0]
    whole = weights_bytes(layout.stages[0], TINY) + kv_bytes(layout.stages[0], TINY, 2, 64)
    assert (curve.static_bytes, curve.used_bytes[-1]) == (whole, whole)


def test_a_full_run_needs_what_the_check_of_capacity_says() -> None:
    """All slots to their last position, in one chunk: `need_bytes`, to the byte."""
    rounds = rounds_of((Row(0, 0, 0, 64, True), Row(1, 1, 0, 64, True)))
    curve = generation_memory(simulate(ONE, rounds, SECONDS, TINY), rounds, ONE, TINY, 2, 64)[0]
    (need,) = need_bytes(ONE, TINY, 2, 64, 128)
    stage = ONE.stages[0]
    more = workspace_bytes(stage, TINY, 128, 2, 64) - workspace_bytes(stage, TINY, 64, 2, 64)
    assert curve.peak_bytes == need.total_bytes + more


def test_every_rank_of_a_tensor_group_has_its_own_share() -> None:
    layout = Layout({"pp": 2, "tp": 2}, (Stage((0, 2), (0, 1), shares=(3, 1)), Stage((2, 4), (2, 3), shares=(3, 1))))
    rounds = rounds_of((Row(0, 0, 0, 3, True),), stages=2)
    curves = generation_memory(simulate(layout, rounds, SECONDS, TINY), rounds, layout, TINY, 1, 64)
    assert sorted(curves) == [0, 1, 2, 3]
    for number, stage in enumerate(layout.stages):
        each = stage_memories(layout, TINY, number)
        assert [curves[rank].static_bytes for rank in stage.ranks] == [one.weights_bytes for one in each]
        assert each[0].weights_bytes > each[1].weights_bytes
        assert each[0].weights_bytes == weights_bytes(stage, TINY, 2)


def test_tracks_begin_with_what_lies_there_and_keep_the_peak() -> None:
    rounds = rounds_of((Row(0, 0, 0, 3, True),), (Row(0, 0, 3, 1, True),), stages=1)
    timeline = simulate(ONE, rounds, SECONDS, TINY)
    curves = generation_memory(timeline, rounds, ONE, TINY, 1, 64)
    shown = with_memory(timeline, curves, {0: 10**9})
    assert shown.spans == timeline.spans
    curve = curves[0]
    assert shown.memory[0] == MemoryTrack(tuple(curve.times_s), tuple(curve.used_bytes), 10**9)
    assert with_memory(timeline, curves).memory[0].limit_bytes is None


@pytest.mark.parametrize("count", [10, 5000])
def test_long_runs_are_thinned_and_keep_their_peak(count: int) -> None:
    rounds = rounds_of(*[(Row(0, 0, start, 1, True),) for start in range(count)])
    timeline = simulate(ONE, rounds, SECONDS, TINY)
    curves = generation_memory(timeline, rounds, ONE, TINY, 1, count)
    track = with_memory(timeline, curves).memory[0]
    assert len(track.times_s) <= 2000
    assert max(track.used_bytes) == curves[0].peak_bytes
    assert track.used_bytes[-1] == curves[0].used_bytes[-1]
