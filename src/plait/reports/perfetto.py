"""A view as Trace Event Format JSON, which ui.perfetto.dev and chrome://tracing open.

A process for each host of each timeline, a thread for each lane of each rank; a slice for every span with its parts
inside, an arrow for every message, a counter for the memory of every rank. Slices of a thread must lie inside each
other or apart, so that what overlaps in a lane (a link that sends while the lane has gone on) gets a thread of its own.
Predicted exchanges stand where `reports.moments` has them, as on the page. Times are microseconds, whole nanoseconds,
from the timeline's begin.

Format: "Trace Event Format", Google, 2016 (docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from plait.errors import UsageError
from plait.plans.action import Action, Lane
from plait.plans.notation import format_action
from plait.plans.rules import partner
from plait.reports.marks import ACTION_WORDS
from plait.reports.moments import ASSUMED, MOST_PLACED
from plait.reports.view import Row, View
from plait.timeline.causes import across
from plait.timeline.compare import parts
from plait.timeline.span import Part, Span
from plait.timeline.timeline import Timeline

Event = dict[str, Any]

_LANES = {Lane.COMPUTE: "compute", Lane.P2P: "messages", Lane.REDUCE: "reductions"}
_ORDER = tuple(_LANES)
_PER_TIMELINE = 1000
"""Processes of the measured timeline are numbered from here on."""


def write_trace(view: View, path: Path) -> None:
    """Write the view's timelines to `path`. Errors: UsageError where it has none, or the file cannot be written."""
    if not view.timelines:
        raise UsageError("nothing to write for Perfetto: there is neither a predicted nor a measured timeline")
    try:
        path.write_bytes(msgspec.json.encode(trace(view)))
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}; give another file") from None


def trace(view: View) -> dict[str, Any]:
    """The JSON object: all events, and the timelines' totals in `otherData`."""
    events: list[Event] = []
    for number, timeline in enumerate(view.timelines):
        events += _Writer(view, timeline, number * _PER_TIMELINE).events()
    totals = {
        one.source: {
            "spans": len(one.spans),
            "comm_bytes": sum(span.payload_bytes for span in one.spans),
            "makespan_s": one.makespan_s,
        }
        for one in view.timelines
    }
    other = {"title": view.title, "totals": totals}
    if view.moments is not None and any(map(view.moments.of, view.predicted.spans if view.predicted else ())):
        other["exchanges"] = ASSUMED
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": other}


