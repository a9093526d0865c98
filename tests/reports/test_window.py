import pytest

from plait.errors import UsageError
from plait.plans.action import Action, Kind
from plait.plans.round import MicroBatch, Row
from plait.reports.window import RoundRange, choose_window, count_prefill, parse_rounds
from plait.timeline.record import RoundRecipe
from plait.timeline.timeline import Timeline


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("3:7", RoundRange(3, 7)),
        ("3:", RoundRange(3, None)),
        (":7", RoundRange(None, 7)),
        (":", RoundRange()),
        ("3", RoundRange(3, 4)),
        (" 3 : 7 ", RoundRange(3, 7)),
    ],
)
def test_ranges_of_rounds(text, asked):
    assert parse_rounds(text) == asked


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a:b", "'a:b' is not a range of rounds: expected first:end, as in '0:5', which is rounds 0 to 4"),
        ("", "'' is not a range of rounds: expected first:end, as in '0:5', which is rounds 0 to 4"),
        ("-3:2", "'-3:2' is not a range of rounds: expected first:end, as in '0:5', which is rounds 0 to 4"),
        (
            "9" * 5000,
            f"'{'9' * 40}…' is not a range of rounds: expected first:end, as in '0:5', which is rounds 0 to 4",
        ),
        ("3 7", "'3 7' is not a range of rounds: expected first:end, as in '0:5', which is rounds 0 to 4"),
        ("7:3", "rounds '7:3' hold none: the end, 3, must be above the first, 7; '7:8' is one round"),
        (":0", "rounds ':0' hold none: the end, 0, must be above the first, 0; '0:1' is one round"),
    ],
)
def test_what_is_no_range(text, message):
    with pytest.raises(UsageError) as caught:
        parse_rounds(text)
    assert str(caught.value) == message


def test_rounds_that_the_run_does_not_have(make_timeline):
    with pytest.raises(UsageError) as caught:
        choose_window([make_timeline("predicted")], RoundRange(50, None))
    assert (
        str(caught.value) == "the run has none of the rounds 50:: it has rounds 0 to 3; '3:' shows the last, '0:' all"
    )


def test_of_training_a_part_is_called_a_step(make_timeline):
    """Steps that were kept are not all of a run."""

    def steps(*numbers):
        spans = make_timeline("measured", rounds=1).spans
        each = [
            span._replace(
                action=Action(number, span.action.stage, Kind.BACKWARD, 0), start_s=number + 0.1, end_s=number + 0.2
            )
            for number in numbers
            for span in spans
        ]
        return [Timeline("measured", tuple(each))]

    assert choose_window(steps(3)).caption == "Shown: step 3, the only one kept."
    assert choose_window(steps(0)).caption == "Shown: step 0, the only one."
    assert choose_window(steps(2, 3)).caption == "Shown: steps 2 to 3, all that were kept."
    assert choose_window(steps(2, 3), RoundRange(2, 3)).caption == (
        "Shown: step 2 of the 2 kept, steps 2 to 3 (100 of 1100 ms), from the beginning of step 2; --rounds first:end "
        "shows others."
    )


def chunk(start, samples):
    return MicroBatch((Row(0, 0, start, 64, samples),))


def token(position):
    return MicroBatch((Row(0, 0, position, 1, True),))


def test_the_prefill_ends_where_every_row_yields_the_next_token():
    works = [(chunk(0, False),), (chunk(64, True),), (token(128),), (token(129),), ()]
    rounds = [RoundRecipe(number, work) for number, work in enumerate(works)]
    assert count_prefill(rounds) == 2
    assert count_prefill(rounds[2:]) == 0
    assert count_prefill([]) == 0


def test_the_prefill_and_four_rounds_are_shown_where_nobody_asks(make_timeline):
    window = choose_window([make_timeline("predicted", rounds=10)], None, prefill=2)
    assert window.starts_s == (0.0,)
    assert window.duration_s == pytest.approx(0.013)
    assert window.caption.startswith("Shown: rounds 0 to 5 of 10 (13 of 21 ms), from the beginning of round 0;")
