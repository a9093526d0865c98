"""What lies in memory over a training step, against the published counts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.costs.protocol import FixedCosts, FixedMemory, Held
from plait.plans.action import Action, Kind
from plait.plans.layout import Layout, Stage
from plait.plans.round import MicroBatch, Round, Row
from plait.schedules.generation import make_round
from plait.simulator.memory import memory_over_time, peak_bytes, with_memory
from plait.simulator.simulate import simulate
from plait.timeline.memory import used_at
from tests.simulator.training_rounds import TINY, make_step, seconds_of, work_of

UNIT = 1000
SCHEDULES = [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 3), ("zb-h1", 1), ("zb-h2", 1), ("zb-v", 2)]


def peaks(schedule: str, positions: int, micro_batches: int, virtual: int = 1, weight_share: int = 0) -> list[float]:
    """The most that each position holds, in activations of a micro-batch in one stage."""
    layout, one = make_step(schedule, positions, micro_batches, virtual)
    stages = len(layout.stages)
    timeline = simulate(layout, [one], FixedCosts(kind_seconds=seconds_of(stages)), TINY)
    left = {stage: Held(UNIT - weight_share, weight_share) for stage in range(stages)}
    curves = memory_over_time(timeline, [one], layout, FixedMemory(left=left))
    assert all(curve.used_bytes[-1] == 0 for curve in curves.values())
    return [curve.peak_bytes / UNIT for curve in curves.values()]


@pytest.mark.parametrize(("positions", "micro_batches"), [(1, 1), (4, 2), (4, 12)])
def test_1f1b_holds_as_many_as_stages_follow(positions: int, micro_batches: int) -> None:
    """min(m, p − i): arXiv 2104.04473, section 2.2."""
    assert peaks("1f1b", positions, micro_batches) == [min(micro_batches, positions - i) for i in range(positions)]


def test_gpipe_holds_all() -> None:
    """m: arXiv 1811.06965."""
    assert peaks("gpipe", 4, 7) == [7.0] * 4


def test_interleaved_holds_more() -> None:
    """p (1 + (p − 1) ÷ (p v)) micro-batches at the first, each of v stages: arXiv 2205.05198, section 4.2.3."""
    p, v = 4, 2
    assert peaks("interleaved", p, 12, v)[0] == pytest.approx(p * v * (1 + (p - 1) / (p * v)))


def test_zb_h1_holds_no_more_than_1f1b() -> None:
    """p: arXiv 2401.10241, table 2. All of it until W, as there."""
    assert peaks("zb-h1", 4, 12, weight_share=UNIT) == [4.0] * 4


def test_zb_h2_holds_about_twice_as_much() -> None:
    """2 p − 1: the same table."""
    assert peaks("zb-h2", 4, 12, weight_share=UNIT) == [7.0] * 4


def test_what_the_gradient_of_the_input_frees() -> None:
    """Half is free after I: a stage of zb-h1 that does its W late holds half of a micro-batch meanwhile."""
    whole, half = peaks("zb-h1", 4, 12, weight_share=UNIT), peaks("zb-h1", 4, 12, weight_share=UNIT // 2)
    assert half[0] == whole[0]
    assert half[3] == 1.0 + 3 * 0.5


def test_a_curve_by_hand() -> None:
    """F 0-1 leaves 30 until I and 10 until W, and needs 5 while it runs; I 1-2 recomputes 100; W 2-3; O 3-4 needs 7."""
    kinds = (Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT, Kind.OPTIMIZER)
    one = Round(0, work_of(1), (tuple(Action(0, 0, kind, 0) for kind in kinds),))
    layout = Layout({"dp": 1}, (Stage((0, 1), (0,)),))
    seconds = dict.fromkeys([(0, kind) for kind in kinds], 1.0)
    working = {(0, Kind.FORWARD): 5, (0, Kind.BACKWARD_INPUT): 100, (0, Kind.OPTIMIZER): 7}
    memory = FixedMemory({0: 1000}, {0: Held(30, 10)}, working)
    timeline = simulate(layout, [one], FixedCosts(kind_seconds=seconds), TINY)
    curve = memory_over_time(timeline, [one], layout, memory)[0]
    assert curve.times_s.tolist() == [0, 1, 1, 2, 2, 3, 3, 4]
    assert curve.used_bytes.tolist() == [1045, 1040, 1140, 1010, 1010, 1000, 1007, 1000]
    assert curve.peak_bytes == peak_bytes({0: curve}) == 1140
    assert [curve.at(moment) for moment in (-1.0, 0.5, 1.5, 9.0)] == [1000, 1045, 1140, 1000]


def test_a_cut_backward_frees_part_by_part() -> None:
    backwards = [Action(0, 0, Kind.BACKWARD, 0, part) for part in range(3)]
    one = Round(0, work_of(1), ((Action(0, 0, Kind.FORWARD, 0), *backwards),))
    layout = Layout({"dp": 1}, (Stage((0, 1), (0,)),))
    timeline = simulate(layout, [one], FixedCosts(kind_seconds=seconds_of(1)), TINY)
    curve = memory_over_time(timeline, [one], layout, FixedMemory(left={0: Held(50, 50)}))[0]
    assert curve.used_bytes.tolist() == [100, 100, 100, 67, 67, 34, 34, 0]


def test_ranks_of_several_stages_hold_all_of_them() -> None:
    layout, one = make_step("zb-v", 2, 1, 2, ranks_each=2)
    memory = FixedMemory({0: 1, 1: 10, 2: 100, 3: 1000})
    curves = memory_over_time(simulate(layout, [one], FixedCosts(), TINY), [one], layout, memory)
    assert {rank: curve.static_bytes for rank, curve in curves.items()} == {0: 1001, 1: 1001, 2: 110, 3: 110}


def test_generation_holds_weights_and_cache_and_what_it_works_with() -> None:
    layout = Layout({"pp": 2}, (Stage((0, 2), (0,)), Stage((2, 4), (1,))))
    one = make_round(0, 2, (MicroBatch((Row(0, 0, 0, 64, True),)),))
    timeline = simulate(layout, [one], FixedCosts({0: 1.0, 1: 1.0}), TINY)
    memory = FixedMemory({0: 500, 1: 600}, working={(1, Kind.FORWARD): 50})
    curves = memory_over_time(timeline, [one], layout, memory)
    assert [curve.peak_bytes for curve in curves.values()] == [500, 650]


def test_nothing_ran_nothing_is_known() -> None:
    assert peak_bytes({}) == 0


@given(
    st.sampled_from(
        [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 3), ("zb-h1", 1), ("zb-h2", 1), ("zb-v", 2)]
    ),
    st.integers(1, 4),
    st.integers(1, 7),
    st.integers(0, UNIT),
)
@settings(max_examples=60, deadline=None)
def test_all_is_given_back_and_a_split_backward_holds_no_more_than_until_its_end(
    schedule: tuple[str, int], positions: int, micro_batches: int, weight_share: int
) -> None:
    name, virtual = schedule
    until_weight = peaks(name, positions, micro_batches, virtual, UNIT)
    some = peaks(name, positions, micro_batches, virtual, weight_share)
    assert all(1.0 <= few <= most for few, most in zip(some, until_weight, strict=True))


def test_the_picture_at_the_top_of_the_module() -> None:
    """1F1B, stage 0 of 3, 4 micro-batches, one unit a forward and a backward: as a track of a timeline."""
    layout, one = make_step("1f1b", 3, 4)
    costs = FixedCosts(dict.fromkeys(range(3), 1.0), kind_seconds={(s, Kind.BACKWARD): 1.0 for s in range(3)})
    timeline = simulate(layout, [one], costs, TINY)
    memory = FixedMemory({0: 10}, {stage: Held(1) for stage in range(3)})
    track = with_memory(timeline, memory_over_time(timeline, [one], layout, memory), {0: 20}).memory[0]
    held = [used_at(track, moment + 0.5) - 10 for moment in range(12)]
    #               F0 F1 F2       B0 F3 B1    B2    B3
    assert held == [1, 2, 3, 3, 3, 3, 3, 3, 2, 2, 1, 1]
    assert (track.limit_bytes, track.base_bytes) == (20, 0)
