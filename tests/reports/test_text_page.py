"""The text of `plait report`: every section, in 80 columns, in any encoding."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_timelines import timelines
from rich.console import Console

from plait.errors import UsageError
from plait.plans.action import Action, Kind
from plait.plans.file import dump_plan
from plait.plans.layout import Layout, Stage
from plait.plans.plan import Plan
from plait.reports.text_page import print_view
from plait.reports.view import Lost
from plait.reports.view_of import Why, make_view
from plait.reports.window import RoundRange
from plait.timeline.record import RunRecord, StageSummary
from plait.timeline.span import Span
from plait.timeline.timeline import MemoryTrack, Timeline

LAYOUT = Layout({"pp": 2}, (Stage((0, 15), (0,)), Stage((15, 30), (1,))))
PLAN = dump_plan(Plan("tiny", LAYOUT, "pipelined", 2, 64, 128, 2, "2 stages × 2"))


def printed(view, encoding="utf-8", width=80, **options):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    print_view(view, Console(file=stream, width=width, _environ={}), **options)
    return raw.getvalue().decode(encoding)


def with_memory(record):
    memory = {rank: MemoryTrack((0.0, 0.005), (2**20, (3 + rank) * 2**20), 2**30, 2**20) for rank in (0, 1)}
    return replace(
        record,
        plan=PLAN,
        predicted=replace(record.predicted, memory={rank: one._replace(base_bytes=0) for rank, one in memory.items()}),
        measured=replace(record.measured, memory=memory),
    )


def test_a_whole_run_on_one_page(record):
    why = Why(("it is the fastest",), (Lost("tensor (tp 2)", "22.8 ms", "5.13 ms more"),), ("No search was made.",))
    page = printed(make_view(with_memory(record), ("run.json is missing.",), why))
    sections = page.split("\n\n")
    assert sections[0] == (
        """\
tiny: pp 2, pipelined, 2 micro-batches
  task      generation
  model     tiny
  split     pp 2
  schedule  pipelined, micro-batches 2, chunks of 64 positions
  context   128 positions, 2 requests in flight
  ranks     2 on 1 host
  dtype     float32"""
    )
    assert sections[1].startswith(
        "Differences are measured - predicted, and their percentages of the predicted.\n"
        "                       predicted    measured            difference\nStage 0: layers 0"
    )
    after = page[page.index("Where the difference comes from") :]
    assert after == (
        """\
Where the difference comes from
seconds of all ranks of a stage
  stage 0       +4 ms  wait +4 ms, forward 0 in 8 actions
  stage 1       +4 ms  forward +4 ms in 8 actions, wait 0

Links: bytes, and the share of the time in which they are busy
                predicted            measured
  0→1    8.0 KiB    0.0 %    8.0 KiB    0.0 %
  1→0       64 B    0.0 %       64 B    0.0 %

Memory: the highest point of each rank
                 predicted      measured         limit
  rank 0           3.0 MiB       2.0 MiB       1.0 GiB
  rank 1           4.0 MiB       3.0 MiB       1.0 GiB
  Measured without the 1.0 MiB that a process holds before it loads anything.
  Peak memory is the most that a process held in all its life: with that, and
  with what loading took.

Critical path, predicted: 11 spans on 2 ranks, 9 ms
  made of  forward 9 ms (100 %)
  longest  0:0F0 on rank 0 1 ms, 0:1F0 on rank 1 1 ms, 0:1F1 on rank 1 1 ms

Critical path, measured: 11 spans on 2 ranks, 13 ms
  made of  forward 13 ms (100 %)
  longest  0:1F0 on rank 1 1.5 ms, 0:1F1 on rank 1 1.5 ms, 1:1F0 on rank 1 1.5
           ms

Why this plan
  - it is the fastest

Why others lost
  tensor (tp 2): 22.8 ms
      5.13 ms more

What is missing
  - run.json is missing.
  - No search was made.
