import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_timelines import timelines
from rich.console import Console

from plait.errors import UsageError
from plait.plans.round import MicroBatch, Row
from plait.reports.terminal import RoundRange, actions_text, report, stage_table
from plait.schedules.generation import make_round
from plait.timeline.record import RunRecord


def printed(record, encoding="utf-8", width=80, **options):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    report(record, Console(file=stream, width=width, _environ={}), **options)
    return raw.getvalue().decode(encoding)


def test_a_run_on_one_page(record):
    assert printed(record) == (
        """\
                       predicted    measured            difference
Stage 0: layers 0 to 14, rank 0, float32, weights 269.0 MiB,
  process peak 488.0 MiB
  compute                   8 ms        8 ms                     0
  transfer                  0 µs        0 µs                     0
  wait                      1 ms        5 ms      +4 ms (+400.0 %)
  bubble                  11.1 %      38.5 %          +27.4 points
  bytes sent             8.0 KiB     8.0 KiB                     0
Stage 1: layers 15 to 29, rank 1, float32
  compute                   8 ms       12 ms       +4 ms (+50.0 %)
  transfer                  0 µs        0 µs                     0
  wait                      1 ms        1 ms                     0
  bubble                  11.1 %       7.7 %           -3.4 points
  bytes sent                64 B        64 B                     0
The whole run
  duration                  9 ms       13 ms       +4 ms (+44.4 %)
  first token after       2.5 ms     3.25 ms     +750 µs (+30.0 %)
  time per token            2 ms        3 ms       +1 ms (+50.0 %)
  prefill tokens         42667/s     32000/s    -10667/s (-25.0 %)
  decoded tokens          1000/s       667/s      -333/s (-33.3 %)
  tokens                   889/s       615/s      -274/s (-30.8 %)
  compute                  16 ms       20 ms       +4 ms (+25.0 %)
  transfer                  0 µs        0 µs                     0
  wait                      2 ms        6 ms      +4 ms (+200.0 %)
  bubble                  11.1 %      23.1 %          +12.0 points
  bytes sent             8.1 KiB     8.1 KiB                     0
Differences are measured - predicted, and their percentages of the predicted.

All of the run: rounds 0 to 3.

               ms 0        2       4        6       8        10       12    busy
                  ┬────────┬───────┬────────┬───────┬────────┬────────┬───
stage 0 predicted ████▒▒▒▒█████▒▒▒▒▒████▒▒▒▒████▒▒▒▒                        89 %
        measured  ████▒▒▒▒▒  ████  ▒▒▒▒  █████   ▒▒▒▒  ████  ▒▒▒▒           62 %
stage 1 predicted ····█████▒▒▒▒████▒▒▒▒▒████▒▒▒▒█████▒▒▒                    89 %
        measured  ····███████▒▒▒▒▒▒██████▒▒▒▒▒▒▒███████▒▒▒▒▒▒██████▒▒▒▒▒▒▒  92 %

█ compute micro-batch 0   ▒ compute micro-batch 1   · waits for a message
(blank) nothing to do

23 % of the 2 stages' time went without computing: stage 0 38 % and stage 1 8 %.
Stage 0 waited 38 % of the time: its work is 0.67 of stage 1's.
It took 44.4 % longer than predicted (13 ms, not 9 ms), and the bubble was 12.0
points larger.
Of computing, stage 1's is furthest off: it took 4 ms longer than the 8 ms
predicted.
"""
    )


def test_the_same_run_gives_the_same_page(record):
    assert printed(record) == printed(record)


def test_an_ascii_terminal_gets_ascii(record):
    page = printed(record, "ascii")
    assert "stage 1 predicted ....00000" in page
    assert "+750 us" in page


def test_one_timeline_alone_has_no_difference(record):
    alone = RunRecord("", record.stages, rounds=record.rounds, predicted=record.predicted)
    assert stage_table(alone).plain.splitlines()[:3] == [
        "                       predicted",
        "Stage 0: layers 0 to 14, rank 0, float32, weights 269.0 MiB, peak 488.0 MiB",
        "  compute                   8 ms",
    ]


def test_a_run_without_timelines_says_so():
    assert printed(RunRecord("", ())) == "The run has no timeline: nothing can be said of where its time went.\n"
    with pytest.raises(UsageError, match="nothing to draw"):
        printed(RunRecord("", ()), rounds=RoundRange(0, 1))


@given(
    st.none() | timelines("predicted"),
    st.none() | timelines("measured"),
    st.integers(60, 120),
    st.sampled_from(["utf-8", "ascii", "latin-1"]),
)
def test_any_run_fits_on_the_page(predicted, measured, width, encoding):
    page = printed(RunRecord("", (), predicted=predicted, measured=measured), encoding, width)
    assert max(map(len, page.splitlines())) <= max(width, 66)


def test_actions_stand_one_line_a_position():
    prompt = (MicroBatch((Row(0, 0, 0, 64, True),)), MicroBatch((Row(1, 1, 0, 65, True),)))
    token = (MicroBatch((Row(0, 0, 64, 1, True),)),)
    first = make_round(0, 2, prompt)
    second = make_round(1, 2, token, first.carried_out)
    last = make_round(2, 2, (), second.carried_out)
    assert actions_text([first, second, last]) == (
        """\
round 0: micro-batches of 64 and 65 positions, 2 tokens sampled
  0: 0F0 0SF0 0F1 0SF1
  1: 1RF0 1F0 1ST0 1RF1 1F1 1ST1
round 1: micro-batch of 1 position, 1 token sampled
  0: 0:0RT0 0F0 0SF0
  1: 1RF0 1F0 1ST0
round 2: no work
  0: 0:0RT1 1:0RT0
  1:"""
    )
