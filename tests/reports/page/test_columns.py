"""Spans as columns: every number of a small pipeline, and of any timeline what it holds altogether."""

from __future__ import annotations

from base64 import b64decode
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given

from plait.plans.layout import Layout, Stage
from plait.plans.notation import format_action, parse_action
from plait.reports.moments import Moments
from plait.reports.page import columns
from plait.reports.page.columns import KINDS, SORT_NAMES, Columns, encode, join, make_columns
from plait.timeline.causes import Cause, find_causes
from plait.timeline.span import Part, Span
from plait.timeline.timeline import Timeline

from .views import decoding, layout


def any_timelines():  # tests/reports is no package that a test below it can name
    import importlib.util
    from pathlib import Path

    path = Path(__file__).resolve().parent.parent / "random_timelines.py"
    spec = importlib.util.spec_from_file_location("random_timelines", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.timelines("measured").map(_small_parts)


def _small_parts(timeline: Timeline) -> Timeline:
    """Numbers of parts as passes give them."""
    spans = (
        span if span.action.part is None else span._replace(action=span.action._replace(part=span.action.part % 64))
        for span in timeline.spans
    )
    return Timeline(timeline.source, tuple(spans))


def notation(held: Columns, at: int) -> str:
    of = {name: column[at] for name, column in held.columns.items() if name != "parts"}
    part = "" if of["part"] < 0 else f".{of['part']}"
    return f"{of['round']}:{of['stage']}{KINDS[of['kind']]}{of['micro_batch']}{part}"


def test_a_small_pipeline_number_for_number() -> None:
    timeline = decoding("measured", 1, stages=2)
    shape = layout(2)
    held = make_columns(timeline, {0: 0, 1: 1}, find_causes(timeline, shape))
    # rank 0: 0F0 [0, 1]; 0SF0 [1, 1.1], 0RT0 [1.1, 2.2]. rank 1: 1F0 [1.1, 2.1]; 1RF0 [0, 1.1], 1ST0 [2.1, 2.2]
    assert [notation(held, at) for at in range(6)] == ["0:0F0", "0:0SF0", "0:0RT0", "0:1F0", "0:1RF0", "0:1ST0"]
    assert held.first.tolist() == [0, 1, 3, 4, 6]
    assert held.columns["start"] * 1e3 == pytest.approx([0, 1, 1.1, 1.1, 0, 2.1])
    assert held.columns["length"] * 1e3 == pytest.approx([1, 0.1, 1.1, 1, 1.1, 0.1])
    assert held.columns["bytes"].tolist() == [64, 1024, 0, 64, 0, 1024]
    assert held.columns["transfer"] * 1e3 == pytest.approx([0.1, 0, 0, 0.1, 0, 0], abs=1e-6)
    assert held.columns["wait"] * 1e3 == pytest.approx([0, 0, 1, 0, 1, 0], abs=1e-6)
    assert [SORT_NAMES[sort] for sort in held.columns["sort"]] == ["forward", "message", "message"] * 2
    # 0F0's exchange; 0RT0's wait; 1F0's exchange; 1RF0's wait
    assert held.columns["parts"].tolist() == [0, 1, 1, 2, 3, 4, 4]
    assert held.pieces["code"].tolist() == [1, 2, 1, 2]
    assert held.pieces["start"] * 1e3 == pytest.approx([0.9, 0, 0.9, 0], abs=1e-6)
    assert held.pieces["length"] * 1e3 == pytest.approx([0.1, 1, 0.1, 1], abs=1e-6)
    # 0F0 <- nothing; 0SF0 <- 0F0; 1RF0 <- 0SF0 (a message); 1F0 <- 1RF0; 1ST0 <- 1F0; 0RT0 <- 1ST0
    assert held.columns["cause"].tolist() == [-1, 0, 5, 4, 1, 3]
    assert [columns.WHYS[why] for why in held.columns["why"]] == [
        "start", "order", "message", "order", "message", "order",
    ]  # fmt: skip
    assert held.critical.tolist() == [0, 1, 4, 3, 5, 2]
    assert (held.origin_s, held.end_s, held.notes) == (0.0, pytest.approx(2.2e-3), ())


def test_a_prediction_says_how_long_its_exchanges_take_not_when() -> None:
    held = make_columns(decoding("predicted", 1, stages=2), {0: 0, 1: 1})
    assert held.pieces["code"].tolist() == [2, 2]
    assert held.columns["transfer"] * 1e3 == pytest.approx([0.1, 0, 0, 0.1, 0, 0], abs=1e-6)


def test_predicted_exchanges_have_a_pattern_that_is_held_once() -> None:
    """Three rounds on two stages of 7 layers: one pattern a stage, since the last one has a head of 7 layers."""
    timeline, moments = decoding("predicted", 3, stages=2), Moments(layout(2), head=7.0)
    held = make_columns(timeline, {0: 0, 1: 1}, (), moments)
    assert held.columns["pattern"].tolist() == [1, 1, 1] + [0] * 6 + [2, 2, 2] + [0] * 6
    assert held.patterns["first"].tolist() == [0, 15, 30]
    first, second = held.patterns["at"][:15], held.patterns["at"][15:]
    assert first[:4] == pytest.approx([0, 1 / 21, 3 / 21, 4 / 21], abs=1e-6)
    assert second == pytest.approx(first / 2, abs=1e-6)
    assert held.columns["transfer"].sum() == pytest.approx(6 * 0.1e-3, rel=1e-6)
    measured = make_columns(decoding("measured", 3, stages=2), {0: 0, 1: 1}, (), moments)
    assert not measured.columns["pattern"].any()
    assert not make_columns(timeline, {0: 0, 1: 1}).columns["pattern"].any()


def test_a_run_that_began_at_some_time_of_its_clock_begins_at_0() -> None:
    timeline = decoding("measured", 2)
    later = Timeline(
        "measured",
        tuple(
            span._replace(
                start_s=span.start_s + 1e5,
                end_s=span.end_s + 1e5,
                parts=tuple(Part(what, start + 1e5, end + 1e5) for what, start, end in span.parts),
            )
            for span in timeline.spans
        ),
    )
    rows = {rank: rank for rank in range(4)}
    one, other = make_columns(timeline, rows), make_columns(later, rows)
    assert other.origin_s == 1e5
    assert other.columns["start"] == pytest.approx(one.columns["start"], abs=1e-9)
    assert other.end_s == pytest.approx(one.end_s)


def test_the_same_action_is_found_in_both_timelines() -> None:
    predicted = decoding("predicted", 3)
    twice = predicted.spans[0]._replace(start_s=1.0, end_s=1.5)  # a second 0:0F0, in the measured timeline alone
    kept = tuple(span for span in predicted.spans if format_action(span.action) != "1:2F0")
    rows = {rank: rank for rank in range(4)}
    first, second = make_columns(predicted, rows), make_columns(Timeline("measured", (*kept, twice)), rows)
    join(first, second)
    alone = [notation(first, at) for at in range(first.count) if first.columns["mate"][at] < 0]
    assert alone == ["1:2F0"]
    assert [notation(second, at) for at in range(second.count) if second.columns["mate"][at] < 0] == ["0:0F0"]
    for at, mate in enumerate(second.columns["mate"]):
        if mate >= 0:
            assert notation(first, mate) == notation(second, at)
            assert first.columns["mate"][mate] == at


def test_ranks_without_a_row_are_left_out_and_causes_there_are_said_to_be() -> None:
    timeline = decoding("predicted", 2)
    causes = find_causes(timeline, layout())
    held = make_columns(timeline, {1: 0}, causes)
    assert held.count == 6
    of_receives = [held.columns["cause"][at] for at in range(6) if KINDS[held.columns["kind"][at]] == "RF"]
    assert of_receives == [-2, -2]
    assert set(held.critical.tolist()) == set(range(6))


def test_more_spans_than_a_page_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MAX_SPANS", 10)
    timeline = decoding("measured", 5)
    held = make_columns(timeline, {rank: rank for rank in range(4)}, find_causes(timeline, layout()))
    assert held.count == 10
    assert held.notes == ("Measured: the picture has the first 10 of 60 spans; the tables are of the whole run.",)
    assert max(held.columns["start"]) <= sorted(span.start_s for span in timeline.spans)[10]
    assert max(held.critical) < 10


def test_more_parts_than_a_page_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MAX_PARTS", 3)
    held = make_columns(decoding("measured", 1, stages=2), {0: 0, 1: 1})
    assert held.notes == (
        "Measured: of 1 spans the page holds how long their parts took together, not when; it holds 3 parts.",
    )
    assert held.columns["parts"].tolist() == [0, 1, 1, 2, 3, 3, 3]
    assert held.columns["wait"][4] * 1e3 == pytest.approx(1, abs=1e-6)


def test_a_column_is_little_endian_bytes() -> None:
    assert encode(np.array([1, -2], dtype=">i4")) == {"type": "int32", "data": "AQAAAP7///8="}
    assert encode(np.array([], dtype=np.float64)) == {"type": "float64", "data": ""}


@given(any_timelines())
def test_any_timeline_keeps_all_that_it_holds(timeline: Timeline) -> None:
    ranks = {rank: row for row, rank in enumerate(timeline.ranks)}
    held = make_columns(timeline, ranks, tuple(Cause(-1, "start") for _ in timeline.spans))
    assert held.count == len(timeline.spans)
    assert held.columns["bytes"].sum() == sum(span.payload_bytes for span in timeline.spans)
    assert held.columns["length"].sum() == pytest.approx(sum(span.end_s - span.start_s for span in timeline.spans))
    assert sorted(notation(held, at) for at in range(held.count)) == sorted(
        format_action(span.action) for span in timeline.spans
    )
    waits = sum(part.end_s - part.start_s for span in timeline.spans for part in span.parts if part.what == "wait")
    assert held.columns["wait"].sum() == pytest.approx(waits, rel=1e-5, abs=1e-9)
    bands = held.first.astype(int)
    for begin, end in pairwise(bands):
        assert (np.diff(held.columns["start"][begin:end]) >= 0).all()
    assert bands[-1] == held.count
    assert len(b64decode(encode(held.columns["start"])["data"])) == 8 * held.count


def test_a_part_of_an_action_and_an_epoch_are_kept() -> None:
    shape = Layout({"pp": 1}, (Stage((0, 1), (0,)),))
    spans = (Span(3, parse_action("0:0B7.1"), 0, 0.0, 1.0), Span(4, parse_action("0:0B7"), 0, 1.0, 2.0))
    timeline = Timeline("predicted", spans)
    held = make_columns(timeline, {0: 0}, find_causes(timeline, shape))
    assert held.columns["part"].tolist() == [1, -1]
    assert held.columns["epoch"].tolist() == [3, 4]
