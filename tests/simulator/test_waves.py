"""The planner's quick replay against the engine, where links never queue."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.costs.protocol import FixedCosts, LinkCost
from plait.plans.action import Kind
from plait.plans.layout import Layout, Stage
from plait.plans.split import Split, TrainingSetup
from plait.schedules.order import Order, loop, v_shape
from plait.schedules.step import make_training_round, sequences
from plait.schedules.training import ONE_STAGE, TRAINING_SCHEDULES, V_SHAPED, compute_order
from plait.simulator.simulate import simulate
from plait.simulator.waves import even_run, replay
from plait.spec.model import ModelSpec
from plait.timeline.timeline import Timeline

TINY = ModelSpec("tiny", "llama", 4, 64, 4, 2, 16, 128, 100, 512, 1e-5, None, (None,) * 4)


def layout_of(order: Order, capacity: int = 1000) -> Layout:
    of = {stage: position for position, held in enumerate(order.placement) for stage in held}
    stages = (Stage((s, s + 1), (of[s],), host=f"host-{of[s]}") for s in range(len(of)))
    return Layout({"pp": order.positions}, tuple(stages), capacity)


def simulated(order: Order, forward_s: float, input_s: float, weight_s: float, hand_over_s: float) -> Timeline:
    layout = layout_of(order)
    virtual = order.stages // order.positions
    setup = TrainingSetup(Split(pp=order.positions), order.schedule, 1, order.micro_batches, virtual=virtual)
    one = make_training_round(0, layout, setup, sequences(order.micro_batches, 1, 8))
    of_kind = {
        Kind.FORWARD: forward_s,
        Kind.BACKWARD: input_s + weight_s,
        Kind.BACKWARD_INPUT: input_s,
        Kind.BACKWARD_WEIGHT: weight_s,
    }
    seconds = {(stage, kind): took for stage in range(order.stages) for kind, took in of_kind.items()}
    costs = FixedCosts(kind_seconds=seconds, any_link=LinkCost(hand_over_s, float("inf")))
    return simulate(layout, [one], costs, TINY)


@st.composite
def orders(draw: st.DrawFn) -> Order:
    schedule = draw(st.sampled_from(TRAINING_SCHEDULES))
    virtual = 2 if schedule in V_SHAPED else 1 if schedule in ONE_STAGE else draw(st.integers(1, 3))
    return compute_order(schedule, draw(st.integers(1, 6)), virtual, draw(st.integers(1, 14)))


near_one = st.floats(0.75, 1.25)


@settings(max_examples=60)
@given(orders(), near_one, near_one, near_one, st.floats(0, 0.3))
def test_equal_to_the_engine_where_links_never_queue(
    order: Order, forward_s: float, input_s: float, weight_s: float, hand_over_s: float
) -> None:
    """Begin, end and busy time of every position. Links are wide, and hold all messages."""
    found = replay([even_run(order, forward_s, input_s, weight_s, hand_over_s)])[0]
    timeline = simulated(order, forward_s, input_s, weight_s, hand_over_s)
    assert timeline.makespan_s == pytest.approx(found.makespan_s, rel=1e-9)
    for position in range(order.positions):
        spans = [s for s in timeline.spans if s.rank == position and s.action.kind.value in "FBIW"]
        assert min(s.start_s for s in spans) == pytest.approx(found.begin_s[position], abs=1e-9)
        assert max(s.end_s for s in spans) == pytest.approx(found.end_s[position], rel=1e-9)
        assert sum(s.end_s - s.start_s for s in spans) == pytest.approx(found.busy_s[position], rel=1e-9)


def test_figures_of_a_step_by_hand() -> None:
    """Two stages, two micro-batches, F = 1, B = 2, hand-over 0.5. When each begins and ends:

    stage 0   F0 0 to 1       F1 1 to 2         B0 5 to 7         B1 8 to 10
    stage 1   F0 1.5 to 2.5   B0 2.5 to 4.5     F1 4.5 to 5.5     B1 5.5 to 7.5
    """
    found = replay([even_run(compute_order("1f1b", 2, 1, 2), 1, 1, 1, 0.5)])[0]
    assert found.begin_s.tolist() == [0, 1.5]
    assert found.end_s.tolist() == [10, 7.5]
    assert found.busy_s.tolist() == [6, 6]
    assert found.makespan_s == 10
    assert found.longest_span_s == 10
    assert found.bubble == pytest.approx(1 - 12 / 20)


def test_the_bubble_of_equal_stages_is_the_formula() -> None:
    """(p − 1) ÷ (v m + p − 1), as the design has it."""
    for schedule, virtual in (("gpipe", 1), ("1f1b", 1), ("interleaved", 3)):
        found = replay([even_run(compute_order(schedule, 4, virtual, 8), 1, 1.2, 0.8)])[0]
        assert found.bubble == pytest.approx(3 / (virtual * 8 + 3), rel=1e-12)


def test_hand_overs_inside_a_position_are_free() -> None:
    alone = replay([even_run(compute_order("zb-v", 1, 2, 3), 1, 1, 1, 100.0)])[0]
    assert alone.makespan_s == 18
    assert (v_shape(1), loop(1, 2)) == (((0, 1),), ((0, 1),))
