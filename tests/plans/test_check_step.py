"""Faults put into training rounds on purpose, and the words that name them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.errors import PlanError
from plait.plans.action import Action, Kind
from plait.plans.check_step import check_training_round
from plait.plans.layout import Layout, Stage
from plait.plans.notation import parse_action
from plait.plans.round import Round
from plait.plans.split import Split, TrainingSetup
from plait.schedules.step import make_training_round, sequences


def layout_of(placement: tuple[tuple[int, ...], ...], dp: int = 1, capacity: int = 1) -> Layout:
    """A layer a stage; a position's ranks are the dp replicas."""
    of = {stage: position for position, held in enumerate(placement) for stage in held}
    stages = (Stage((s, s + 1), tuple(range(of[s] * dp, of[s] * dp + dp))) for s in range(len(of)))
    return Layout({"dp": dp, "pp": len(placement)}, tuple(stages), capacity)


FLAT = layout_of(((0,), (1,), (2,)), dp=2)
FLAT_SETUP = TrainingSetup(Split(dp=2, pp=3), "1f1b", 1, 4, zero=1)
V = layout_of(((0, 3), (1, 2)))
V_SETUP = TrainingSetup(Split(pp=2), "zb-v", 1, 3, virtual=2)


def flat() -> Round:
    return make_training_round(5, FLAT, FLAT_SETUP, sequences(4, 1, 8), buckets=2)


def v() -> Round:
    return make_training_round(5, V, V_SETUP, sequences(3, 1, 8))


def refusal(one: Round, layout: Layout) -> str:
    with pytest.raises(PlanError) as error:
        check_training_round(one, layout)
    return str(error.value)


def edited(one: Round, position: int, edit: Callable[[list[Action]], None]) -> Round:
    lists = [list(actions) for actions in one.actions]
    edit(lists[position])
    return replace(one, actions=tuple(map(tuple, lists)))


def named(text: str) -> Action:
    return parse_action(text, default_round=5)


def without(text: str) -> Callable[[list[Action]], None]:
    return lambda actions: actions.remove(named(text))


def put(text: str) -> Callable[[list[Action]], None]:
    return lambda actions: actions.append(named(text))


def swapped(one: str, other: str) -> Callable[[list[Action]], None]:
    def swap(actions: list[Action]) -> None:
        i, j = actions.index(named(one)), actions.index(named(other))
        actions[i], actions[j] = actions[j], actions[i]

    return swap


def test_the_rounds_themselves_pass() -> None:
    check_training_round(flat(), FLAT)
    check_training_round(v(), V)


@pytest.mark.parametrize(
    ("position", "edit", "message"),
    [
        (1, without("1F2"), "round 5: position 1 lacks 5:1F2"),
        (1, without("1B2"), "round 5: position 1 lacks 5:1B2"),
        (1, without("1SB0"), "round 5: position 1 lacks 5:1SB0"),
        (1, without("1RB1"), "round 5: position 1 lacks 5:1RB1"),
        (0, put("0SB0"), "round 5: position 0 has a surplus 5:0SB0"),
        (0, put("0F4"), "round 5: position 0 has a surplus 5:0F4"),
        (0, put("0W1"), "round 5: position 0 has a surplus 5:0W1"),
        (0, put("0O1"), "round 5: position 0 has a surplus 5:0O1"),
        (0, put("0ST1"), "round 5: position 0 has a surplus 5:0ST1"),
        (0, put("0F1"), "round 5: 5:0F1 stands 2 times, not once"),
        (0, put("1F1"), "round 5: 5:1F1 stands at position 0, which holds stages [0]"),
        (0, put("6:0F1"), "round 5: 6:0F1 is of another round"),
        (1, without("1G0.0"), "round 5: the parts of 5:1G0 are 1, not 0, 1, 2 and so on"),
        (1, put("1G0"), "round 5: the parts of 5:1G0 are 0, 1, whole, not 0, 1, 2 and so on"),
        (2, without("2O0"), "round 5: stages [2] lack O, which other stages have"),
        (1, without("1A0"), "round 5: stages [1] lack A, which other stages have"),
        (2, swapped("2F2", "2B2"), "round 5: 5:2B2 stands before 5:2F2, which it needs"),
        (1, swapped("1B3.0", "1B3.1"), "round 5: the parts of 5:1B3 are 1, 0, not 0, 1, 2 and so on"),
        (0, swapped("0B2", "0O0"), "round 5: 5:0O0 stands before 5:0B2, which it needs"),
    ],
)
def test_a_fault_is_named(position: int, edit: Callable[[list[Action]], None], message: str) -> None:
    assert refusal(edited(flat(), position, edit), FLAT) == message


@pytest.mark.parametrize(
    ("position", "edit", "message"),
    [
        (0, swapped("3I0", "3W0"), "round 5: 5:3W0 stands before 5:3I0, which it needs"),
        (1, swapped("1F1", "2F1"), "round 5: 5:2F1 stands before 5:1F1, which it needs"),
        (1, swapped("1I1", "2I1"), "round 5: 5:1I1 stands before 5:2I1, which it needs"),
        (1, put("1SF0"), "round 5: position 1 has a surplus 5:1SF0"),
        (1, without("2W1"), "round 5: position 1 lacks 5:2W1"),
        (1, without("1I1"), "round 5: position 1 lacks 5:1B1"),
        (1, without("1W1"), "round 5: position 1 lacks 5:1W1"),
    ],
)
def test_a_fault_in_a_v_is_named(position: int, edit: Callable[[list[Action]], None], message: str) -> None:
    assert refusal(edited(v(), position, edit), V) == message


def test_another_number_of_positions() -> None:
    assert refusal(flat(), V) == "round 5 has actions for 3 positions, but the layout has 2"


def test_a_deadlock_names_who_waits_for_whom() -> None:
    """Position 0 wants the gradient of micro-batch 0 before it has sent micro-batch 0."""
    layout = layout_of(((0,), (1,)))
    setup = TrainingSetup(Split(pp=2), "gpipe", 1, 1)
    one = edited(make_training_round(5, layout, setup, sequences(1, 1, 8)), 0, swapped("0SF0", "0RB0"))
    assert refusal(one, layout) == (
        "deadlock: 5:0B0 waits for 5:0RB0; 5:0RB0 waits for 5:1SB0; 5:1RF0 waits for 5:0SF0; 5:1F0 waits for 5:1RF0"
    )


@given(st.data())
def test_any_action_that_is_taken_out_is_missed(data: st.DataObject) -> None:
    """But for the last backward's parts, whose number the rest still allows."""
    one, layout = data.draw(st.sampled_from([(flat(), FLAT), (v(), V)]))
    position = data.draw(st.integers(0, len(one.actions) - 1))
    action = data.draw(st.sampled_from(one.actions[position]))
    gone = edited(one, position, lambda actions: actions.remove(action))
    if action.part == 1:
        check_training_round(gone, layout)
    else:
        refusal(gone, layout)


def test_kinds_of_a_whole_stage_may_be_left_out_everywhere() -> None:
    kinds = (Kind.REDUCE_GRADIENTS, Kind.OPTIMIZER, Kind.GATHER_PARAMETERS)
    one = flat()
    bare = tuple(tuple(action for action in actions if action.kind not in kinds) for actions in one.actions)
    check_training_round(replace(one, actions=bare), FLAT)
