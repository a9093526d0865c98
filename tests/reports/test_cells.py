from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_timelines import timelines

from plait.plans.action import Lane
from plait.plans.notation import parse_action
from plait.reports.cells import Segment, paint, segments
from plait.reports.marks import IDLE, TRANSFER, UNICODE, WAIT, Mark, What
from plait.timeline.span import Part, Span

F0, F1 = Mark(What.COMPUTE, 0), Mark(What.COMPUTE, 1)


def drawn(row, cells, start_s=0.0, cell_s=1.0):
    return "".join(UNICODE.of(mark) for mark in paint(row, start_s, cell_s, cells))


def test_a_cell_shows_what_fills_most_of_it():
    row = [Segment(F0, 0.0, 2.6), Segment(F1, 2.6, 4.0), Segment(WAIT, 4.0, 5.0), Segment(TRANSFER, 5.0, 6.0)]
    assert drawn(row, 8) == "███▒·━  "


def test_half_busy_cells_come_out_half_busy():
    row = [Segment(F0, index, index + 0.5) for index in range(8)]
    assert drawn(row, 8) == "█ █ █ █ "


def test_an_eighth_busy_is_not_lost():
    row = [Segment(F0, index, index + 0.125) for index in range(20)]
    assert drawn(row, 20) == "   █       █       █"


def test_two_micro_batches_in_every_cell_take_turns():
    row = [Segment(mark, index + half, index + half + 0.5) for index in range(6) for half, mark in ((0, F0), (0.5, F1))]
    assert drawn(row, 6) == "█▒█▒█▒"


def test_the_window_cuts_what_lies_outside():
    row = [Segment(F0, 0.0, 10.0), Segment(F1, 10.0, 20.0)]
    assert drawn(row, 6, start_s=8.0, cell_s=1.0) == "██▒▒▒▒"


def test_compute_hides_a_transfer_and_a_transfer_hides_a_wait():
    found = segments(
        [
            Span(0, parse_action("0F1"), 0, 2.0, 4.0),
            Span(0, parse_action("0SF0"), 0, 1.0, 3.0),
            Span(0, parse_action("1:0RT0"), 0, 0.0, 6.0, 0, (Part("wait", 0.0, 5.0), Part("transfer", 5.0, 6.0))),
        ]
    )
    assert found == [
        Segment(WAIT, 0.0, 1.0),
        Segment(TRANSFER, 1.0, 2.0),
        Segment(F1, 2.0, 3.0),
        Segment(F1, 3.0, 4.0),
        Segment(WAIT, 4.0, 5.0),
        Segment(TRANSFER, 5.0, 6.0),
    ]


@given(timelines("measured"))
def test_segments_do_not_overlap_and_cover_what_the_spans_cover(timeline):
    found = segments(timeline.spans)
    assert all(before.end_s <= after.start_s for before, after in pairwise(found))
    moments = [segment.start_s / 2 + segment.end_s / 2 for segment in found]
    for moment, segment in zip(moments, found, strict=True):
        assert any(span.start_s <= moment <= span.end_s for span in timeline.spans)
        computing = any(
            span.action.kind.lane is Lane.COMPUTE and span.start_s < moment < span.end_s for span in timeline.spans
        )
        assert (segment.mark.what is What.COMPUTE) == computing


@given(timelines("measured"), st.integers(1, 90))
def test_busy_cells_are_truthful_to_one_cell(timeline, cells):
    found = segments(timeline.spans)
    cell_s = 0.1 / cells
    marks = paint(found, 0.0, cell_s, cells)
    busy_s = sum(segment.end_s - segment.start_s for segment in found if segment.mark.what is What.COMPUTE)
    assert len(marks) == cells
    assert abs(sum(mark.what is What.COMPUTE for mark in marks) * cell_s - busy_s) <= cell_s


@given(timelines("measured"), st.integers(1, 90))
def test_a_cell_never_shows_what_does_not_happen_in_it(timeline, cells):
    found = segments(timeline.spans)
    cell_s = 0.1 / cells
    for index, mark in enumerate(paint(found, 0.0, cell_s, cells)):
        begin, end = index * cell_s - 1e-9, (index + 1) * cell_s + 1e-9
        if mark != IDLE:
            assert any(one.mark == mark and one.end_s > begin and one.start_s < end for one in found)


@pytest.mark.parametrize("cells", [1, 7])
def test_nothing_is_blank(cells):
    assert drawn([], cells) == " " * cells
