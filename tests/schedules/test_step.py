"""A step's rounds as a reader would draw them, and free of deadlock whatever the links hold."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.errors import PlanError
from plait.plans.action import Kind
from plait.plans.check_step import check_training_round
from plait.plans.layout import Layout, Stage
from plait.plans.notation import format_actions
from plait.plans.progress import check_progress
from plait.plans.round import MicroBatch, Round, Row
from plait.plans.rules import positions_by_stage
from plait.plans.split import Split, TrainingSetup
from plait.schedules.order import Placement, loop, v_shape
from plait.schedules.passes_training import add_messages, cut_last_backwards
from plait.schedules.step import lower_step, make_training_round, sequences, training_order
from plait.schedules.training import ONE_STAGE, TRAINING_SCHEDULES, V_SHAPED


def layout_of(placement: Placement, dp: int = 1, capacity: int = 2) -> Layout:
    """A layer a stage; a position's ranks are the dp replicas."""
    of = {stage: position for position, held in enumerate(placement) for stage in held}
    stages = (Stage((s, s + 1), tuple(range(of[s] * dp, of[s] * dp + dp))) for s in range(len(of)))
    return Layout({"dp": dp, "pp": len(placement)}, tuple(stages), capacity)


def setup_of(schedule: str, placement: Placement, micro_batches: int, dp: int = 1, zero: int = 0) -> TrainingSetup:
    split = Split(dp=dp, pp=len(placement))
    return TrainingSetup(split, schedule, 1, micro_batches, virtual=len(placement[0]), zero=zero)


def drawn(schedule: str, placement: Placement, micro_batches: int, dp: int = 1, zero: int = 0, buckets: int = 1) -> str:
    setup = setup_of(schedule, placement, micro_batches, dp, zero)
    one = make_training_round(0, layout_of(placement, dp), setup, sequences(micro_batches, 1, 8), buckets)
    return "\n".join(format_actions(actions, 0) for actions in one.actions)


def picture(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())


def test_one_f_one_b_with_messages() -> None:
    """Stage 1 gets the gradient 0 before it sends F1 on: the next computation needs it, and it is there by then."""
    assert drawn("1f1b", loop(3, 1), 3) == picture(
        """
        0F0 0SF0 0F1 0SF1 0F2 0SF2 0RB0 0B0 0RB1 0B1 0RB2 0B2 0O0
        1RF0 1F0 1RF1 1SF0 1F1 1SF1 1RB0 1B0 1RF2 1SB0 1F2 1RB1 1SF2 1B1 1SB1 1RB2 1B2 1SB2 1O0
        2RF0 2F0 2B0 2RF1 2SB0 2F1 2B1 2SB1 2RF2 2F2 2B2 2SB2 2O0
        """
    )


def test_the_turn_of_a_v_sends_nothing() -> None:
    assert drawn("zb-v", v_shape(2), 1) == picture(
        """
        0F0 0SF0 3RF0 3F0 3I0 3SB0 3W0 0RB0 0I0 0W0 3O0 0O0
        1RF0 1F0 2F0 2SF0 2RB0 2I0 2W0 1I0 1SB0 1W0 2O0 1O0
        """
    )


def test_replicas_reduce_update_and_gather() -> None:
    assert drawn("gpipe", loop(1, 1), 2, dp=2) == "0F0 0F1 0B1 0B0 0G0 0O0"
    assert drawn("gpipe", loop(1, 1), 2, dp=2, zero=1) == "0F0 0F1 0B1 0B0 0G0 0O0 0A0"
    assert drawn("gpipe", loop(1, 1), 2, dp=1, zero=1) == "0F0 0F1 0B1 0B0 0O0"
    assert drawn("interleaved", loop(1, 2), 1, dp=2, zero=1) == "0F0 1F0 1B0 1G0 0B0 0G0 1O0 1A0 0O0 0A0"


def test_the_last_backward_in_buckets() -> None:
    """The gradients of one part are reduced while the next is computed; of a split backward W is what is cut."""
    assert drawn("gpipe", loop(1, 1), 2, dp=2, buckets=3) == "0F0 0F1 0B1 0B0.0 0G0.0 0B0.1 0G0.1 0B0.2 0G0.2 0O0"
    assert drawn("zb-h1", loop(2, 1), 1, dp=2, buckets=2).splitlines()[1] == (
        "1RF0 1F0 1I0 1SB0 1W0.0 1G0.0 1W0.1 1G0.1 1O0"
    )
    assert drawn("1f1b", loop(2, 1), 1, dp=2, buckets=2).splitlines()[1] == (
        "1RF0 1F0 1B0.0 1G0.0 1B0.1 1G0.1 1SB0 1O0"
    )


