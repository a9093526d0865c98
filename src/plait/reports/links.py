"""What the links carry: messages between ranks, and what groups exchange; bytes, and how long they were busy.

Every byte of a timeline is in exactly one line, so that the lines add up to its `comm_bytes`. Where one rank of a
position stands for all, a line is of all links between two positions, or of all groups of one: its bytes are of all of
them, its busy share is that of each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from plait.plans.action import Lane
from plait.plans.layout import Layout
from plait.plans.rules import partner
from plait.reports.stands import stood_for
from plait.reports.view import LinkLine, LinkUse
from plait.timeline.causes import across
from plait.timeline.compare import covered_s, parts, summarise
from plait.timeline.span import Part, Span
from plait.timeline.timeline import Timeline

PIPELINE = "pp"


class _Name(NamedTuple):
    """What stands in one line: a directed link (two ranks), or a group and its axis."""

    order: int
    axis: str
    ranks: tuple[int, ...]
    name: str


_Stands = Mapping[int, tuple[int, ...]]


def link_lines(
    layout: Layout, predicted: Timeline | None, measured: Timeline | None, fullness: float = 1.0
) -> tuple[LinkLine, ...]:
    """A line for every link and every group that either timeline uses: links first.

    `fullness`: what the ranks that are not shown send, as a share of what those send that stand for them.
    """
    timelines = [timeline for timeline in (predicted, measured) if timeline is not None]
    stands = stood_for(layout, {rank for timeline in timelines for rank in timeline.ranks})
    used = {timeline.source: _used(timeline, layout, stands, fullness) for timeline in timelines}
    names = sorted({name for found in used.values() for name in found})
    before, after = used.get("predicted", {}), used.get("measured", {})
    return tuple(LinkLine(one.name, one.axis, one.ranks, before.get(one), after.get(one)) for one in names)


def _used(timeline: Timeline, layout: Layout, stands: _Stands, fullness: float) -> dict[_Name, LinkUse]:
    sent: dict[_Name, float] = defaultdict(float)
    busy: dict[_Name, list[Part]] = defaultdict(list)
    known: dict[tuple[int, str, int], _Name | None] = {}
    for span in timeline.spans:
        key = span.action.stage, span.action.kind._value_, span.rank
        if key not in known:
            known[key] = _name(span, layout, stands)
        name = known[key]
        moved = [] if name is None else [part for part in parts(span) if part.what == "transfer"]
        if name is not None and (span.payload_bytes or moved):
            sent[name] += span.payload_bytes * (1 + (len(stands[span.rank]) - 1) * fullness)
            busy[name] += moved
    whole_s = summarise(timeline).makespan_s
    return {
        name: LinkUse(round(size), covered_s(busy[name]) / whole_s if whole_s > 0 else 0.0)
        for name, size in sent.items()
    }


def _name(span: Span, layout: Layout, stands: _Stands) -> _Name | None:
    """The link or group that a span used; None for a receive: its message is the send's."""
    kind, rank = span.action.kind, span.rank
    if kind.lane is Lane.P2P:
        if kind.receives:
            return None
        other = partner(span.action, len(layout.stages)).stage
        to = across(layout, other, layout.stages[span.action.stage].ranks.index(rank))
        if to < 0:
            return _Name(0, PIPELINE, (rank,), f"{rank}→ nobody")
        return _Name(0, PIPELINE, (rank, to), f"{rank}→{to}{_alike(len(stands[rank]))}")
    order, axis, title, ranks = _group(span, layout)
    shown = sum(each in stands for each in ranks)
    alike = _alike(len(stands[rank]) * shown // len(ranks))
    return _Name(order, axis, ranks, f"{title} {_listed(ranks)}{alike}")


def _alike(count: int) -> str:
    return f" and {count - 1} alike" if count > 1 else ""


def _group(span: Span, layout: Layout) -> tuple[int, str, str, tuple[int, ...]]:
    """Where the line of a span's group stands, its axis, what it is called, and its ranks."""
    stages, letters, tp = layout.stages, span.action.kind._value_, layout.tp
    members = stages[span.action.stage].ranks
    place = members.index(span.rank)
    if letters == "N":
        return 5, "mesh", "norm", tuple(sorted({each for stage in stages for each in stage.ranks}))
    if letters == "T":
        holders = {*stages[0].ranks[place % tp :: tp], *stages[-1].ranks[place % tp :: tp]}
        return 4, "dp", "tied embedding", tuple(sorted(holders))
    if letters in ("G", "A", "O"):
        return 3, "dp", "dp", members[place % tp :: tp]
    inside = layout.axes.get("ep", 1) * layout.axes.get("cp", 1)
    axes = " × ".join(axis for axis in ("ep", "cp", "tp") if layout.axes.get(axis, 1) > 1) or "tp"
    first = place // (tp * inside) * tp * inside
    return (1 if inside == 1 else 2), axes, axes, members[first : first + tp * inside]


def _listed(ranks: tuple[int, ...]) -> str:
    if len(ranks) > 4:
        return f"{ranks[0]}, {ranks[1]}, … {ranks[-1]} ({len(ranks)})"
    return ", ".join(map(str, ranks))
