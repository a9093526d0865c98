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
from plait.plans.notation import format_actions, parse_action
from plait.plans.progress import check_progress
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


def tied(capacity: int = 1) -> tuple[Round, Layout]:
    """With the exchange of a tied embedding, and the norm."""
    layout = replace(FLAT, link_capacity=capacity)
    return make_training_round(5, layout, FLAT_SETUP, sequences(4, 1, 8), (2, 1, 3), tied=True, norm=True), layout


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


def renamed(one: str, other: str) -> Callable[[list[Action]], None]:
    def rename(actions: list[Action]) -> None:
        actions[actions.index(named(one))] = named(other)

    return rename


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


@pytest.mark.parametrize(
    ("position", "edit", "message"),
    [
        (2, without("2T0"), "round 5: stages [2] lack T, which other stages have"),
        (0, without("0T0"), "round 5: stages [0] lack T, which other stages have"),
        (1, put("1T0"), "round 5: position 1 has a surplus 5:1T0"),
        (0, put("0T1"), "round 5: position 0 has a surplus 5:0T1"),
        (0, put("0T0"), "round 5: 5:0T0 stands 2 times, not once"),
        (0, renamed("0T0", "0T0.0"), "round 5: 5:0T0.0 is a part, but T is never cut"),
        (1, without("1N0"), "round 5: positions [1] lack N, which other positions have"),
        (1, put("1N1"), "round 5: position 1 has a surplus 5:1N1"),
        (1, renamed("1N0", "1N0.0"), "round 5: 5:1N0.0 is a part, but N is never cut"),
        (1, swapped("1N0", "1O0"), "round 5: 5:1O0 stands before 5:1N0, which it needs"),
        (0, swapped("0N0", "0B3.1"), "round 5: 5:0N0 stands before 5:0B3.1, which it needs"),
    ],
)
def test_a_fault_of_the_tied_reduction_or_the_norm_is_named(
    position: int, edit: Callable[[list[Action]], None], message: str
) -> None:
    one, layout = tied()
    check_training_round(one, layout)
    assert refusal(edited(one, position, edit), layout) == message


def test_the_norm_is_of_a_positions_first_stage() -> None:
    one = make_training_round(5, V, V_SETUP, sequences(3, 1, 8), tied=True, norm=True)
    check_training_round(one, V)
    assert refusal(edited(one, 1, renamed("1N0", "2N0")), V) == "round 5: position 1 has a surplus 5:2N0"


def test_one_stage_shares_no_embedding() -> None:
    layout, setup = layout_of(((0,),), dp=2), TrainingSetup(Split(dp=2), "gpipe", 1, 1)
    one = make_training_round(5, layout, setup, sequences(1, 1, 8), tied=True)
    assert Kind.REDUCE_TIED not in {action.kind for action in one.actions[0]}
    assert refusal(edited(one, 0, put("0T0")), layout) == "round 5: position 0 has a surplus 5:0T0"


def test_a_rendezvous_that_cannot_come_about_is_a_deadlock() -> None:
    """Both wait until all have arrived: one position cannot pass alone, whoever is in its way."""
    layout = layout_of(((0,), (1,)))
    setup = TrainingSetup(Split(pp=2), "gpipe", 1, 1)
    one = make_training_round(5, layout, setup, sequences(1, 1, 8), tied=True, norm=True)
    check_progress([one], 2, 1)
    late = edited(one, 0, lambda actions: actions.insert(actions.index(named("0B0")), actions.pop(-2)))
    assert "0RB0 0N0 0B0" in format_actions(late.actions[0], 5)
    with pytest.raises(PlanError) as error:
        check_progress([late], 2, 1)
    assert str(error.value) == (
        "deadlock: 5:0N0 waits for 5:0T0; 5:0T0 waits for 5:0B0; 5:1N0 waits for 5:1T0; 5:1T0 waits for 5:0T0"
    )
    # position 0 asks for the norm before it has begun, so nobody else comes to it
    untied = make_training_round(5, layout, setup, sequences(1, 1, 8), norm=True)
    early = edited(untied, 0, lambda actions: actions.insert(0, actions.pop(-2)))
    with pytest.raises(PlanError) as error:
        check_progress([early], 2, 1)
    assert str(error.value) == (
        "deadlock: 5:0N0 waits for 5:1N0; 5:0SF0 waits for 5:0F0; 5:1RF0 waits for 5:0SF0; 5:1F0 waits for 5:1RF0"
    )


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
    one, layout = data.draw(st.sampled_from([(flat(), FLAT), (v(), V), tied()]))
    position = data.draw(st.integers(0, len(one.actions) - 1))
    action = data.draw(st.sampled_from(one.actions[position]))
    gone = edited(one, position, lambda actions: actions.remove(action))
    if action.part is not None and action.part == max(a.part or 0 for a in one.actions[position]):
        check_training_round(gone, layout)
    else:
        refusal(gone, layout)


def test_kinds_of_a_whole_stage_may_be_left_out_everywhere() -> None:
    kinds = (Kind.REDUCE_GRADIENTS, Kind.OPTIMIZER, Kind.GATHER_PARAMETERS)
    one = flat()
    bare = tuple(tuple(action for action in actions if action.kind not in kinds) for actions in one.actions)
    check_training_round(replace(one, actions=bare), FLAT)
