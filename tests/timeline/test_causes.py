"""What let each span begin: on any simulated plan every moment is explained, and known chains are found."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.costs.protocol import FixedCosts, LinkCost
from plait.plans.action import Action, Kind
from plait.plans.layout import Layout, Stage
from plait.simulator.simulate import simulate
from plait.timeline.causes import Cause, critical_path, find_causes, goes_s
from plait.timeline.span import Part, Span
from plait.timeline.timeline import Timeline
from tests.simulator import test_properties as generation
from tests.simulator import test_training_properties as training
from tests.simulator.training_rounds import TINY, make_lowered_step


def _explained(timeline: Timeline, layout: Layout, link: LinkCost) -> None:
    """Nothing begins before its cause has ended, and nothing later than that, but for what a link takes."""
    causes = find_causes(timeline, layout)
    spans = timeline.spans
    assert len(causes) == len(spans)
    for span, (index, why) in zip(spans, causes, strict=True):
        moment_s = goes_s(span)
        if why == "start":
            assert (index, moment_s) == (-1, 0.0), span
            continue
        cause = spans[index]
        if why == "message" and span.action.kind.receives:
            arrives_s = cause.end_s + link.latency_s
            assert moment_s in (pytest.approx(arrives_s), pytest.approx(arrives_s + link.wake_s)), (span, cause)
        elif cause.action.kind.sends and cause.end_s > moment_s:
            assert link.buffered, (span, cause)  # its lane went on before the link had sent it
            assert cause.start_s <= moment_s, (span, cause)
        else:
            assert moment_s == pytest.approx(cause.end_s), (span, cause)
    _path_is_whole(timeline, causes)


def _path_is_whole(timeline: Timeline, causes: tuple[Cause, ...]) -> None:
    path = critical_path(timeline, causes)
    assert causes[path[0]].why == "start"
    assert goes_s(timeline.spans[path[0]]) == timeline.start_s
    assert timeline.spans[path[-1]].end_s == timeline.end_s
    assert all(causes[after].span == before for before, after in pairwise(path))
    assert len(set(path)) == len(path)


@given(generation.cases())
@settings(max_examples=120, deadline=None)
def test_every_moment_of_a_generation_is_explained(case):
    layout, _, costs = case
    timeline = generation.simulated(case)
    if timeline is not None and timeline.spans:
        _explained(timeline, layout, costs.any_link)


@given(training.cases(), st.booleans())
@settings(max_examples=120, deadline=None)
def test_every_moment_of_a_training_step_is_explained(case, replicas):
    layout, one, costs = case
    if training.simulated(case) is not None:
        timeline = simulate(layout, [one], costs, TINY, replicas=replicas)
        _explained(timeline, layout, costs.any_link)


@given(generation.cases())
@settings(max_examples=40, deadline=None)
def test_a_part_of_a_timeline_has_causes_too(case):
    timeline = generation.simulated(case)
    if timeline is not None and timeline.spans:
        part = Timeline(timeline.source, timeline.spans[len(timeline.spans) // 2 :], timeline.hosts)
        causes = find_causes(part, case[0])
        assert len(causes) == len(part.spans)
        assert all(-1 <= cause.span < len(part.spans) for cause in causes)
        assert critical_path(part, causes)


def test_two_stages_in_turn():
    layout = Layout({"pp": 2}, (Stage((0, 1), (0,)), Stage((1, 2), (1,))))
    forward, backward = Kind.FORWARD, Kind.BACKWARD
    seconds = {(stage, kind): 1.0 for stage in (0, 1) for kind in (forward, backward)}
    costs = FixedCosts(kind_seconds=seconds, any_link=LinkCost(0.5, float("inf")))
    layout, one = make_lowered_step("1f1b", 2, 1, 1, capacity=2, replicas=1, buckets=1)
    timeline = simulate(layout, [one], costs, TINY)
    path = critical_path(timeline, find_causes(timeline, layout))
    named = [(span.action.kind.value, span.rank) for span in (timeline.spans[index] for index in path)]
    chain = [("F", 0), ("SF", 0), ("RF", 1), ("F", 1), ("B", 1), ("SB", 1), ("RB", 0), ("B", 0)]
    assert named[: len(chain)] == chain
    assert set(named[len(chain) :]) <= {("O", 0)}
    assert timeline.makespan_s == pytest.approx(5.0)  # four computations and two hops


def test_a_late_member_of_a_tensor_group_is_named():
    """Rank 1's forward began late, for its message; rank 0, which exchanges with it, waited for the same message."""
    layout = Layout({"pp": 2, "tp": 2}, (Stage((0, 1), (0, 1)), Stage((1, 2), (2, 3))))
    sends = [Span(0, Action(0, 0, Kind.SEND_FORWARD, 0), rank, 0.0, 1.0 + rank, 8) for rank in (0, 1)]
    receives, forwards = [], []
    for rank, sent in zip((2, 3), sends, strict=True):
        take, forward = Action(0, 1, Kind.RECEIVE_FORWARD, 0), Action(0, 1, Kind.FORWARD, 0)
        receives.append(Span(0, take, rank, 0.0, sent.end_s, 0, (Part("wait", 0.0, sent.end_s),)))
        parts = (Part("compute", sent.end_s, 2.5), Part("transfer", 2.5, 3.0))
        forwards.append(Span(0, forward, rank, sent.end_s, 3.0, 16, parts))
    timeline = Timeline("measured", (*sends, *receives, *forwards))
    assert find_causes(timeline, layout) == (
        Cause(-1, "start"),
        Cause(-1, "start"),
        Cause(0, "message"),
        Cause(1, "message"),
        Cause(3, "exchange"),
        Cause(3, "order"),
    )


def test_a_send_that_waited_for_room_names_the_receive_that_made_it():
    layout = Layout({"pp": 2}, (Stage((0, 1), (0,)), Stage((1, 2), (1,))), link_capacity=1)
    send, take = Kind.SEND_FORWARD, Kind.RECEIVE_FORWARD
    spans = (
        Span(0, Action(0, 0, send, 0), 0, 0.0, 1.0, 8),
        Span(0, Action(0, 1, take, 0), 1, 0.0, 3.0, 0, (Part("wait", 0.0, 3.0),)),
        Span(0, Action(0, 0, send, 1), 0, 1.0, 4.0, 8, (Part("wait", 1.0, 3.0), Part("transfer", 3.0, 4.0))),
    )
    assert find_causes(Timeline("predicted", spans), layout)[2] == Cause(1, "message")


def test_an_empty_timeline_has_no_path():
    empty = Timeline("measured", ())
    assert find_causes(empty, Layout({"pp": 1}, (Stage((0, 1), (0,)),))) == ()
    assert critical_path(empty, ()) == ()
