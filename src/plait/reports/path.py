"""The critical path in a few figures: what a run's length is made of, and the longest spans on it."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from plait.plans.action import Lane
from plait.plans.notation import format_action
from plait.reports.differences import COMPUTED
from plait.reports.view import View
from plait.timeline.causes import critical_path, goes_s
from plait.timeline.compare import parts
from plait.timeline.span import Span
from plait.timeline.timeline import Timeline

HAND_OVER = "links and hand-over"
"""Between a cause's end and the begin of what it let go: latency, waking up, and clocks that are not quite the same."""

_MOVED = {"G": "reductions", "A": "gathers", "T": "reductions"}


class Path(NamedTuple):
    """A critical path: seconds by what, the largest first, which add up to the makespan; ranks; the longest spans."""

    source: str
    spans: int
    ranks: tuple[int, ...]
    seconds: tuple[tuple[str, float], ...]
    longest: tuple[tuple[str, float], ...]


_LONGEST = 3


def path_of(view: View, timeline: Timeline) -> Path:
    """The critical path of one of the view's timelines."""
    indices = critical_path(timeline, view.causes[timeline.source])
    chain = [timeline.spans[index] for index in indices]
    seconds: dict[str, float] = defaultdict(float)
    reached_s = timeline.start_s
    for span in chain:
        begin_s = max(reached_s, goes_s(span))
        if begin_s > reached_s:
            seconds[HAND_OVER] += begin_s - reached_s
        if span.end_s > begin_s:
            for what, each_s in _made_of(span, begin_s):
                seconds[what] += each_s
        reached_s = max(begin_s, span.end_s)
    longest = sorted(chain, key=lambda span: -round(span.end_s - goes_s(span), 9))[:_LONGEST]
    return Path(
        timeline.source,
        len(chain),
        tuple(sorted({span.rank for span in chain})),
        tuple(sorted(seconds.items(), key=lambda one: -one[1])),
        tuple((f"{format_action(span.action)} on rank {span.rank}", span.end_s - goes_s(span)) for span in longest),
    )


def _made_of(span: Span, begin_s: float) -> list[tuple[str, float]]:
    """What a span did from `begin_s` on: its parts, and between them its own sort."""
    letters = span.action.kind._value_
    if span.action.kind.lane is not Lane.COMPUTE:
        return [(_MOVED.get(letters, "messages"), span.end_s - begin_s)]
    found, inside_s = [], 0.0
    for what, start_s, end_s in parts(span):
        each_s = max(0.0, end_s - max(begin_s, start_s))
        if what != "compute" and each_s > 0:
            inside_s += each_s
            found.append(("exchanges" if what == "transfer" else "waits for others", each_s))
    return [*found, (COMPUTED[letters], max(0.0, span.end_s - begin_s - inside_s))]
