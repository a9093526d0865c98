"""A view as plain values: the keys of ``plait report --json``."""

from __future__ import annotations

from typing import Any

from plait.plans.notation import format_action
from plait.reports.path import path_of
from plait.reports.view import View
from plait.timeline.causes import critical_path


def view_json(view: View) -> dict[str, Any]:
    """The figures of `report_json`, and beside them sources, links, memory, critical paths, and the plan's reasons."""
    return {
        **view.figures,
        "title": view.title,
        "facts": [list(fact) for fact in view.facts],
        "sources": [
            {"stage": one.stage, "sources": [source._asdict() for source in one.sources]}
            for one in view.stages
            if one.sources
        ],
        "links": [
            {
                "name": one.name,
                "axis": one.axis,
                "ranks": list(one.ranks),
                "predicted": None if one.predicted is None else one.predicted._asdict(),
                "measured": None if one.measured is None else one.measured._asdict(),
            }
            for one in view.links
        ],
        "memory": {timeline.source: _memory(view, timeline.source) for timeline in view.timelines if timeline.memory},
        "critical_path": {timeline.source: _path(view, timeline.source) for timeline in view.timelines},
        "reasons": list(view.reasons),
        "lost": [one._asdict() for one in view.lost],
        "missing": list(view.missing),
    }


def _memory(view: View, source: str) -> list[dict[str, Any]]:
    """The highest point of each rank."""
    timeline = next(one for one in view.timelines if one.source == source)
    return [
        {
            "rank": rank,
            "peak_bytes": max(track.used_bytes, default=0),
            "base_bytes": track.base_bytes,
            "limit_bytes": track.limit_bytes,
        }
        for rank, track in sorted(timeline.memory.items())
    ]


def _path(view: View, source: str) -> dict[str, Any]:
    """What it is made of, and its actions in order."""
    timeline = next(one for one in view.timelines if one.source == source)
    found = path_of(view, timeline)
    actions = [timeline.spans[index] for index in critical_path(timeline, view.causes[source])]
    return {
        "ranks": list(found.ranks),
        "seconds": dict(found.seconds),
        "spans": [{"action": format_action(span.action), "rank": span.rank} for span in actions],
    }
