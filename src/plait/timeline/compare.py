"""Where the time of a run went, per stage, and one run laid on another: predicted against measured.

All figures are read off spans, the same way for both timelines. What stands in one of them only is listed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from plait.plans.action import Action, Lane
from plait.timeline.span import Part, Span
from plait.timeline.timeline import Timeline

COMPUTE, TRANSFER, WAIT = "compute", "transfer", "wait"


class Shares(NamedTuple):
    """How some ranks spent a makespan: seconds summed over the ranks.

    `wait_s` is the time in which a rank neither computed nor transferred; a transfer behind a computation counts as
    both, so the three can exceed ranks × makespan. `bubble` is 1 − compute ÷ (ranks × makespan).
    """

    compute_s: float
    transfer_s: float
    wait_s: float
    bubble: float


class StageShares(NamedTuple):
    """One stage's shares."""

    stage: int
    ranks: tuple[int, ...]
    shares: Shares


@dataclass(frozen=True, slots=True)
class Summary:
    """A timeline, or some of its rounds: per stage and as a whole. `start_s` and `end_s` bound its makespan."""

    start_s: float
    end_s: float
    stages: tuple[StageShares, ...]
    whole: Shares

    @property
    def makespan_s(self) -> float:
        """From the first part that is not a wait to the last one's end."""
        return self.end_s - self.start_s


def summarise(timeline: Timeline, rounds: Collection[int] | None = None) -> Summary:
    """Where the time went; of `rounds` alone (prefill, or decoding) where they are given.

    The makespan begins with the first part that is not a wait: a rank that was started early and waits for its first
    message has not begun the run.
    """
    spans = [span for span in timeline.spans if rounds is None or span.action.round in rounds]
    by_stage: dict[int, dict[int, list[Part]]] = defaultdict(lambda: defaultdict(list))
    for span in spans:
        by_stage[span.action.stage][span.rank].extend(part for part in parts(span) if part.what != WAIT)
    bounds = [part for ranks in by_stage.values() for of_rank in ranks.values() for part in of_rank]
    start_s = min((part.start_s for part in bounds), default=0.0)
    end_s = max((part.end_s for part in bounds), default=0.0)
    stages = tuple(
        StageShares(stage, tuple(sorted(ranks)), _shares(list(ranks.values()), end_s - start_s))
        for stage, ranks in sorted(by_stage.items())
    )
    by_rank: dict[int, list[Part]] = defaultdict(list)
    for ranks in by_stage.values():
        for rank, of_rank in ranks.items():
            by_rank[rank].extend(of_rank)
    return Summary(start_s, end_s, stages, _shares(list(by_rank.values()), end_s - start_s))


def parts(span: Span) -> tuple[Part, ...]:
    """The span's parts; a span without any is one part, named by its lane."""
    if span.parts:
        return span.parts
    what = COMPUTE if span.action.kind.lane is Lane.COMPUTE else TRANSFER
    return (Part(what, span.start_s, span.end_s),)


def _shares(ranks: Sequence[list[Part]], makespan_s: float) -> Shares:
    compute_s = sum(_seconds(of_rank, COMPUTE) for of_rank in ranks)
    transfer_s = sum(_seconds(of_rank, TRANSFER) for of_rank in ranks)
    wall_s = len(ranks) * makespan_s
    wait_s = max(0.0, wall_s - sum(covered_s(of_rank) for of_rank in ranks))
    return Shares(compute_s, transfer_s, wait_s, 1 - compute_s / wall_s if wall_s > 0 else 0.0)


def _seconds(of_rank: Iterable[Part], what: str) -> float:
    return sum(part.end_s - part.start_s for part in of_rank if part.what == what)


def covered_s(of_rank: Iterable[Part]) -> float:
    """Seconds in which at least one of the parts of a rank runs."""
    covered, reached = 0.0, float("-inf")
    for part in sorted(of_rank, key=lambda part: part.start_s):
        covered += max(0.0, part.end_s - max(part.start_s, reached))
        reached = max(reached, part.end_s)
    return covered


class SpanKey(NamedTuple):
    """What joins two timelines. `occurrence` counts spans of one timeline with the same key: 0, if all is well."""

    epoch: int
    action: Action
    rank: int
    occurrence: int = 0


class Pair(NamedTuple):
    """The same action in both timelines."""

    key: SpanKey
    predicted: Span
    measured: Span

    @property
    def longer_s(self) -> float:
        """How much longer it took than predicted."""
        return (self.measured.end_s - self.measured.start_s) - (self.predicted.end_s - self.predicted.start_s)


class StageComparison(NamedTuple):
    """One stage predicted and measured, and measured − predicted. None: the stage is in one timeline only."""

    stage: int
    predicted: Shares | None
    measured: Shares | None
    difference: Shares | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two timelines joined by (epoch, round, action, rank), with what only one of them has."""

    predicted: Summary
    measured: Summary
    stages: tuple[StageComparison, ...]
    whole: StageComparison
    pairs: tuple[Pair, ...]
    only_predicted: tuple[SpanKey, ...]
    only_measured: tuple[SpanKey, ...]

    @property
    def makespan_error(self) -> float:
        """Predicted makespan ÷ measured − 1."""
        return self.predicted.makespan_s / self.measured.makespan_s - 1 if self.measured.makespan_s > 0 else 0.0


def compare(predicted: Timeline, measured: Timeline, rounds: Collection[int] | None = None) -> Comparison:
    """Lay `measured` on `predicted`; of `rounds` alone where they are given."""
    before, after = _keyed(predicted, rounds), _keyed(measured, rounds)
    first, second = summarise(predicted, rounds), summarise(measured, rounds)
    return Comparison(
        first,
        second,
        tuple(_stage_comparisons(first, second)),
        StageComparison(-1, first.whole, second.whole, _difference(first.whole, second.whole)),
        tuple(Pair(key, span, after[key]) for key, span in before.items() if key in after),
        tuple(key for key in before if key not in after),
        tuple(key for key in after if key not in before),
    )


def _keyed(timeline: Timeline, rounds: Collection[int] | None) -> dict[SpanKey, Span]:
    seen: Counter[SpanKey] = Counter()
    keyed: dict[SpanKey, Span] = {}
    for span in timeline.spans:
        if rounds is None or span.action.round in rounds:
            key = SpanKey(span.epoch, span.action, span.rank)
            keyed[key._replace(occurrence=seen[key])] = span
            seen[key] += 1
    return keyed


def _stage_comparisons(first: Summary, second: Summary) -> Iterator[StageComparison]:
    before = {stage.stage: stage.shares for stage in first.stages}
    after = {stage.stage: stage.shares for stage in second.stages}
    for stage in sorted(before.keys() | after.keys()):
        yield StageComparison(
            stage, before.get(stage), after.get(stage), _difference(before.get(stage), after.get(stage))
        )


def _difference(first: Shares | None, second: Shares | None) -> Shares | None:
    if first is None or second is None:
        return None
    return Shares(*(after - before for before, after in zip(first, second, strict=True)))