def test_buckets_of_every_stage() -> None:
    """One number a stage; a stage with one is not cut."""
    layout, setup = layout_of(loop(3, 1), 2), setup_of("gpipe", loop(3, 1), 1, dp=2)
    one = make_training_round(0, layout, setup, sequences(1, 1, 8), (2, 1, 3))
    assert "\n".join(format_actions(actions, 0) for actions in one.actions) == picture(
        """
        0F0 0SF0 0RB0 0B0.0 0G0.0 0B0.1 0G0.1 0O0
        1RF0 1F0 1SF0 1RB0 1B0 1G0 1SB0 1O0
        2RF0 2F0 2B0.0 2G0.0 2B0.1 2G0.1 2B0.2 2G0.2 2SB0 2O0
        """
    )
    same = make_training_round(0, layout, setup, sequences(1, 1, 8), (2, 2, 2))
    assert same == make_training_round(0, layout, setup, sequences(1, 1, 8), 2)


def test_cut_backwards_need_no_reductions() -> None:
    """The passes are apart: what is cut, and what is reduced."""
    order = training_order(layout_of(loop(2, 1)), setup_of("1f1b", loop(2, 1), 2))
    cut = cut_last_backwards(add_messages(order, 2), (1, 2))
    assert cut.drawn() == ["0F0 0SF0 0F1 0SF1 0RB0 0B0 0RB1 0B1", "1RF0 1F0 1B0 1RF1 1SB0 1F1 1B1.0 1B1.1 1SB1"]


def test_a_tied_embedding_and_the_norm() -> None:
    """T of the first and the last stage, behind their reductions; N before all updates; neither needs replicas."""
    layout, setup = layout_of(loop(3, 1), 2), setup_of("gpipe", loop(3, 1), 1, dp=2, zero=1)
    one = make_training_round(0, layout, setup, sequences(1, 1, 8), (2, 1, 1), tied=True, norm=True)
    assert "\n".join(format_actions(actions, 0) for actions in one.actions) == picture(
        """
        0F0 0SF0 0RB0 0B0.0 0G0.0 0B0.1 0G0.1 0T0 0N0 0O0 0A0
        1RF0 1F0 1SF0 1RB0 1B0 1G0 1SB0 1N0 1O0 1A0
        2RF0 2F0 2B0 2G0 2SB0 2T0 2N0 2O0 2A0
        """
    )
    alone = setup_of("gpipe", loop(3, 1), 1)
    bare = make_training_round(0, layout_of(loop(3, 1)), alone, sequences(1, 1, 8), 3, tied=True, norm=True)
    assert [format_actions(actions, 0).split()[-3:] for actions in bare.actions] == [
        ["0T0", "0N0", "0O0"],
        ["1SB0", "1N0", "1O0"],
        ["2T0", "2N0", "2O0"],
    ]


def test_one_position_with_both_ends() -> None:
    """In a V the last stage ends first, and its T does nothing; what stands behind T is not kept waiting by it."""
    layout, setup = layout_of(v_shape(2), 2), setup_of("zb-v", v_shape(2), 1, dp=2)
    one = make_training_round(0, layout, setup, sequences(1, 1, 8), tied=True, norm=True)
    assert format_actions(one.actions[0], 0).endswith("3W0 3G0 0RB0 0I0 0W0 0G0 3T0 0T0 0N0 3O0 0O0")
    assert format_actions(one.actions[1], 0).endswith("2W0 2G0 1I0 1SB0 1W0 1G0 1N0 2O0 1O0")
    layout, setup = layout_of(loop(2, 2), 2), setup_of("interleaved", loop(2, 2), 2, dp=2)
    one = make_training_round(0, layout, setup, sequences(2, 1, 8), tied=True, norm=True)
    assert format_actions(one.actions[1], 0).endswith("1B1 1G0 1SB1 3T0 1N0 3O0 1O0")


@pytest.mark.parametrize(
    ("buckets", "message"),
    [
        ((2, 2), "there are 2 numbers of buckets, but 3 stages: give one a stage"),
        ((2, 0, 1), "stage 1 has 0 buckets, but needs at least 1"),
        (0, "stage 0 has 0 buckets, but needs at least 1"),
    ],
)
def test_buckets_that_cannot_be(buckets: int | tuple[int, ...], message: str) -> None:
    layout, setup = layout_of(loop(3, 1), 2), setup_of("gpipe", loop(3, 1), 1, dp=2)
    with pytest.raises(PlanError) as error:
        make_training_round(0, layout, setup, sequences(1, 1, 8), buckets)
    assert str(error.value) == message


