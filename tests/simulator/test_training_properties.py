"""What holds for every training step, whatever its schedule, seconds, links and k."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.costs.protocol import FixedCosts, LinkCost
from plait.errors import PlanError
from plait.plans.action import Action, Kind, Lane
from plait.plans.layout import Layout
from plait.plans.round import Round
from plait.plans.rules import partner, waits
from plait.simulator.simulate import simulate
from plait.timeline.compare import parts
from plait.timeline.span import Part, Span
from plait.timeline.timeline import Timeline
from plait.timeline.training_metrics import training_metrics
from tests.simulator.reference import reference
from tests.simulator.training_rounds import PASSES, TINY, make_lowered_step, make_step

Case = tuple[Layout, Round, FixedCosts]

SCHEDULES = [
    ("layerwise", 1),
    ("gpipe", 1),
    ("1f1b", 1),
    ("interleaved", 2),
    ("interleaved", 3),
    ("zb-h1", 1),
    ("zb-h2", 1),
    ("zb-v", 2),
    ("dualpipe-v", 2),
]
SECONDS = st.sampled_from([0.0, 0.25, 1.0, 1.5, 3.0])
BANDWIDTHS = st.sampled_from([4096.0, 16384.0, 1e6, float("inf")])


@st.composite
def cases(draw: st.DrawFn, capacities: tuple[int, ...] = (1, 2, 64)) -> Case:
    schedule, virtual = draw(st.sampled_from(SCHEDULES))
    shape = (schedule, draw(st.integers(1, 4)), draw(st.integers(1, 6)), virtual)
    capacity, ranks = draw(st.sampled_from(capacities)), draw(st.integers(1, 2))
    if draw(st.booleans()):
        layout, one = make_step(*shape, reduces=draw(st.booleans()), capacity=capacity, ranks_each=ranks)
    else:
        buckets, tied, norm = draw(st.integers(1, 3)), draw(st.booleans()), draw(st.booleans())
        how = {"capacity": capacity, "replicas": ranks, "buckets": buckets, "tied": tied, "norm": norm}
        layout, one = make_lowered_step(*shape, **how)
    return layout, one, draw(costs_of(len(layout.stages)))


@st.composite
def costs_of(draw: st.DrawFn, stages: int) -> FixedCosts:
    ends = [Kind.OPTIMIZER, Kind.REDUCE_GRADIENTS, Kind.GATHER_PARAMETERS, Kind.REDUCE_TIED, Kind.NORM]
    kinds = [*PASSES, *ends]
    return FixedCosts(
        kind_seconds={(stage, kind): draw(SECONDS) for stage in range(stages) for kind in kinds},
        any_link=LinkCost(draw(SECONDS), draw(BANDWIDTHS), draw(st.sampled_from([0.0, 0.125])), draw(st.booleans())),
    )


def simulated(case: Case) -> Timeline | None:
    """The timeline of each position's first rank; None where the plain reference gets stuck, and then both must."""
    layout, one, costs = case
    if reference(layout, [one], costs, TINY) is None:
        with pytest.raises(PlanError, match="deadlock"):
            simulate(layout, [one], costs, TINY)
        return None
    return simulate(layout, [one], costs, TINY, replicas=False)


@given(cases())
@settings(max_examples=120, deadline=None)
def test_the_same_times_as_the_plain_reference(case: Case) -> None:
    timeline = simulated(case)
    if timeline is not None:
        layout, one, costs = case
        times = {span.action: (span.start_s, span.end_s) for span in timeline.spans}
        assert times == reference(layout, [one], costs, TINY)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_what_the_passes_make_never_gets_stuck(data: st.DataObject) -> None:
    """Whatever k, and whatever anything takes."""
    schedule, virtual = data.draw(st.sampled_from(SCHEDULES))
    positions, micro_batches, capacity = (data.draw(st.integers(1, most)) for most in (4, 6, 3))
    layout, one = make_lowered_step(
        schedule,
        positions,
        micro_batches,
        virtual,
        capacity=capacity,
        replicas=2,
        buckets=data.draw(st.integers(1, 3)),
        tied=data.draw(st.booleans()),
        norm=data.draw(st.booleans()),
    )
    costs = data.draw(costs_of(len(layout.stages)))
    assert len(simulate(layout, [one], costs, TINY).spans) == 2 * sum(map(len, one.actions))


@given(cases())
@settings(max_examples=80, deadline=None)
def test_lanes_keep_their_order_and_never_overlap(case: Case) -> None:
    timeline = simulated(case)
    if timeline is None:
        return
    lanes: dict[tuple[int, Lane], list[Span]] = defaultdict(list)
    for span in timeline.spans:
        lanes[span.rank, span.action.kind.lane].append(span)
    planned: dict[tuple[int, Lane], list[Action]] = defaultdict(list)
    for rank, actions in zip(timeline.ranks, case[1].actions, strict=True):
        for action in actions:
            planned[rank, action.kind.lane].append(action)
    assert {lane: [span.action for span in spans] for lane, spans in lanes.items()} == planned
    buffered = case[2].any_link.buffered
    for spans in lanes.values():
        for before, after in pairwise(spans):
            assert before.start_s <= before.end_s
            assert (before.start_s if buffered and before.action.kind.sends else before.end_s) <= after.start_s


