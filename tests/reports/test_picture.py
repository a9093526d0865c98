import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_timelines import timelines
from rich.console import Console

from plait.errors import UsageError
from plait.plans.notation import parse_action
from plait.reports.marks import ASCII, UNICODE
from plait.reports.picture import picture, tick_step
from plait.reports.window import RoundRange
from plait.timeline.span import Span
from plait.timeline.timeline import Timeline


def drawn(text):
    return "\n" + "\n".join(line.rstrip() for line in text.plain.splitlines()) + "\n"


def test_two_stages_pipelined_four_rounds(make_timeline):
    # 4 cells are 1 ms: micro-batch 0 and 1 by turns on each stage, stage 1 one forward behind, no bubble between
    assert drawn(picture(make_timeline("predicted"), None, 60)) == (
        """
All of the run: rounds 0 to 3.

               ms 0       2       4       6       8     busy
                  ┬───────┬───────┬───────┬───────┬───
stage 0 predicted ████▒▒▒▒████▒▒▒▒████▒▒▒▒████▒▒▒▒      89 %
stage 1 predicted ····████▒▒▒▒████▒▒▒▒████▒▒▒▒████▒▒▒▒  89 %

█ compute micro-batch 0   ▒ compute micro-batch 1
· waits for a message   (blank) nothing to do
"""
    )


def test_predicted_stands_above_measured_on_one_time_scale(make_timeline):
    # 3 cells are 1 ms; measured, stage 1 takes 2 ms a forward: it never waits again, and stage 0 waits for its answers
    timelines = make_timeline("predicted"), make_timeline("measured", (1.0, 2.0))
    assert drawn(picture(*timelines, 75, glyphs=ASCII)) == (
        """
All of the run: rounds 0 to 3.

               ms 0              5              10             15      busy
                  +--------------+--------------+--------------+-----
stage 0 predicted 000111000111000111000111                             89 %
        measured  000111   000   111   000   111   000   111           47 %
stage 1 predicted ...000111000111000111000111                          89 %
        measured  ...000000111111000000111111000000111111000000111111  94 %

0 compute micro-batch 0   1 compute micro-batch 1   . waits for a message
(blank) nothing to do
"""
    )


def test_chosen_rounds_begin_at_zero_in_both(make_timeline):
    # 4 cells are 1 ms. Predicted begins rounds 2 and 3 at 4 ms, measured (twice as slow) at 8 ms: both are drawn from
    # 0 on, while stage 1 still ends round 1
    timelines = make_timeline("predicted"), make_timeline("measured", (2.0, 2.0))
    assert drawn(picture(*timelines, 64, rounds=RoundRange(2, 4), glyphs=ASCII)) == (
        """
Shown: rounds 2 to 3 of 4 (10 of 18 ms), from the beginning of
round 2; --rounds first:end shows others.

               ms 0       2       4       6       8         busy
                  +-------+-------+-------+-------+-------
stage 0 predicted 0000111100001111                          80 %
        measured  00000000111111110000000011111111          80 %
stage 1 predicted 11110000111100001111                     100 %
        measured  1111111100000000111111110000000011111111 100 %

0 compute micro-batch 0   1 compute micro-batch 1
(blank) nothing to do
"""
    )


def test_the_first_rounds_of_a_long_run_are_shown_and_the_rest_is_not_dropped_in_silence(make_timeline):
    shown = picture(make_timeline("predicted", rounds=40), None, 110).plain.splitlines()[0]
    assert shown == (
        "Shown: rounds 0 to 4 of 40 (11 of 81 ms), from the beginning of round 0; --rounds first:end shows others."
    )


def test_a_stage_on_several_ranks_has_a_row_for_each():
    spans = tuple(Span(0, parse_action("0:0F0"), rank, 0.0, 0.001 * (rank + 1)) for rank in (0, 1))
    assert drawn(picture(Timeline("measured", spans), None, 50)) == (
        """
All of the run: round 0.

                     ms 0         1           busy
                        ┬─────────┬─────────
stage 0 rank 0 measured ██████████            50 %
stage 0 rank 1 measured ████████████████████ 100 %

█ compute micro-batch 0   (blank) nothing to do
"""
    )


def test_more_micro_batches_than_characters_share_them_and_the_legend_says_so():
    spans = tuple(Span(0, parse_action(f"0:0F{i}"), 0, 0.001 * i, 0.001 * (i + 1)) for i in range(10))
    legend = picture(Timeline("measured", spans), None, 80).plain.split("\n\n")[-1]
    assert legend.splitlines()[0] == "█ compute micro-batch 0, 8   ▒ compute micro-batch 1, 9"


def test_colours_tell_apart_what_characters_already_do(make_timeline):
    text = picture(make_timeline("predicted"), None, 60)
    styles = {str(span.style) for span in text.spans}
    assert styles == {"cyan", "yellow", "dim"}


def printed(text, **environment):
    stream = io.StringIO()
    Console(file=stream, force_terminal=True, width=60, _environ=environment).print(text)
    return stream.getvalue()


def test_no_color_is_kept(make_timeline):
    text = picture(make_timeline("predicted"), None, 60)
    assert "\x1b[36m" in printed(text, TERM="xterm-256color")
    assert "\x1b[36m" not in printed(text, TERM="xterm-256color", NO_COLOR="1")


def test_nothing_to_draw_is_an_error():
    for nothing in ((None, None), (Timeline("predicted", ()), None)):
        with pytest.raises(UsageError) as caught:
            picture(*nothing)
        assert str(caught.value) == "nothing to draw: the timelines hold no spans"


@pytest.mark.parametrize(
    ("duration_ms", "cells", "step"),
    [
        (100.0, 50, 20.0),
        (9.0, 36, 2.0),
        (9.1, 36, 5.0),
        (8.0, 40, 2.0),
        (0.03, 60, 0.005),
        (2000.0, 20, 1000.0),
        (0.0, 20, 1.0),
    ],
)
def test_ticks_are_round_and_far_enough_apart(duration_ms, cells, step):
    assert tick_step(duration_ms, cells) == pytest.approx(step)


@given(
    timelines("predicted"), timelines("measured", min_size=1), st.integers(30, 130), st.sampled_from([UNICODE, ASCII])
)
def test_any_timelines_give_rows_of_one_width(predicted, measured, width, glyphs):
    lines = picture(predicted, measured, width, glyphs=glyphs, rounds=RoundRange()).plain.splitlines()
    rows = [line for line in lines if line.endswith(" %")]
    keys = {(one.source, span.action.stage, span.rank) for one in (predicted, measured) for span in one.spans}
    assert len(rows) == len(keys)
    assert len({len(row) for row in rows}) == 1
    if width >= 60:
        assert max(map(len, lines)) <= width
    if glyphs is ASCII:
        assert all(line.isascii() for line in lines)


@given(timelines("measured", min_size=1), st.integers(0, 12), st.integers(1, 6))
def test_any_window_is_drawn_or_refused(measured, first, length):
    numbers = {span.action.round for span in measured.spans}
    if numbers.intersection(range(first, first + length)):
        picture(measured, None, rounds=RoundRange(first, first + length))
    else:
        with pytest.raises(UsageError, match="the run has none of the rounds"):
            picture(measured, None, rounds=RoundRange(first, first + length))
