from dataclasses import replace

import pytest

from plait.errors import PlanError
from plait.plans.action import Action, Kind
from plait.plans.check import check_layout, check_rounds
from plait.plans.layout import Layout, Stage
from plait.plans.notation import parse_action
from plait.plans.round import Carried, MicroBatch, Round, Row
from plait.schedules.generation import make_round


def rows(*requests: int, samples: bool = True) -> MicroBatch:
    return MicroBatch(tuple(Row(request, request, 10, 1, samples) for request in requests))


def by_hand(*positions: str, work: tuple[MicroBatch, ...], carried_in: tuple[Carried, ...] = ()) -> Round:
    actions = tuple(tuple(parse_action(text) for text in position.split()) for position in positions)
    return Round(0, work, actions, carried_in)


def refusal(rounds: list[Round], stages: int, capacity: int = 1) -> str:
    with pytest.raises(PlanError) as error:
        check_rounds(rounds, stages, capacity)
    return str(error.value)


def without(one: Round, text: str) -> Round:
    gone = parse_action(text)
    return replace(one, actions=tuple(tuple(a for a in actions if a != gone) for actions in one.actions))


def test_rounds_of_the_schedule_pass_with_one_message_a_link() -> None:
    first = make_round(0, 3, (rows(0, 1), rows(2)))
    second = make_round(1, 3, (rows(0), rows(1, 2)), first.carried_out)
    check_rounds([first, second, make_round(2, 3, (), second.carried_out)], 3, 1)


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        ("1F1", "round 0: position 1 lacks 0:1F1"),
        ("0SF0", "round 0: position 0 lacks 0:0SF0"),
        ("1RF1", "round 0: position 1 lacks 0:1RF1"),
        ("1ST0", "round 0: the tokens of micro-batches [0] are sampled but never sent"),
    ],
)
def test_an_action_that_is_missing(gone: str, message: str) -> None:
    assert refusal([without(make_round(0, 2, (rows(0), rows(1))), gone)], 2) == message


def test_an_action_that_is_there_twice_or_elsewhere() -> None:
    one = by_hand("0F0 0F0", work=(rows(0),))
    assert refusal([one], 1) == "round 0: 0:0F0 stands 2 times, not once"
    one = by_hand("1F0", work=(rows(0),))
    assert refusal([one], 1) == "round 0: 0:1F0 stands at position 0"
    one = by_hand("0F0 0F1", work=(rows(0),))
    assert refusal([one], 1) == "round 0: position 0 has a surplus 0:0F1"
    assert refusal([one], 2) == "round 0 has actions for 1 positions, but the plan has 2 stages"


def test_a_token_that_nobody_sent() -> None:
    one = by_hand("0RT5 0F0 0SF0", "1RF0 1F0 1ST0", work=(rows(0),))
    assert refusal([one], 2) == "round 0: 0:0RT5 receives a message that nobody sent"


def test_rounds_that_do_not_follow_each_other() -> None:
    first = make_round(0, 2, (rows(0),))
    assert refusal([first, make_round(1, 2, ())], 2) == "round 1 begins with other messages in flight than round 0 left"


def test_deadlock_of_two_that_wait_for_each_other() -> None:
    """Stage 0 wants the tokens of the very micro-batch that it has not sent yet."""
    one = by_hand("0RT0 0F0 0SF0", "1RF0 1F0 1ST0", work=(rows(0),), carried_in=(Carried(0, 0, (0,)),))
    message = refusal([replace(one, carried_in=())], 2)
    assert message == "round 0: 0:0RT0 receives a message that nobody sent"


def test_deadlock_names_who_waits_for_what() -> None:
    """Stage 1 wants micro-batch 1 first; with k = 1 its link holds micro-batch 0 and takes no other."""
    work = (rows(0), rows(1))
    one = by_hand("0F0 0SF0 0F1 0SF1", "1RF1 1F1 1ST1 1RF0 1F0 1ST0", work=work)
    assert refusal([one], 2, capacity=1) == (
        "deadlock: 0:0SF1 waits for room on link 0→1, which holds 1 unreceived; 0:1RF1 waits for 0:0SF1; "
        "0:1F1 waits for 0:1RF1"
    )
    check_rounds([one], 2, 2)


def test_a_forward_without_its_receive_is_named() -> None:
    actions = (Action(0, 1, Kind.FORWARD, 0),)
    one = Round(0, (), ((), actions))
    assert refusal([one], 2) == "round 0: position 1 has a surplus 0:1F0"


def layout(*cut: tuple[int, int], ranks: int | None = None) -> Layout:
    stages = tuple(Stage(layers, (rank,)) for rank, layers in enumerate(cut))
    return Layout({"pp": ranks or len(cut)}, stages)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (layout((0, 4), (5, 8)), "stage 1 holds layers [5, 8), but must begin at layer 4 and hold at least one"),
        (layout((0, 4), (4, 4)), "stage 1 holds layers [4, 4), but must begin at layer 4 and hold at least one"),
        (layout((0, 4), (4, 7)), "the cut covers 7 layers, but the model has 8: 1 layer too few"),
        (layout((0, 4), (4, 10)), "the cut covers 10 layers, but the model has 8: 2 layers too many"),
        (layout((0, 8), ranks=2), "the stages name ranks [0], but the axes {'pp': 2} make ranks 0 to 1"),
        (replace(layout((0, 8)), link_capacity=0), "link_capacity is 0, but a link must hold at least 1 message"),
    ],
)
def test_layouts_that_cannot_be(given: Layout, message: str) -> None:
    with pytest.raises(PlanError) as error:
        check_layout(given, 8)
    assert str(error.value) == message