class _Writer:
    """The events of one timeline; its processes are numbered from `first` on."""

    def __init__(self, view: View, timeline: Timeline, first: int) -> None:
        self._view, self._timeline, self._start_s = view, timeline, timeline.start_s
        self._rows: dict[int, Row] = {row.rank: row for row in view.rows}
        hosts = sorted({self._host(rank) for rank in timeline.ranks})
        self._process = {host: first + number for number, host in enumerate(hosts, 1)}
        self._threads = _threads(timeline.spans)
        self._causes = view.causes.get(timeline.source, ())
        self._moments = view.moments if timeline.source == "predicted" else None
        self._left = MOST_PLACED

    def events(self) -> Iterator[Event]:
        """Names first, then slices, arrows and counters."""
        yield from self._names()
        for index, span in enumerate(self._timeline.spans):
            yield from self._slices(index, span)
        yield from self._arrows()
        yield from self._counters()

    def _host(self, rank: int) -> str:
        row = self._rows.get(rank)
        return self._timeline.hosts.get(rank) or (row.host if row else "localhost")

    def _ids(self, index: int) -> Event:
        return {"pid": self._process[self._host(self._timeline.spans[index].rank)], "tid": self._threads[index].tid}

    def _names(self) -> Iterator[Event]:
        for host, pid in self._process.items():
            yield _meta("process_name", pid, 0, {"name": f"{self._timeline.source} · {host}"})
            yield _meta("process_sort_index", pid, 0, {"sort_index": pid})
        for thread in sorted(set(self._threads)):
            pid, row = self._process[self._host(thread.rank)], self._rows.get(thread.rank)
            label = row.label if row else f"rank {thread.rank}"
            more = f" {thread.number + 1}" if thread.number else ""
            named = label if f"rank {thread.rank}" in label or "ranks" in label else f"{label} rank {thread.rank}"
            yield _meta("thread_name", pid, thread.tid, {"name": f"{named} · {_LANES[_ORDER[thread.lane]]}{more}"})
            yield _meta("thread_sort_index", pid, thread.tid, {"sort_index": thread.tid})

    def _slices(self, index: int, span: Span) -> Iterator[Event]:
        action, ids = span.action, self._ids(index)
        yield {
            "ph": "X",
            "name": format_action(action),
            "cat": ACTION_WORDS[action.kind._value_],
            **self._times(span.start_s, span.end_s),
            **ids,
            "args": self._args(index, span),
        }
        if span.parts:
            inside = "exchange" if action.kind.lane is Lane.COMPUTE else "transfer"
            for what, start_s, end_s in self._parts(span):
                name = inside if what == "transfer" else what
                yield {"ph": "X", "name": name, "cat": "part", **self._times(start_s, end_s), **ids, "args": {}}

    def _parts(self, span: Span) -> Sequence[Part]:
        placed = () if self._moments is None else self._moments.placed(span)
        self._left -= len(placed)
        return placed if placed and self._left >= 0 else parts(span)

    def _args(self, index: int, span: Span) -> Event:
        action = span.action
        args: Event = {"what": ACTION_WORDS[action.kind._value_], "rank": span.rank, "stage": action.stage}
        args |= {"round": action.round, "micro_batch": action.micro_batch, "bytes": span.payload_bytes}
        if span.epoch:
            args["epoch"] = span.epoch
        if index < len(self._causes) and self._causes[index].span >= 0:
            cause = self._timeline.spans[self._causes[index].span]
            args["waited_for"] = f"{format_action(cause.action)} on rank {cause.rank}"
            args["why"] = self._causes[index].why
        return args

    def _arrows(self) -> Iterator[Event]:
        """From each send to its receive, where both are there and the clocks agree on which was first."""
        layout, spans = self._view.layout, self._timeline.spans
        receives = {
            _key(span.epoch, span.action, span.rank): index
            for index, span in enumerate(spans)
            if span.action.kind.receives
        }
        first = (min(self._process.values()) // _PER_TIMELINE) * 10_000_000
        for index, span in enumerate(spans):
            if not span.action.kind.sends or span.rank not in layout.stages[span.action.stage].ranks:
                continue
            other = partner(span.action, len(layout.stages))
            to = across(layout, other.stage, layout.stages[span.action.stage].ranks.index(span.rank))
            taken = receives.get(_key(span.epoch, other, to))
            if taken is None or spans[taken].end_s < span.start_s:
                continue
            begin, end = self._ns(span.start_s), self._ns(spans[taken].end_s)
            # an arrow ends in the slice that holds its time, and a slice does not hold its own end
            inside = max(end - 1, self._ns(spans[taken].start_s))
            same = {"name": "message", "cat": "message", "id": first + index}
            yield {"ph": "s", **same, "ts": begin / 1e3, **self._ids(index)}
            yield {"ph": "f", "bp": "e", **same, "ts": max(begin, inside) / 1e3, **self._ids(taken)}

    def _counters(self) -> Iterator[Event]:
        for rank, track in sorted(self._timeline.memory.items()):
            pid = self._process.get(self._host(rank))
            if pid is None:
                continue
            for moment_s, used in zip(track.times_s, track.used_bytes, strict=True):
                ts = self._ns(moment_s) / 1e3
                name = f"memory of rank {rank}"
                yield {"ph": "C", "name": name, "ts": max(0.0, ts), "pid": pid, "tid": 0, "args": {"bytes": used}}

    def _ns(self, moment_s: float) -> int:
        return round((moment_s - self._start_s) * 1e9)

    def _times(self, start_s: float, end_s: float) -> Event:
        begin = self._ns(start_s)
        return {"ts": begin / 1e3, "dur": max(0, self._ns(end_s) - begin) / 1e3}


class _Thread(msgspec.Struct, frozen=True, order=True):
    """A lane of a rank; `number` 0, or the next of those that what overlaps in it is spread over."""

    rank: int
    lane: int
    number: int = 0

    @property
    def tid(self) -> int:
        """Unique in a timeline: 3 lanes of at most 300 threads a rank."""
        return self.rank * 1000 + self.lane * 300 + self.number + 1


def _threads(spans: Sequence[Span]) -> list[_Thread]:
    """The thread of each span: the first of its lane's on which it begins after all before it have ended."""
    found = [_Thread(span.rank, _ORDER.index(span.action.kind.lane)) for span in spans]
    free: dict[_Thread, list[float]] = defaultdict(list)
    for index in sorted(range(len(spans)), key=lambda at: (spans[at].start_s, spans[at].end_s)):
        ends = free[found[index]]
        number = next((at for at, end_s in enumerate(ends) if end_s <= spans[index].start_s), len(ends))
        ends[number : number + 1] = [spans[index].end_s]
        found[index] = _Thread(found[index].rank, found[index].lane, number)
    return found


def _key(epoch: int, action: Action, rank: int) -> tuple[object, ...]:
    round_, stage, kind, micro_batch, part = action
    return epoch, round_, stage, kind._value_, micro_batch, part, rank


def _meta(name: str, pid: int, tid: int, args: Event) -> Event:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "ts": 0, "args": args}
