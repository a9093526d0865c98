"""A record becomes a view: sums that must hold for any run, and what is said of runs of each sort."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_timelines import timelines

from plait.plans.action import Kind, Lane
from plait.plans.file import dump_plan
from plait.plans.layout import Layout, Stage
from plait.plans.notation import parse_action
from plait.plans.plan import Plan
from plait.reports.differences import spent, stage_lines
from plait.reports.links import link_lines
from plait.reports.marks import PASS_WORDS
from plait.reports.path import path_of, path_words
from plait.reports.stands import stood_for
from plait.reports.view_of import make_view
from plait.simulator.simulate import simulate
from plait.timeline.compare import summarise
from plait.timeline.record import RunRecord, StageSummary
from plait.timeline.span import Part, Span
from plait.timeline.timeline import Timeline
from tests.simulator import test_properties as generation
from tests.simulator import test_training_properties as training
from tests.simulator.training_rounds import TINY, make_lowered_step

PLAN = Plan("tiny", Layout({"pp": 2}, (Stage((0, 15), (0,)), Stage((15, 30), (1,)))), "pipelined", 2, 64, 128, 2)


def seconds(ranks):
    return pytest.approx(ranks, rel=1e-9, abs=1e-9)


@given(st.none() | timelines("predicted", 1), st.none() | timelines("measured", 1))
@settings(max_examples=80, deadline=None)
def test_any_run_has_a_view_in_which_nothing_is_lost(predicted, measured):
    view = make_view(RunRecord("", (), predicted=predicted, measured=measured))
    ranks = {rank for timeline in view.timelines for rank in timeline.ranks}
    assert {row.rank for row in view.rows} >= ranks
    for timeline in view.timelines:
        assert len(view.causes[timeline.source]) == len(timeline.spans)
        sent = sum(span.payload_bytes for span in timeline.spans if not span.action.kind.receives)
        uses = [getattr(line, timeline.source) for line in view.links]
        assert sum(use.sent_bytes for use in uses if use is not None) == sent
        assert all(0 <= use.busy_share <= 1 + 1e-9 for use in uses if use is not None)


@given(timelines("predicted", 1), timelines("measured", 1))
@settings(max_examples=80, deadline=None)
def test_a_stages_sources_add_up_to_the_whole_difference(predicted, measured):
    layout = make_view(RunRecord("", (), predicted=predicted, measured=measured)).layout
    before, after = summarise(predicted), summarise(measured)
    ranks = {one.stage: len(one.ranks) for one in before.stages}
    for line in stage_lines(layout, predicted, measured):
        held = {one.stage: len(one.ranks) for one in after.stages}
        if line.stage in ranks and line.stage in held:
            whole = held[line.stage] * after.makespan_s - ranks[line.stage] * before.makespan_s
            assert sum(one.measured_s - one.predicted_s for one in line.sources) == seconds(whole)
            differences = [abs(one.measured_s - one.predicted_s) for one in line.sources]
            assert differences == sorted(differences, reverse=True)


@given(training.cases())
@settings(max_examples=40, deadline=None)
def test_the_time_of_every_rank_is_spent_once(case):
    if training.simulated(case) is None:
        return
    layout, one, costs = case
    timeline = simulate(layout, [one], costs, TINY)
    whole = summarise(timeline)
    found = spent(timeline)
    for shares in whole.stages:
        assert sum(found[shares.stage].values()) == seconds(len(shares.ranks) * whole.makespan_s)
        computed = sum(each for what, each in found[shares.stage].items() if what in PASS_WORDS.values())
        assert computed == seconds(shares.shares.compute_s)


@given(generation.cases())
@settings(max_examples=40, deadline=None)
def test_a_critical_path_is_made_of_the_whole_makespan(case):
    timeline = generation.simulated(case)
    if timeline is not None and timeline.spans:
        view = replace(make_view(RunRecord("", (), predicted=timeline)), layout=case[0])
        path = path_of(view, timeline)
        assert sum(each for _, each in path.seconds) == seconds(summarise(timeline).makespan_s)


def test_a_critical_path_ends_with_the_run_and_counts_overlaps_once():
    """A token is still under way when the last link is done, and the receive begins to count before its send ends."""
    layout = Layout({"pp": 2}, (Stage((0, 1), (0,)), Stage((1, 2), (1,))))
    spans = (
        Span(0, parse_action("0:0F0"), 0, 0.0, 2.0),
        Span(0, parse_action("0:0SF0"), 0, 2.0, 3.0, 8),
        Span(0, parse_action("0:1RF0"), 1, 0.0, 3.0, 0, (Part("wait", 0.0, 2.5), Part("transfer", 2.5, 3.0))),
        Span(0, parse_action("0:1F0"), 1, 3.0, 7.0),
        Span(0, parse_action("0:1ST0"), 1, 7.0, 8.0, 8),
        Span(0, parse_action("0:0RT0"), 0, 3.0, 9.0, 0, (Part("wait", 3.0, 9.0),)),
    )
    view = replace(make_view(RunRecord("", (), measured=Timeline("measured", spans))), layout=layout)
    path = path_of(view, view.measured)
    assert summarise(view.measured).makespan_s == 8.0
    assert dict(path.seconds) == {"forward": 6.0, "messages": 2.0}
    assert path_words(path).title == "Critical path, measured: 6 spans on 2 ranks, 8 s"
    assert path_words(path).made_of == "forward 6 s (75 %), messages 2 s (25 %)"


def test_without_any_timeline_nothing_contradicts_itself():
    assert make_view(RunRecord(dump_plan(PLAN), ())).missing == (
        "Nothing was measured or predicted: there are no figures.",
    )
    known = "measured.json is missing: nothing is known of what was measured."
    assert make_view(RunRecord(dump_plan(PLAN), ()), (known,)).missing == (
        known,
        "Nothing was predicted: there are no figures.",
    )


@given(training.cases(), st.booleans())
@settings(max_examples=40, deadline=None)
def test_bytes_of_positions_are_those_of_all_their_ranks(case, replicas):
    """Whether one rank of a position is simulated or all of them, the links carry the same."""
    if training.simulated(case) is None:
        return
    layout, one, costs = case
    timeline = simulate(layout, [one], costs, TINY, replicas=replicas)
    full = simulate(layout, [one], costs, TINY)
    found, wanted = link_lines(layout, timeline, None), link_lines(layout, full, None)
    axes: Counter[str] = Counter()
    for sign, lines in ((1, found), (-1, wanted)):
        for line in lines:
            assert line.predicted is not None
            axes[line.axis] += sign * line.predicted.sent_bytes
    assert not any(axes.values())


def test_stands_for_all_of_its_position():
    layout = Layout({"dp": 2, "pp": 2, "tp": 2}, (Stage((0, 1), (0, 1, 4, 5)), Stage((1, 2), (2, 3, 6, 7))))
    assert stood_for(layout, (0, 2)) == {0: (0, 1, 4, 5), 2: (2, 3, 6, 7)}
    assert stood_for(layout, (0, 1, 2, 3)) == {0: (0, 4), 1: (1, 5), 2: (2, 6), 3: (3, 7)}
    assert stood_for(layout, range(8)) == {rank: (rank,) for rank in range(8)}
    assert stood_for(layout, (1, 9)) == {1: (1,), 9: (9,)}


def test_known_sources(record):
    """Stage 1 was slower by 4 ms; stage 0 waited for it."""
    first, second = stage_lines(PLAN.layout, record.predicted, record.measured)
    told = [(one.what, one.actions, round(one.predicted_s, 6), round(one.measured_s, 6)) for one in first.sources]
    assert told == [("wait", 0, 0.001, 0.005), ("forward", 8, 0.008, 0.008)]
    told = [(one.what, one.actions, round(one.predicted_s, 6), round(one.measured_s, 6)) for one in second.sources]
    assert told == [("forward", 8, 0.008, 0.012), ("wait", 0, 0.001, 0.001)]


def test_known_links(record):
    lines = make_view(replace(record, plan=dump_plan(PLAN))).links
    assert [(line.name, line.axis, line.ranks) for line in lines] == [("0→1", "pp", (0, 1)), ("1→0", "pp", (1, 0))]
    assert [line.measured.sent_bytes for line in lines] == [8 * 1024, 8 * 8]


def test_exchanges_reductions_and_the_norm_have_lines_of_their_own():
    layout = Layout({"dp": 2, "pp": 2, "tp": 2}, (Stage((0, 1), (0, 1, 4, 5)), Stage((1, 2), (2, 3, 6, 7))))
    kinds = {"0F0": 10, "0SF0": 100, "0G0": 1000, "0N0": 10_000, "0T0": 100_000}
    spans = []
    for rank in (0, 1, 4, 5):
        for text, size in kinds.items():
            spans.append(Span(0, parse_action(f"0:{text}"), rank, 0.0, 1.0, size, (Part("transfer", 0.0, 0.5),)))
    lines = link_lines(layout, None, Timeline("measured", tuple(spans)))
    assert [(line.name, line.axis, line.measured) for line in lines] == [
        ("0→2", "pp", (100, 1.0)),
        ("1→3", "pp", (100, 1.0)),
        ("4→6", "pp", (100, 1.0)),
        ("5→7", "pp", (100, 1.0)),
        ("tp 0, 1", "tp", (20, 1.0)),
        ("tp 4, 5", "tp", (20, 1.0)),
        ("dp 0, 4", "dp", (2000, 1.0)),
        ("dp 1, 5", "dp", (2000, 1.0)),
        ("tied embedding 0, 2, 4, 6", "dp", (200_000, 1.0)),
        ("tied embedding 1, 3, 5, 7", "dp", (200_000, 1.0)),
        ("norm 0, 1, … 7 (8)", "mesh", (40_000, 1.0)),
    ]


def test_a_generation(record):
    view = make_view(replace(record, plan=dump_plan(PLAN)))
    assert view.title == "tiny: pp 2, pipelined, 2 micro-batches"
    assert (view.task, view.missing) == ("generate", ())
    assert [(row.rank, row.label, row.ranks, row.host) for row in view.rows] == [
        (0, "stage 0", (0,), "localhost"),
        (1, "stage 1", (1,), "localhost"),
    ]
    assert dict(view.facts)["schedule"] == "pipelined, micro-batches 2, chunks of 64 positions"
    assert view.reasons == ("The split was asked for: nothing was searched.",)


def test_a_plan_that_cannot_be_read_is_said(record):
    view = make_view(replace(record, plan="plait = 1\n["))
    assert [row.label for row in view.rows] == ["stage 0", "stage 1"]
    assert view.missing == (
        "The run's plan cannot be read, so that stages and ranks are those of its timelines: "
        "Invalid initial character for a key part (at end of document).",
    )


def test_a_plan_of_brackets_is_said(record):
    (said,) = make_view(replace(record, plan=f"a = {'[' * 200_000}")).missing
    assert said.startswith("The run's plan cannot be read, so that stages and ranks are those of its timelines: ")


def test_a_plan_of_other_ranks_is_said(record):
    other = replace(PLAN, layout=Layout({"pp": 1}, (Stage((0, 30), (0,)),)))
    view = make_view(replace(record, plan=dump_plan(other)))
    assert len(view.layout.stages) == 2
    assert view.missing == (
        "The run's plan is of other stages or ranks than its timelines, which are shown by what they say themselves.",
    )


def test_timelines_of_unequal_actions_are_said(record):
    short = replace(record.measured, spans=record.measured.spans[:-3])
    found = make_view(replace(record, plan=dump_plan(PLAN), measured=short)).missing
    assert found == (
        "3 actions were predicted but not measured: times and bytes that are compared are not of the same actions.",
    )
    more = replace(record.predicted, spans=record.predicted.spans[:-1])
    found = make_view(replace(record, plan=dump_plan(PLAN), predicted=more)).missing
    assert found == (
        "1 action was measured but not predicted: times and bytes that are compared are not of the same actions.",
    )


def test_what_was_never_measured_or_predicted_is_said(record):
    plan = dump_plan(PLAN)
    assert make_view(replace(record, plan=plan, measured=None)).missing == (
        "Nothing was measured: all figures are predicted.",
    )
    assert make_view(replace(record, plan=plan, predicted=None, result={"note": "no costs"})).missing == (
        "Nothing was predicted: all figures are measured (no costs).",
    )
    known = "measured.json is missing: nothing is known of what was measured."
    assert make_view(replace(record, plan=plan, measured=None), (known,)).missing == (known,)


def test_a_training_step_by_position():
    layout, one = make_lowered_step("1f1b", 2, 4, 1, capacity=4, replicas=3, buckets=1, norm=True)
    costs = training.FixedCosts(
        kind_seconds={(stage, kind): 1.0 for stage in (0, 1) for kind in Kind if kind.lane is not Lane.P2P}
    )
    timeline = simulate(layout, [one], costs, TINY, replicas=False)
    stages = tuple(StageSummary(n, s.ranks, s.layers, s.dtype) for n, s in enumerate(layout.stages))
    view = make_view(RunRecord("", stages, {"name": "tiny"}, predicted=timeline, result={"task": "train"}))
    assert view.task == "train"
    assert [(row.rank, row.label, row.ranks) for row in view.rows] == [
        (0, "stage 0, ranks 0 to 2", (0, 1, 2)),
        (3, "stage 1, ranks 3 to 5", (3, 4, 5)),
    ]
    assert (
        dict(view.facts)["shown"] == "each row is one rank, which stands for 3: seconds are its own, bytes those of all"
    )
    figures = view.figures["predicted"]
    assert figures["step_s"] == timeline.makespan_s
    assert figures["compute_s"] + figures["transfer_s"] + figures["wait_s"] == seconds(timeline.makespan_s)
    sent = sum(span.payload_bytes for span in timeline.spans) * 3
    assert figures["comm_bytes"] == sent == sum(line.predicted.sent_bytes for line in view.links)
