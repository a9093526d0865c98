"""Where each stage's time went, predicted and measured, and which sort of action makes the difference.

A rank is always doing one thing: computing something, exchanging, moving a message, working for another of its stages,
or waiting. What goes on at once counts as the first of these. So the seconds of a stage's sources add up to its
ranks' share of the makespan, and their differences to the whole difference.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from plait.plans.action import Kind, Lane
from plait.plans.layout import Layout
from plait.reports.marks import PASS_WORDS
from plait.reports.view import Source, StageLine
from plait.timeline.compare import COMPUTE, WAIT, Comparison, Summary, compare, parts, summarise
from plait.timeline.span import Span
from plait.timeline.timeline import Timeline

EXCHANGE, REDUCTION, GATHER, MESSAGE, OTHER, WAITING = (
    "exchange",
    "reduction",
    "gather",
    "message",
    "other stages",
    "wait",
)

_MOVED: Mapping[str, str] = {"G": REDUCTION, "T": REDUCTION, "A": GATHER}
_ORDER = (*PASS_WORDS.values(), EXCHANGE, REDUCTION, GATHER, MESSAGE)
_RANK = {what: number for number, what in enumerate(_ORDER)}

_Seconds = dict[str, float]


def stage_lines(layout: Layout, predicted: Timeline | None, measured: Timeline | None) -> tuple[StageLine, ...]:
    """A line for every stage of the layout; seconds are of the stage's ranks that are in the timelines."""
    sources: Mapping[int, tuple[Source, ...]] = {}
    if predicted is not None and measured is not None:
        both = compare(predicted, measured)
        summaries = {"predicted": both.predicted, "measured": both.measured}
        sources = _sources(predicted, measured, both)
    else:
        alone = [timeline for timeline in (predicted, measured) if timeline is not None]
        summaries = {timeline.source: summarise(timeline) for timeline in alone}
    shares = {source: {one.stage: one.shares for one in found.stages} for source, found in summaries.items()}
    return tuple(
        StageLine(
            number,
            stage.layers,
            stage.ranks,
            shares.get("predicted", {}).get(number),
            shares.get("measured", {}).get(number),
            sources.get(number, ()),
        )
        for number, stage in enumerate(layout.stages)
    )


def _sources(predicted: Timeline, measured: Timeline, both: Comparison) -> dict[int, tuple[Source, ...]]:
    """Of each stage that both timelines have: the largest difference first."""
    before, after = spent(predicted, both.predicted), spent(measured, both.measured)
    counts = _counts(both)
    found: dict[int, tuple[Source, ...]] = {}
    for stage in before.keys() & after.keys():
        names = sorted(before[stage].keys() | after[stage].keys())
        lines = [
            Source(what, counts[stage, what], before[stage].get(what, 0.0), after[stage].get(what, 0.0))
            for what in names
        ]
        found[stage] = tuple(sorted(lines, key=lambda one: -abs(one.measured_s - one.predicted_s)))
    return found


def spent(timeline: Timeline, summary: Summary | None = None) -> dict[int, _Seconds]:
    """By stage and by what: seconds of its ranks, which add up to ranks × makespan."""
    whole = summary or summarise(timeline)
    found: dict[int, _Seconds] = defaultdict(lambda: defaultdict(float))
    by_rank = sorted(timeline.spans, key=lambda span: span.rank)
    for _, spans in groupby(by_rank, key=lambda span: span.rank):
        of_rank = _of_rank(list(spans))
        busy_s = sum(sum(seconds.values()) for seconds in of_rank.values())
        for stage, seconds in of_rank.items():
            for what, each_s in seconds.items():
                found[stage][what] += each_s
            others_s = busy_s - sum(seconds.values())
            if len(of_rank) > 1:
                found[stage][OTHER] += others_s
            found[stage][WAITING] += max(0.0, whole.makespan_s - busy_s)
    return {stage: dict(seconds) for stage, seconds in found.items()}


def _of_rank(spans: Sequence[Span]) -> dict[int, _Seconds]:
    """What one rank did, moment for moment: of what goes on at once the first in `_ORDER`."""
    found: dict[int, _Seconds] = {span.action.stage: defaultdict(float) for span in spans}
    going_on: Counter[tuple[int, int]] = Counter()
    since_s = 0.0
    for moment_s, change, key in sorted(_edges(spans)):
        if going_on and moment_s > since_s:
            number, stage = min(going_on)
            found[stage][_ORDER[number]] += moment_s - since_s
        going_on[key] += change
        if not going_on[key]:
            del going_on[key]
        since_s = moment_s
    return found


def _edges(spans: Iterable[Span]) -> Iterator[tuple[float, int, tuple[int, int]]]:
    """Begin and end of every part that is no wait, with what it is: its number in `_ORDER`, and its stage."""
    for span in spans:
        for part in parts(span):
            if part.what != WAIT and part.end_s > part.start_s:
                key = _RANK[_what(span, part.what)], span.action.stage
                yield part.start_s, 1, key
                yield part.end_s, -1, key


def _what(span: Span, part: str) -> str:
    kind = span.action.kind
    if kind.lane is Lane.COMPUTE:
        return PASS_WORDS[kind._value_] if part == COMPUTE else EXCHANGE
    return _MOVED.get(kind._value_, MESSAGE)


def _counts(both: Comparison) -> Counter[tuple[int, str]]:
    """By stage and by what: actions that both timelines have."""
    found: Counter[tuple[int, str]] = Counter()
    for pair in both.pairs:
        action = pair.key.action
        if action.kind.lane is not Lane.COMPUTE:
            found[action.stage, _MOVED.get(action.kind._value_, MESSAGE)] += 1
            continue
        found[action.stage, PASS_WORDS[action.kind._value_]] += 1
        exchanges = any(part.what == "transfer" for part in pair.measured.parts)
        found[action.stage, EXCHANGE] += exchanges and action.kind is not Kind.OPTIMIZER
    return found