"""
    )


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437", "cp1252"])
def test_a_terminal_that_cannot_write_it_gets_ascii(record, encoding):
    page = printed(make_view(with_memory(record)), encoding)
    assert "  0->1 " in page
    assert "2 stages x 2" in page or encoding != "ascii"
    assert "?" not in page


def test_figures_that_only_the_json_has_have_no_line(record):
    """The JSON has exchanges of 0 s, and figures that are not known."""
    view = make_view(replace(record, rounds=()))
    assert view.figures["measured"]["stages"][0]["exchange_s"] == 0
    assert view.figures["measured"]["ttft_s"] is None
    page = printed(view)
    assert not any(words in page for words in ("exchange", "first token", "tokens"))


def test_no_colour_without_a_terminal(record):
    assert "\x1b" not in printed(make_view(with_memory(record)))


def test_rounds_that_are_not_there(record):
    with pytest.raises(UsageError) as error:
        printed(make_view(record), rounds=RoundRange(8, 9))
    assert str(error.value) == (
        "the run has none of the rounds 8:9: it has rounds 0 to 3; '3:' shows the last, '0:' all"
    )


def test_a_plan_alone_has_a_page():
    view = make_view(RunRecord(PLAN, ()))
    assert printed(view) == (
        """\
tiny: pp 2, pipelined, 2 micro-batches
  task      generation
  model     tiny
  split     pp 2
  schedule  pipelined, micro-batches 2, chunks of 64 positions
  context   128 positions, 2 requests in flight
  ranks     2 on 1 host
  dtype     float32

Why this plan
  - 2 stages × 2

What is missing
  - Nothing was measured or predicted: there are no figures.
"""
    )


def test_a_training_step_says_what_its_figures_are_of():
    """Of four steps one was kept; the memory of a later position has lower ranks (dp 2 × pp 2)."""
    layout = Layout({"dp": 2, "pp": 2}, (Stage((0, 1), (0, 2)), Stage((1, 2), (1, 3))))
    spans = tuple(
        Span(0, Action(3, stage, kind, 0), rank, at, at + 1.0)
        for stage, one in enumerate(layout.stages)
        for rank in one.ranks
        for at, kind in ((0.0, Kind.FORWARD), (1.0, Kind.BACKWARD))
    )
    memory = {rank: MemoryTrack((0.0,), (2**20,)) for rank in range(4)}
    stages = tuple(StageSummary(n, one.ranks, one.layers, one.dtype) for n, one in enumerate(layout.stages))
    timelines = [Timeline(source, spans, memory=memory) for source in ("predicted", "measured")]
    page = printed(make_view(RunRecord("", stages, {}, (), *timelines, {"task": "train"})))
    assert "\nThe step shown\n" in page
    assert "Shown: step 3, the only one kept." in page
    assert " ".join(page.split("\n\n")[1].split("          ")[0].split()) == (
        "Seconds are of one rank in one step, bytes of all ranks in one step. A stage's transfer is all of it, that of "
        "the whole only what no computing hides. Differences are measured - predicted, and their percentages of the "
        "predicted."
    )
    assert re.findall(r"^  rank (\d)", page, re.MULTILINE) == ["0", "1", "2", "3"]


def test_a_step_with_a_residue_says_whose_bubble_is_whose(make_timeline):
    view = make_view(RunRecord("", (), predicted=make_timeline("predicted")))
    figures = {"step_s": 0.012, "makespan_s": 0.009, "residue_s": 0.001, "bubble": 0.25, "stages": []}
    said = printed(replace(view, figures={**view.figures, "predicted": {**view.figures["predicted"], **figures}}))
    assert " ".join(said.split()).count(
        "These shares are of the timeline; the bubble of 25.0 % is of the time of a step, 3 ms longer (residue, and "
        "what a step takes beside its actions)."
    )
    assert "These shares" not in printed(view)


def test_many_stages_have_a_line_each(make_timeline):
    """40 stages on 40 ranks: lines, links and memory end where a page would be filled."""
    spans = tuple(
        Span(0, span.action._replace(stage=20 * part + span.action.stage), 20 * part + span.rank, *span[3:])
        for part in range(20)
        for span in make_timeline("predicted").spans
    )
    spread = tuple(
        span._replace(action=span.action._replace(stage=index % 40), rank=index % 40)
        for index, span in enumerate(spans)
    )
    view = make_view(RunRecord("", (), predicted=Timeline("predicted", spread)))
    page = printed(view)
    assert "and 8 stages more (--json has all)" in page
    assert "and 24 rows more (the page of -o report.html has all)" in page
    assert max(map(len, page.splitlines())) <= 80
    assert "without computing: from " in page


@given(
    st.none() | timelines("predicted"),
    st.none() | timelines("measured"),
    st.integers(66, 120),
    st.sampled_from(["utf-8", "ascii", "latin-1"]),
)
@settings(max_examples=40, deadline=None)
def test_any_run_fits_on_the_page(predicted, measured, width, encoding):
    page = printed(make_view(RunRecord("", (), predicted=predicted, measured=measured)), encoding, width)
    assert max(map(len, page.splitlines())) <= max(width, 80)
