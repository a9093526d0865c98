import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.errors import PlanError
from plait.plans.action import Action, Kind
from plait.plans.notation import format_action, format_actions, parse_action

numbers = st.integers(0, 10**6)
actions = st.builds(Action, numbers, numbers, st.sampled_from(Kind), numbers, st.none() | numbers)


@given(actions)
def test_what_is_written_is_read(action: Action) -> None:
    assert parse_action(format_action(action)) == action


@given(actions)
def test_the_round_may_be_left_out(action: Action) -> None:
    assert parse_action(format_action(action, with_round=False), default_round=action.round) == action


def test_the_example_of_the_design() -> None:
    assert format_action(Action(17, 2, Kind.FORWARD, 0)) == "17:2F0"
    assert parse_action("0SF7.1") == Action(0, 0, Kind.SEND_FORWARD, 7, 1)


def test_a_line_names_only_foreign_rounds() -> None:
    line = (Action(3, 0, Kind.RECEIVE_TOKENS, 1), Action(4, 0, Kind.FORWARD, 0))
    assert format_actions(line, 4) == "3:0RT1 0F0"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("F0", "'F0' is not an action: expected round:stage kind micro-batch.part, as in '17:2F0'"),
        ("", "'' is not an action: expected round:stage kind micro-batch.part, as in '17:2F0'"),
        (
            "0Q1",
            "'0Q1' is not an action: no kind is written 'Q' (known: F, B, I, W, O, SF, RF, SB, RB, ST, RT, G, A, T, N)",
        ),
    ],
)
def test_errors(text: str, message: str) -> None:
    with pytest.raises(PlanError) as error:
        parse_action(text)
    assert str(error.value) == message
