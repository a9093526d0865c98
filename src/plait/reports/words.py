"""A run in a few plain sentences: what was lost where and why, and how far off the prediction was.

Every sentence is computed from the timelines; nothing is said that the figures do not show.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from plait.reports.cells import Segment, segments
from plait.reports.figures import exchanged_by_stage
from plait.reports.marks import What
from plait.timeline.compare import Comparison, SpanKey, StageShares, Summary, compare, summarise
from plait.timeline.timeline import Timeline
from plait.units import format_seconds

ALIKE = 0.05
"""Shares of the run closer than this are called equal, and smaller ones are not worth a sentence."""

_NAMED = 8
"""More stages or ranks than this are told by the least and the most of them."""


def sentences(predicted: Timeline | None, measured: Timeline | None) -> list[str]:
    """What the measured timeline shows (the predicted one where there is no other), and how far apart the two are."""
    shown = measured or predicted
    if shown is None or not shown.spans:
        return ["The run has no timeline: nothing can be said of where its time went."]
    said = [*_lost(shown), *_transfers(shown)]
    if predicted is not None and measured is not None:
        said += _off(compare(predicted, measured))
    return said + _clocks(shown)


def _lost(timeline: Timeline) -> Iterator[str]:
    """How much of the stages' time was not computing, and the reason that the figures give."""
    would = "would go" if timeline.source == "predicted" else "went"
    if _several_a_rank(timeline):
        yield _of_ranks(timeline, would)
        return
    summary = summarise(timeline)
    lost = [f"stage {one.stage} {_percent(one.shares.bubble)}" for one in summary.stages]
    if len(lost) > _NAMED:
        lost = _ends([(f"stage {one.stage}", one.shares.bubble) for one in summary.stages])
    if len(summary.stages) == 1:
        yield f"Stage {summary.stages[0].stage} computed {_percent(1 - summary.whole.bubble)} of the time."
        return
    yield (
        f"{_percent(summary.whole.bubble)} of the {len(summary.stages)} stages' time {would} without computing: "
        f"{_listed(lost)}."
    )
    if summary.whole.bubble < ALIKE:
        return
    together, stages = _together(timeline, summary), len(summary.stages)
    if together < ALIKE:
        yield (
            f"The stages took turns: two or more computed at once for only {_percent(together)} of the time, "
            f"so that {stages} stages lose at least {_percent(1 - (1 + (stages - 1) * together) / stages)}."
        )
        return
    yield from _unequal(timeline, summary)


def _several_a_rank(timeline: Timeline) -> bool:
    """True where a rank holds more than one stage: then a stage's bubble is mostly the work for another."""
    held: dict[int, int] = {}
    return any(held.setdefault(span.rank, span.action.stage) != span.action.stage for span in timeline.spans)


def _of_ranks(timeline: Timeline, would: str) -> str:
    """The same of ranks, all stages of each together."""
    whole = Timeline(
        timeline.source, tuple(span._replace(action=span.action._replace(stage=span.rank)) for span in timeline.spans)
    )
    summary = summarise(whole)
    ranks = [(f"rank {one.stage}", one.shares.bubble) for one in summary.stages]
    if len(ranks) == 1:
        return f"Rank {summary.stages[0].stage} computed {_percent(1 - summary.whole.bubble)} of the time."
    lost = [f"{name} {_percent(share)}" for name, share in ranks] if len(ranks) <= _NAMED else _ends(ranks)
    return (
        f"{_percent(summary.whole.bubble)} of the {len(ranks)} ranks' time {would} without computing: {_listed(lost)}."
    )


def _ends(shares: Sequence[tuple[str, float]]) -> list[str]:
    """Of many the least and the most."""
    least, most = min(shares, key=lambda one: one[1]), max(shares, key=lambda one: one[1])
    return [f"from {_percent(least[1])} ({least[0]}) to {_percent(most[1])} ({most[0]})"]


def _computing(timeline: Timeline, stage: int) -> list[Segment]:
    found = segments((span for span in timeline.spans if span.action.stage == stage), spread=False)
    return [segment for segment in found if segment.mark.what is What.COMPUTE]


def _together(timeline: Timeline, summary: Summary) -> float:
    """The share of the run in which more than one stage computes."""
    edges: list[tuple[float, int]] = []
    for one in summary.stages:
        for _, start_s, end_s in _computing(timeline, one.stage):
            edges += [(start_s, 1), (end_s, -1)]
    together_s, computing, since = 0.0, 0, 0.0
    for moment, change in sorted(edges):
        if computing > 1:
            together_s += moment - since
        computing, since = computing + change, moment
    return together_s / summary.makespan_s if summary.makespan_s > 0 else 0.0