@given(cases((64,)))
@settings(max_examples=60, deadline=None)
def test_a_buffered_link_is_never_slower_and_sends_one_message_at_a_time(case: Case) -> None:
    """Nobody sleeps here, as above; with room enough."""
    layout, one, costs = case
    link = replace(costs.any_link, wake_s=0.0)
    copied = simulate(layout, [one], replace(costs, any_link=replace(link, buffered=False)), TINY, replicas=False)
    carded = simulate(layout, [one], replace(costs, any_link=replace(link, buffered=True)), TINY, replicas=False)
    assert carded.end_s <= copied.end_s + 1e-9
    links: dict[tuple[int, bool], list[Part]] = defaultdict(list)
    for span in carded.spans:
        if span.action.kind.sends:
            links[span.rank, span.action.kind is Kind.SEND_BACKWARD].append(parts(span)[-1])
    if layout.positions == tuple((stage,) for stage in range(len(layout.stages))):
        for sent in links.values():
            for before, after in pairwise(sent):
                assert before.end_s <= after.start_s


@given(cases())
@settings(max_examples=80, deadline=None)
def test_every_wait_and_every_message_is_kept(case: Case) -> None:
    timeline = simulated(case)
    if timeline is None:
        return
    layout, one, costs = case
    by_action = {span.action: span for span in timeline.spans}
    for actions in one.actions:
        for action, waited in zip(actions, waits(actions), strict=True):
            for index in waited:
                assert by_action[actions[index]].end_s <= by_action[action].start_s
    for span in timeline.spans:
        if span.action.kind.receives:
            sent = by_action[partner(span.action, len(layout.stages))]
            assert span.end_s >= sent.end_s + costs.any_link.latency_s


@given(cases())
@settings(max_examples=80, deadline=None)
def test_makespan_is_bounded_below(case: Case) -> None:
    """By the busiest lane, and by one micro-batch's way forward through all stages and back."""
    timeline = simulated(case)
    if timeline is None:
        return
    costs = case[2]
    lanes: dict[tuple[int, Lane], float] = defaultdict(float)
    way_s, hops = 0.0, 0
    for rank, action in {(span.rank, span.action._replace(part=None)) for span in timeline.spans}:
        seconds = costs.kind_seconds.get((action.stage, action.kind), 0.0)
        lanes[rank, action.kind.lane] += seconds
        if action.micro_batch == 0:
            hops += action.kind.sends
            way_s += seconds if action.kind in PASSES and action.kind is not Kind.BACKWARD_WEIGHT else 0.0
    assert timeline.end_s >= max(lanes.values()) - 1e-9
    assert timeline.end_s >= way_s + hops * costs.any_link.latency_s - 1e-9


@given(cases((64,)), st.floats(1.0, 100.0), st.floats(0.0, 1.0))
@settings(max_examples=80, deadline=None)
def test_better_links_are_never_slower(case: Case, faster: float, shorter: float) -> None:
    """Nobody sleeps here: who waits long enough to sleep wakes late, so that sooner may be later."""
    layout, one, costs = case
    link = replace(costs.any_link, wake_s=0.0)
    latency_s, bandwidth = link.latency_s * shorter, link.bandwidth_bytes_per_s * faster
    better = replace(link, latency_s=latency_s, bandwidth_bytes_per_s=bandwidth)
    before = simulate(layout, [one], replace(costs, any_link=link), TINY, replicas=False)
    after = simulate(layout, [one], replace(costs, any_link=better), TINY, replicas=False)
    assert after.end_s <= before.end_s + 1e-9


@given(cases((1, 2)))
@settings(max_examples=60, deadline=None)
def test_more_room_is_never_slower(case: Case) -> None:
    layout, one, costs = case
    costs = replace(costs, any_link=replace(costs.any_link, wake_s=0.0))
    tight = simulated((layout, one, costs))
    roomy = simulate(replace(layout, link_capacity=64), [one], costs, TINY, replicas=False)
    assert tight is None or roomy.end_s <= tight.end_s + 1e-9


@given(cases())
@settings(max_examples=60, deadline=None)
def test_the_figures_add_up(case: Case) -> None:
    timeline = simulated(case)
    if timeline is None:
        return
    layout, one, costs = case
    got = training_metrics(timeline, layout)
    assert got["compute_s"] + got["transfer_s"] + got["wait_s"] == pytest.approx(got["step_s"] * layout.ranks)
    if got["step_s"] > 0:
        assert got["bubble"] == pytest.approx(1 - got["compute_s"] / (got["step_s"] * layout.ranks))
    assert -1e-9 <= got["span_bubble"] <= 1
    sent = sum(span.payload_bytes for span in simulate(layout, [one], costs, TINY).spans)
    assert got["comm_bytes"] == sent
