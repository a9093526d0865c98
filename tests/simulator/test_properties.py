"""What holds for every plan, whatever its cut, work, links and k."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.costs.protocol import FixedCosts, LinkCost
from plait.errors import PlanError
from plait.plans.action import Action, Lane
from plait.plans.check import check_rounds
from plait.plans.layout import Layout, Stage
from plait.plans.round import Carried, MicroBatch, Round, Row
from plait.plans.rules import partner, waits
from plait.schedules.generation import make_round
from plait.simulator.simulate import simulate
from plait.spec.model import ModelSpec
from plait.timeline.span import Span
from plait.timeline.timeline import Timeline

TINY = ModelSpec("tiny", "llama", 4, 64, 4, 2, 16, 128, 100, 512, 1e-5, None, (None,) * 4)
SECONDS = st.sampled_from([0.0, 0.5, 1.0, 1.5, 4.0])
CORES = st.sampled_from([None, 1, 2, 3])


@st.composite
def cases(draw: st.DrawFn) -> tuple[Layout, list[Round], FixedCosts]:
    """Rounds that the schedules make, with a prompt's chunks before and a round that drains behind."""
    stages = draw(st.integers(1, 4))
    capacity = draw(st.integers(1, 3))
    one_host = draw(st.booleans())
    made = tuple(
        Stage((i, i + 1), (i,), threads=draw(st.integers(1, 2)), host="box" if one_host else f"box{i}")
        for i in range(stages)
    )
    rounds = _rounds(
        stages,
        draw(st.integers(0, 3)),
        draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)),
        draw(st.sampled_from(["layerwise", "pipelined"])),
    )
    costs = FixedCosts(
        {stage: draw(SECONDS) for stage in range(stages)},
        cores=draw(CORES),
        any_link=LinkCost(
            draw(SECONDS), draw(st.sampled_from([64.0, 1e3, float("inf")])), buffered=draw(st.booleans())
        ),
    )
    return Layout({"pp": stages}, made, link_capacity=capacity), rounds, costs


def _rounds(stages: int, chunks: int, decodes: list[int], schedule: str) -> list[Round]:
    works = [(MicroBatch((Row(0, 0, 64 * i, 64, i == chunks - 1),)),) for i in range(chunks)]
    works += [tuple(MicroBatch((Row(i, i, 200 + n, 1, True),)) for i in range(many)) for n, many in enumerate(decodes)]
    rounds: list[Round] = []
    carried: tuple[Carried, ...] = ()
    while works or carried:
        work = works.pop(0) if works else ()
        rounds.append(make_round(len(rounds), stages, work, carried, schedule))
        carried = rounds[-1].carried_out
    return rounds


def simulated(case: tuple[Layout, list[Round], FixedCosts]) -> Timeline | None:
    """The timeline; None where the checker proves a deadlock, and then the simulator must find it too."""
    layout, rounds, costs = case
    try:
        check_rounds(rounds, len(layout.stages), layout.link_capacity)
    except PlanError:
        with pytest.raises(PlanError, match="deadlock"):
            simulate(layout, rounds, costs, TINY)
        return None
    return simulate(layout, rounds, costs, TINY)


@given(cases())
@settings(max_examples=150, deadline=None)
def test_every_action_has_one_span_in_the_order_of_its_lane(case: tuple[Layout, list[Round], FixedCosts]) -> None:
    timeline = simulated(case)
    if timeline is None:
        return
    planned: dict[tuple[int, Lane], list[Action]] = defaultdict(list)
    for one in case[1]:
        for position, actions in enumerate(one.actions):
            for action in actions:
                planned[position, action.kind.lane].append(action)
    spans: dict[tuple[int, Lane], list[Span]] = defaultdict(list)
    for span in timeline.spans:
        spans[span.rank, span.action.kind.lane].append(span)
    assert {lane: [span.action for span in of_lane] for lane, of_lane in spans.items()} == planned
    for of_lane in spans.values():
        for before, after in pairwise(of_lane):
            hands_over = case[2].any_link.buffered and before.action.kind.sends
            assert before.start_s <= before.end_s
            assert (before.start_s if hands_over else before.end_s) <= after.start_s


@given(cases())
@settings(max_examples=150, deadline=None)
def test_waits_links_and_capacity_are_respected(case: tuple[Layout, list[Round], FixedCosts]) -> None:
    timeline = simulated(case)
    if timeline is None:
        return
    layout, rounds, costs = case
    by_action = {span.action: span for span in timeline.spans}
    for one in rounds:
        for actions in one.actions:
            for action, waited in zip(actions, waits(actions), strict=True):
                for index in waited:
                    assert by_action[actions[index]].end_s <= by_action[action].start_s
    for span in timeline.spans:
        if span.action.kind.receives:
            send = by_action[partner(span.action, len(layout.stages))]
            assert span.end_s >= send.end_s + costs.any_link.latency_s - 1e-9
            assert span.end_s == pytest.approx(max(span.start_s, send.end_s + costs.any_link.latency_s))


@given(cases())
@settings(max_examples=150, deadline=None)
def test_makespan_is_bounded_below(case: tuple[Layout, list[Round], FixedCosts]) -> None:
    """By the busiest rank, by the cores, and by the longest micro-batch's way through the stages."""
    timeline = simulated(case)
    if timeline is None:
        return
    layout, rounds, costs = case
    work = {stage: costs.seconds[stage] * sum(len(one.work) for one in rounds) for stage in costs.seconds}
    through = sum(costs.seconds.values()) + (len(costs.seconds) - 1) * costs.any_link.latency_s
    assert timeline.makespan_s >= max(work.values()) - 1e-9
    assert timeline.makespan_s >= through - 1e-9
    if costs.cores is not None and {stage.host for stage in layout.stages} == {"box"}:
        core_s = sum(work[i] * min(stage.threads, costs.cores) for i, stage in enumerate(layout.stages))
        assert timeline.makespan_s >= core_s / costs.cores - 1e-6


@given(cases())
@settings(max_examples=100, deadline=None)
def test_doubling_all_costs_doubles_the_makespan(case: tuple[Layout, list[Round], FixedCosts]) -> None:
    timeline = simulated(case)
    if timeline is None:
        return
    layout, rounds, costs = case
    once = costs.any_link
    link = LinkCost(2 * once.latency_s, once.bandwidth_bytes_per_s / 2, buffered=once.buffered)
    doubled = FixedCosts({stage: 2 * s for stage, s in costs.seconds.items()}, cores=costs.cores, any_link=link)
    assert simulate(layout, rounds, doubled, TINY).makespan_s == pytest.approx(2 * timeline.makespan_s)


@given(cases())
@settings(max_examples=50, deadline=None)
def test_the_same_plan_gives_the_same_timeline(case: tuple[Layout, list[Round], FixedCosts]) -> None:
    timeline = simulated(case)
    assert timeline is None or simulated(case) == timeline
