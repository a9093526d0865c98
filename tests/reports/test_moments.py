"""Where predicted exchanges stand: by hand for few layers, and for any span and any run with every sum unchanged."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.costs.protocol import Exchange, FixedCosts
from plait.plans.action import Action, Kind
from plait.plans.file import dump_plan
from plait.plans.layout import Layout, Stage
from plait.plans.notation import parse_action
from plait.plans.plan import Plan
from plait.plans.round import MicroBatch, Row
from plait.reports.moments import ASSUMED, Moments, make_moments
from plait.reports.perfetto import trace
from plait.reports.view_of import make_view
from plait.schedules.generation import make_round
from plait.simulator.simulate import simulate
from plait.spec.model import ModelSpec
from plait.timeline.compare import COMPUTE, TRANSFER, WAIT, summarise
from plait.timeline.record import RoundRecipe, RunRecord
from plait.timeline.span import Part, Span
from plait.timeline.timeline import Timeline

SPEC = ModelSpec("tiny", "llama", 4, 64, 4, 2, 16, 128, 100, 512, 1e-5, None, (None,) * 4)


def layout_of(*counts: int, tp: int = 2) -> Layout:
    """A stage for each count of layers."""
    firsts = [sum(counts[:at]) for at in range(len(counts))]
    stages = tuple(
        Stage((first, first + count), tuple(range(at * tp, at * tp + tp)))
        for at, (first, count) in enumerate(zip(firsts, counts, strict=True))
    )
    return Layout({"pp": len(counts), "tp": tp}, stages, 4)


def span(name: str, compute_s: float = 6.0, exchange_s: float = 2.0, start_s: float = 0.0) -> Span:
    """A computation with its exchanges at the end, as it is simulated."""
    turn_s, end_s = start_s + compute_s, start_s + compute_s + exchange_s
    inside = (Part(COMPUTE, start_s, turn_s), Part(TRANSFER, turn_s, end_s))
    return Span(0, parse_action(name), 0, start_s, end_s, 0, inside)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("0F0", [0, 1 / 6, 3 / 6, 4 / 6, 1]),  # a third and two thirds of each of two layers
        ("0B0", [0, 2 / 6, 3 / 6, 5 / 6, 1]),
        ("0I0", [0, 2 / 6, 3 / 6, 5 / 6, 1]),
        ("1F0", [0, 1 / 9, 3 / 9]),  # of one layer, and a head that takes two
        ("1B0", [6 / 9, 8 / 9, 1]),
        ("0W0", []),
        ("0O0", []),
        ("0SF0", []),
    ],
)
def test_two_a_layer_and_one_before_them(name: str, expected: list[float]) -> None:
    found = Moments(layout_of(2, 1), head=2.0).of(span(name))
    assert found == pytest.approx(expected)


def test_the_parts_of_a_backward_have_their_own_layers() -> None:
    """Three layers in two parts: part 0 has the two last ones and the head."""
    moments = Moments(layout_of(3), head=1.0, parts={0: 2})
    assert moments.of(span("0B0.0")) == pytest.approx([3 / 9, 5 / 9, 6 / 9, 8 / 9, 1])
    assert moments.of(span("0B0.1")) == pytest.approx([0, 2 / 3, 1])


def test_a_prompts_head_sees_the_tokens_that_are_sampled() -> None:
    """Of 64 positions one, of a token all: a head of two layers behind one layer."""
    moments = Moments(layout_of(1), head=2.0, sampled={(0, 0): 1 / 64, (1, 0): 1.0})
    layer = 1 / (1 + 2 / 64)
    assert moments.of(span("0:0F0")) == pytest.approx([0, layer / 3, layer])
    assert moments.of(span("1:0F0")) == pytest.approx([0, 1 / 9, 1 / 3])


def test_parts_by_hand() -> None:
    """One layer, 6 s computing and three exchanges of 2 s together."""
    found = Moments(layout_of(1)).placed(span("0F0", 6.0, 2.0, 10.0))
    names, times = [part.what for part in found], [part.start_s for part in found]
    assert names == [TRANSFER, COMPUTE, TRANSFER, COMPUTE, TRANSFER]
    third = 2 / 3
    assert times == pytest.approx([10, 10 + third, 12 + third, 12 + 2 * third, 16 + 2 * third])
    assert found[-1].end_s == 18.0


@pytest.mark.parametrize(
    "parts",
    [
        (),
        (Part(WAIT, 0.0, 1.0), Part(COMPUTE, 1.0, 2.0), Part(TRANSFER, 2.0, 3.0)),
        (Part(COMPUTE, 0.0, 1.0), Part(TRANSFER, 1.0, 2.0), Part(COMPUTE, 2.0, 3.0)),
    ],
)
def test_what_is_not_at_the_end_stays(parts: tuple[Part, ...]) -> None:
    odd = Span(0, parse_action("0F0"), 0, 0.0, 3.0, 0, parts)
    assert Moments(layout_of(1)).of(odd) == ()
    assert Moments(layout_of(1)).placed(odd) == parts


seconds = st.floats(0, 1e3).map(lambda one: round(one, 9))


@given(
    st.integers(1, 90),
    st.floats(0, 40),
    st.sampled_from(("0F0", "0B0", "0I0", "0B0.0", "0B0.1")),
    seconds.filter(bool),
    seconds,
    seconds,
)
def test_any_span_keeps_its_sums(
    layers: int, head: float, name: str, exchange_s: float, compute_s: float, start_s: float
) -> None:
    one = span(name, compute_s, exchange_s, start_s)
    found = Moments(layout_of(layers), head, parts={0: 2}).placed(one)
    assert found[0].start_s == one.start_s
    assert found[-1].end_s == one.end_s
    assert all(first.end_s == second.start_s for first, second in pairwise(found))
    assert all(part.end_s > part.start_s for part in found)
    rounded_s = 1e-9 + (one.end_s - one.start_s) * 1e-12 * (4 * layers + 2)  # smaller parts are left out
    for what in (COMPUTE, TRANSFER):
        before, after = (sum(p.end_s - p.start_s for p in parts if p.what == what) for parts in (one.parts, found))
        assert after == pytest.approx(before, rel=1e-9, abs=rounded_s)
    assert sum(part.what == TRANSFER for part in found) <= 2 * layers + 1


def row(length: int) -> MicroBatch:
    return MicroBatch((Row(0, 0, 0, length, True),))


@st.composite
def runs(draw: st.DrawFn) -> tuple[RunRecord, Layout]:
    """A few rounds of two micro-batches through up to three stages, of any seconds, computed and exchanged."""
    layout = layout_of(*draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    stages = range(len(layout.stages))
    each = draw(st.lists(st.floats(1e-3, 1.0), min_size=len(stages), max_size=len(stages)))
    share = draw(st.floats(0.01, 0.9))
    keyed = {(at, Kind.FORWARD): Exchange(each[at] * share, 100) for at in stages}
    costs = FixedCosts(dict(zip(stages, each, strict=True)), exchanges=keyed)
    work = (row(draw(st.integers(1, 64))), row(1))
    recipe = RoundRecipe(0, work, (), "pipelined")
    spec = replace(SPEC, layers=layout.stages[-1].layers[1])
    timeline = simulate(layout, [make_round(0, len(stages), work, (), "pipelined")], costs, spec)
    plan = Plan("tiny", layout, "pipelined", 2, 64, 512, 2)
    model = {"name": "tiny", "hidden": 64, "vocab": draw(st.integers(1, 100_000))}
    return RunRecord(dump_plan(plan), (), model, (recipe,), timeline), layout


@given(runs())
@settings(max_examples=40, deadline=None)
def test_any_run_keeps_its_sums(run: tuple[RunRecord, Layout]) -> None:
    """Transfer, wait, bubble, makespan and bytes of every stage; and the trace has each part once."""
    record, layout = run
    predicted = record.predicted
    assert predicted is not None
    moments = make_moments(layout, record.model, record.rounds, predicted)
    assert moments is not None
    placed = replace(predicted, spans=tuple(one._replace(parts=moments.placed(one)) for one in predicted.spans))
    assert len(placed.spans) == len(predicted.spans)
    assert sum(one.payload_bytes for one in placed.spans) == sum(one.payload_bytes for one in predicted.spans)
    before, after = summarise(predicted), summarise(placed)
    assert (after.start_s, after.end_s) == (before.start_s, before.end_s)
    for one, other in zip((*before.stages, before), (*after.stages, after), strict=True):
        shares = (one.shares, other.shares) if hasattr(one, "shares") else (before.whole, after.whole)
        assert shares[1] == pytest.approx(shares[0], rel=1e-9, abs=1e-12)
    forwards = [one for one in placed.spans if one.action.kind is Kind.FORWARD]
    layers = [layout.stages[one.action.stage].layer_count for one in forwards]
    assert [sum(part.what == TRANSFER for part in one.parts) for one in forwards] == [2 * n + 1 for n in layers]
    view = make_view(record)
    written = trace(view)
    exchanged = sum(event["name"] == "exchange" for event in written["traceEvents"])
    assert exchanged == sum(2 * n + 1 for n in layers)
    assert written["otherData"]["exchanges"] == ASSUMED


def test_nothing_is_known_of_a_run_without_a_plan() -> None:
    timeline = Timeline("predicted", (span("0F0"),))
    assert make_view(RunRecord("", (), predicted=timeline)).moments is None
    assert make_moments(layout_of(1), {}, (), None) is None
    unsaid = make_moments(layout_of(1), {"hidden": "?", "vocab": 9}, (), timeline)
    assert unsaid == Moments(layout_of(1))


def test_the_head_of_a_model_is_vocabulary_times_hidden_over_twelve_hidden_squared() -> None:
    cut = tuple(span("0B0")._replace(action=Action(0, 0, Kind.BACKWARD, 0, part)) for part in (0, 1, 2))
    found = make_moments(layout_of(4), {"hidden": 100, "vocab": 2400}, (), Timeline("predicted", cut))
    assert found == Moments(layout_of(4), head=2.0, parts={0: 3})
