"""The planner's quick replay against the engine, where links never queue."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.costs.protocol import FixedCosts, LinkCost
from plait.plans.action import Kind
from plait.plans.layout import Layout, Stage
from plait.plans.round import Round
from plait.plans.rules import positions_by_stage
from plait.plans.split import Split, TrainingSetup
from plait.schedules.order import Order, loop, v_shape
from plait.schedules.step import make_training_round, sequences
from plait.schedules.training import ONE_STAGE, TRAINING_SCHEDULES, V_SHAPED, compute_order
from plait.simulator.simulate import simulate
from plait.simulator.waves import Run, even_run, replay
from plait.timeline.timeline import Timeline
from tests.simulator.training_rounds import TINY, around


def layout_of(order: Order) -> Layout:
    of = positions_by_stage(order.placement)
    stages = (Stage((s, s + 1), (of[s],), host=f"host-{of[s]}") for s in range(len(of)))
    return Layout({"pp": order.positions}, tuple(stages), 1000)


def plain_round(order: Order) -> Round:
    """Every message received right before what needs it, and sent right after what makes it."""
    of = positions_by_stage(order.placement)
    made = (tuple(each for action in lane for each in around(action, order.stages, of)) for lane in order.actions())
    return Round(0, sequences(order.micro_batches, 1, 8), tuple(made))


def lowered_round(order: Order) -> Round:
    virtual = order.stages // order.positions
    setup = TrainingSetup(Split(pp=order.positions), order.schedule, 1, order.micro_batches, virtual=virtual)
    return make_training_round(0, layout_of(order), setup, sequences(order.micro_batches, 1, 8))


def simulated(run: Run, one: Round) -> Timeline:
    """The engine's timeline, on links that are all alike, wide, and hold all messages."""
    seconds: dict[tuple[int, Kind], float] = {}
    for stage in range(run.order.stages):
        seconds[stage, Kind.FORWARD] = run.forward_s[stage]
        seconds[stage, Kind.BACKWARD_INPUT] = run.input_s[stage]
        seconds[stage, Kind.BACKWARD_WEIGHT] = run.weight_s[stage]
        seconds[stage, Kind.BACKWARD] = run.input_s[stage] + run.weight_s[stage]
    hand_over_s = max((*run.onward_s, *run.back_s), default=0.0)
    costs = FixedCosts(kind_seconds=seconds, any_link=LinkCost(hand_over_s, float("inf")))
    return simulate(layout_of(run.order), [one], costs, TINY)


@st.composite
def orders(draw: st.DrawFn) -> Order:
    schedule = draw(st.sampled_from(TRAINING_SCHEDULES))
    virtual = 2 if schedule in V_SHAPED else 1 if schedule in ONE_STAGE else draw(st.integers(1, 3))
    return compute_order(schedule, draw(st.integers(1, 5)), virtual, draw(st.integers(1, 12)))


def drawn_run(data: st.DataObject, order: Order) -> Run:
    """Any seconds of any stage; hand-overs alike."""
    of_stage = st.lists(st.floats(0.1, 3), min_size=order.stages, max_size=order.stages)
    between = [data.draw(st.floats(0, 2))] * (order.stages - 1)
    return Run(order, data.draw(of_stage), data.draw(of_stage), data.draw(of_stage), between, between)


@settings(max_examples=40)
@given(orders(), st.data())
def test_equal_to_the_engine_where_links_never_queue(order: Order, data: st.DataObject) -> None:
    """Begin, end and busy time of every position, whatever the stages take."""
    run = drawn_run(data, order)
    found, timeline = replay([run])[0], simulated(run, plain_round(order))
    assert timeline.makespan_s == pytest.approx(found.makespan_s, rel=1e-9)
    for position in range(order.positions):
        spans = [s for s in timeline.spans if s.rank == position and s.action.kind.value in "FBIW"]
        assert min(s.start_s for s in spans) == pytest.approx(found.begin_s[position], abs=1e-9)
        assert max(s.end_s for s in spans) == pytest.approx(found.end_s[position], rel=1e-9)
        assert sum(s.end_s - s.start_s for s in spans) == pytest.approx(found.busy_s[position], rel=1e-9)


@settings(max_examples=40)
@given(orders(), st.floats(0, 0.125))
def test_equal_to_the_engine_on_the_step_that_is_run(order: Order, hand_over_s: float) -> None:
    """Receives are placed for equal stages and hand-overs far below F: then none keeps a send waiting.

    At a quarter of F and more, interleaved steps may take longer: by 3 % at half of F, 5 positions of 2 stages.
    """
    run = even_run(order, 1, 1, 1, hand_over_s)
    assert simulated(run, lowered_round(order)).makespan_s == pytest.approx(replay([run])[0].makespan_s, rel=1e-9)


@settings(max_examples=40)
@given(orders(), st.data())
def test_a_bound_of_the_engine_on_any_step(order: Order, data: st.DataObject) -> None:
    run = drawn_run(data, order)
    assert simulated(run, lowered_round(order)).makespan_s >= replay([run])[0].makespan_s * (1 - 1e-9)


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
