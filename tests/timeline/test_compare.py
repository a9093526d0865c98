"""Where time went, and two runs laid on each other, on timelines small enough to read."""

from __future__ import annotations

import pytest

from plait.plans.action import Action
from plait.plans.notation import parse_action
from plait.timeline.compare import SpanKey, compare, summarise
from plait.timeline.span import Part, Span
from plait.timeline.timeline import Timeline


def span(name: str, rank: int, start_s: float, end_s: float, *parts: tuple[str, float, float], epoch: int = 0) -> Span:
    return Span(epoch, action(name), rank, start_s, end_s, 0, tuple(Part(*part) for part in parts))


def action(name: str) -> Action:
    return parse_action(name)


def run(*spans: Span, source: str = "predicted") -> Timeline:
    return Timeline(source, spans)  # type: ignore[arg-type]


TWO_STAGES = run(
    span("0:1RF0", 1, 0.0, 5.0, ("wait", 0.0, 4.5), ("transfer", 4.5, 5.0)),
    span("0:0F0", 0, 1.0, 4.0),
    span("0:0SF0", 0, 4.0, 4.5),
    span("0:1F0", 1, 5.0, 7.0),
    span("1:0F0", 0, 4.0, 7.0),
    span("1:1F0", 1, 8.0, 9.0),
)


def test_shares_of_two_stages() -> None:
    """The run begins at 1, with the first part that is no wait, and ends at 9."""
    summary = summarise(TWO_STAGES)
    assert summary.makespan_s == 8.0
    first, second = (stage.shares for stage in summary.stages)
    # stage 0 computes 1-7 and sends 4-4.5 behind it: 2 s of 8 are idle
    assert (first.compute_s, first.transfer_s, first.wait_s, first.bubble) == (6.0, 0.5, 2.0, 0.25)
    # stage 1 transfers 4.5-5, computes 5-7 and 8-9
    assert (second.compute_s, second.transfer_s, second.wait_s, second.bubble) == (3.0, 0.5, 4.5, 1 - 3 / 8)
    assert summary.whole.bubble == 1 - 9 / 16
    assert summary.whole.wait_s == 6.5


def test_some_rounds_alone() -> None:
    summary = summarise(TWO_STAGES, rounds={1})
    assert (summary.start_s, summary.end_s) == (4.0, 9.0)
    assert summary.whole.bubble == pytest.approx(1 - 4 / 10)


def test_an_empty_timeline() -> None:
    summary = summarise(run())
    assert (summary.makespan_s, summary.stages, summary.whole.bubble) == (0.0, (), 0.0)


def test_ranks_of_one_stage_are_summed() -> None:
    stage = summarise(run(span("0:0F0", 0, 0.0, 4.0), span("0:0F0", 1, 0.0, 2.0))).stages[0]
    assert stage.ranks == (0, 1)
    assert (stage.shares.compute_s, stage.shares.wait_s, stage.shares.bubble) == (6.0, 2.0, 0.25)


def test_compare_joins_and_subtracts() -> None:
    predicted = run(span("0:0F0", 0, 0.0, 4.0), span("1:0F0", 0, 4.0, 8.0))
    measured = run(span("0:0F0", 0, 10.0, 15.0), span("1:0F0", 0, 16.0, 20.0), source="measured")
    result = compare(predicted, measured)
    assert [(pair.key.action, pair.longer_s) for pair in result.pairs] == [(action("0:0F0"), 1.0), (action("1:0F0"), 0)]
    assert result.whole.difference is not None
    assert result.whole.difference.compute_s == 1.0
    assert result.whole.difference.wait_s == 1.0
    assert result.whole.difference.bubble == pytest.approx(0.1)
    assert result.stages[0].difference == result.whole.difference
    assert result.makespan_error == pytest.approx(-0.2)
    assert result.only_predicted == result.only_measured == ()


def test_what_one_timeline_lacks_is_listed() -> None:
    """Another epoch, another rank, a stage that only one has, and a span that stands twice."""
    predicted = run(span("0:0F0", 0, 0.0, 1.0), span("1:0F0", 0, 1.0, 2.0), span("0:1F0", 1, 1.0, 2.0))
    measured = run(
        span("0:0F0", 0, 0.0, 1.0), span("0:0F0", 0, 1.0, 2.0), span("1:0F0", 0, 2.0, 3.0, epoch=1), source="measured"
    )
    result = compare(predicted, measured)
    assert [pair.key for pair in result.pairs] == [SpanKey(0, action("0:0F0"), 0)]
    assert result.only_predicted == (SpanKey(0, action("1:0F0"), 0), SpanKey(0, action("0:1F0"), 1))
    assert result.only_measured == (SpanKey(0, action("0:0F0"), 0, 1), SpanKey(1, action("1:0F0"), 0))
    assert (result.stages[1].measured, result.stages[1].difference) == (None, None)