@given(st.data())
def test_rendezvous_never_deadlock(data: st.DataObject) -> None:
    """Every schedule, any buckets, replicas or none, links that hold 1 to 3: T of two positions, and N of all.

    Why it holds: nothing but N, O and A waits for a reduction, so all computing and all messages come to their end
    whatever the reduce lanes do; then every reduce lane comes to its T, of which a position has one that meets another
    position; then every position comes to its N.
    """
    schedule = data.draw(st.sampled_from(TRAINING_SCHEDULES))
    positions = data.draw(st.integers(1, 4))
    virtual = 1 if schedule in ONE_STAGE else 2 if schedule in V_SHAPED else data.draw(st.integers(1, 3))
    placement = v_shape(positions) if schedule in V_SHAPED else loop(positions, virtual)
    stages, micro_batches = positions * virtual, data.draw(st.integers(1, 6))
    dp, zero, capacity = (data.draw(st.integers(*bounds)) for bounds in ((1, 2), (0, 1), (1, 3)))
    buckets = data.draw(st.lists(st.integers(1, 3), min_size=stages, max_size=stages))
    tied, norm = data.draw(st.booleans()), data.draw(st.booleans())
    layout = layout_of(placement, dp, capacity)
    setup = setup_of(schedule, placement, micro_batches, dp, zero)
    one = make_training_round(3, layout, setup, sequences(micro_batches, 1, 8), buckets, tied=tied, norm=norm)
    check_training_round(one, layout)
    named = Counter((action.kind, action.stage) for actions in one.actions for action in actions)
    ends = {0, stages - 1} if tied and stages > 1 else set()
    assert {stage for kind, stage in named if kind is Kind.REDUCE_TIED} == ends
    assert {stage for kind, stage in named if kind is Kind.NORM} == {held[0] for held in placement if norm}
    assert all(count == 1 for (kind, _), count in named.items() if kind in (Kind.REDUCE_TIED, Kind.NORM))
    two = replace(one, number=4, actions=tuple(tuple(a._replace(round=4) for a in each) for each in one.actions))
    check_progress([one, two], stages, capacity, positions_by_stage(placement))


@pytest.mark.parametrize("schedule", TRAINING_SCHEDULES)
def test_no_deadlock_whatever_the_links_hold(schedule: str) -> None:
    """The checker replays each, on links that hold 1, 2, 3 or all messages."""
    virtuals = (2,) if schedule in V_SHAPED else (1,) if schedule in ONE_STAGE else (1, 2, 3)
    for positions, virtual, micro_batches in itertools.product((1, 2, 3, 5), virtuals, (1, 2, 3, 4, 7, 10)):
        placement = v_shape(positions) if schedule in V_SHAPED else loop(positions, virtual)
        for capacity in (1, 2, 3, 1000):
            layout = layout_of(placement, 1, capacity)
            one = make_training_round(
                0, layout, setup_of(schedule, placement, micro_batches), sequences(micro_batches, 1, 8)
            )
            check_training_round(one, layout)
        layout = layout_of(placement, 2, 1)
        setup = setup_of(schedule, placement, micro_batches, 2, 1)
        check_training_round(make_training_round(7, layout, setup, sequences(micro_batches, 1, 8), 3), layout)


def test_larger_rounds_have_no_deadlock() -> None:
    for schedule in ("interleaved", "zb-h2", "zb-v", "dualpipe-v"):
        placement = loop(12, 2) if schedule == "interleaved" else v_shape(12) if schedule in V_SHAPED else loop(12, 1)
        layout = layout_of(placement, 1, 1)
        one = make_training_round(0, layout, setup_of(schedule, placement, 40), sequences(40, 1, 8))
        check_training_round(one, layout)


def test_receives_that_come_too_late_do_deadlock() -> None:
    """Why the pass looks at k: made for links that hold all messages, a V gets stuck on links that hold one."""
    placement = v_shape(2)
    layout, setup = layout_of(placement, 1, 1), setup_of("zb-v", placement, 4)
    late = lower_step(training_order(layout, setup), layout_of(placement, 1, 1000), setup)
    one = Round(0, sequences(4, 1, 8), late.actions(0))
    check_training_round(one, layout_of(placement, 1, 2))
    with pytest.raises(PlanError, match=r"^deadlock: .*0:3SB0 waits for room on link 0→1, which holds 1 unreceived"):
        check_training_round(one, layout)


def test_the_work_of_a_pipeline() -> None:
    assert sequences(2, 2, 16) == (
        MicroBatch((Row(0, 0, 0, 16, False), Row(1, 1, 0, 16, False))),
        MicroBatch((Row(2, 0, 0, 16, False), Row(3, 1, 0, 16, False))),
    )


@pytest.mark.parametrize(
    ("schedule", "placement", "work", "message"),
    [
        ("1f1b", loop(2, 1), 3, "the step has 3 micro-batches of work, but the plan has 4"),
        (
            "zb-v",
            loop(2, 2),
            4,
            "schedule zb-v wants stages 0 3 | 1 2 on its positions, but the layout has 0 2 | 1 3",
        ),
        ("1f1b", loop(2, 2), 4, "schedule 1f1b has one stage a position, not 2: type --virtual 1"),
    ],
)
def test_what_does_not_agree(schedule: str, placement: Placement, work: int, message: str) -> None:
    with pytest.raises(PlanError) as error:
        make_training_round(0, layout_of(placement), setup_of(schedule, placement, 4), sequences(work, 1, 8))
    assert str(error.value) == message