def _unequal(timeline: Timeline, summary: Summary) -> Iterator[str]:
    """The stage that waits most, beside the one that works most."""
    waits_most = max(summary.stages, key=lambda one: _share(one, one.shares.wait_s, summary))
    works_most = max(summary.stages, key=lambda one: _share(one, one.shares.compute_s, summary))
    waited = _share(waits_most, waits_most.shares.wait_s, summary)
    if waited < ALIKE:
        return
    most = _share(works_most, works_most.shares.compute_s, summary)
    ratio = _share(waits_most, waits_most.shares.compute_s, summary) / most
    head = f"Stage {waits_most.stage} waited {_percent(waited)} of the time"
    if ratio < 1 - ALIKE:
        yield f"{head}: its work is {ratio:.2f} of stage {works_most.stage}'s."
        return
    computing = _computing(timeline, waits_most.stage)
    outside_s = computing[0].start_s - summary.start_s + summary.end_s - computing[-1].end_s
    yield (
        f"{head}, though it has as much work as any: {_percent(outside_s / summary.makespan_s)} of the time passed "
        "before its first and after its last computation."
    )


def _share(one: StageShares, seconds: float, summary: Summary) -> float:
    """Seconds of a stage as a share of its ranks' time."""
    whole_s = len(one.ranks) * summary.makespan_s
    return seconds / whole_s if whole_s > 0 else 0.0


def _transfers(timeline: Timeline) -> Iterator[str]:
    """Where messages between stages and exchanges inside actions took most."""
    summary, exchanged = summarise(timeline), exchanged_by_stage(timeline)
    if not summary.stages:
        return
    inside = {one.stage: _share(one, exchanged.get(one.stage, 0.0), summary) for one in summary.stages}
    between = {one.stage: _share(one, one.shares.transfer_s, summary) - inside[one.stage] for one in summary.stages}
    for name, shares in (("Transfers", between), ("Exchanges inside actions", inside)):
        stage, share = max(shares.items(), key=lambda one: one[1])
        if share >= ALIKE:
            yield f"{name} took {_percent(share)} of stage {stage}'s time."


def _off(both: Comparison) -> Iterator[str]:
    """How far the prediction was off (`reports.change`), and in which stage's computing most."""
    points = (both.measured.whole.bubble - both.predicted.whole.bubble) * 100
    predicted_s, measured_s = both.predicted.makespan_s, both.measured.makespan_s
    change = (measured_s - predicted_s) / predicted_s if predicted_s > 0 else 0.0
    yield (
        f"It took {_percent(abs(change), 1)} {'longer' if change >= 0 else 'less'} than predicted "
        f"({format_seconds(measured_s)}, not {format_seconds(predicted_s)}), and the bubble was {abs(points):.1f} "
        f"points {'larger' if points >= 0 else 'smaller'}."
    )
    yield from _worst_stage(both)
    for keys, one, other in (
        (both.only_predicted, "predicted", "measured"),
        (both.only_measured, "measured", "predicted"),
    ):
        if keys:
            yield _only(keys, one, other)


def _worst_stage(both: Comparison) -> Iterator[str]:
    """Of computing alone; what else differs stands with each stage's sources."""
    known = [
        (one.stage, one.measured.compute_s - one.predicted.compute_s, one.predicted.compute_s)
        for one in both.stages
        if one.predicted is not None and one.measured is not None
    ]
    stage, longer_s, predicted_s = max(known, key=lambda one: abs(one[1]), default=(0, 0.0, 0.0))
    if predicted_s > 0 and abs(longer_s) >= ALIKE * predicted_s:
        ranks = next(len(one.ranks) for one in both.measured.stages if one.stage == stage)
        summed = f", summed over its {ranks} ranks" if ranks > 1 else ""
        yield (
            f"Of computing, stage {stage}'s is furthest off: it took {format_seconds(abs(longer_s))} "
            f"{'longer' if longer_s > 0 else 'less'} than the {format_seconds(predicted_s)} predicted{summed}."
        )


def _only(keys: Sequence[SpanKey], one: str, other: str) -> str:
    count = f"{len(keys)} actions were" if len(keys) > 1 else "1 action was"
    rounds = sorted({key.action.round for key in keys})
    where = f"round {rounds[0]}" if len(rounds) == 1 else f"rounds {rounds[0]} to {rounds[-1]}"
    return f"{count} {one} but not {other}, in {where}."


def _clocks(timeline: Timeline) -> list[str]:
    """How sure the placing of the hosts' times is, where there is more than one clock."""
    unsure = [
        f"host {host} by up to {format_seconds(clock.error_s)}"
        for host, clock in sorted(timeline.clocks.items())
        if clock.error_s > 0
    ]
    return [f"Hosts' times may be shifted against each other: {_listed(unsure)}."] if unsure else []


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _percent(share: float, digits: int = 0) -> str:
    return f"{share * 100:.{digits}f} %"
