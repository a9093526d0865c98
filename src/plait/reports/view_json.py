"""A view as plain values: the keys of ``plait report --json``."""

from __future__ import annotations

from typing import Any

from plait.plans.notation import format_action
from plait.reports.path import parts_json, path_of
from plait.reports.view import View
from plait.timeline.causes import critical_path
from plait.timeline.timeline import Timeline


def view_json(view: View) -> dict[str, Any]:
    """The figures of `report_json`, and beside them sources, links, memory, critical paths, and the plan's reasons.

    The keys of runs of one task are the same, whatever happened in them: what did not happen is 0, what is not known
    is None.
    """
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
        "memory": {"predicted": _memory(view.predicted), "measured": _memory(view.measured)},
        "critical_path": {"predicted": _path(view, view.predicted), "measured": _path(view, view.measured)},
        "reasons": list(view.reasons),
        "lost": [one._asdict() for one in view.lost],
        "missing": list(view.missing),
    }


def _memory(timeline: Timeline | None) -> list[dict[str, Any]] | None:
    """The highest point of each rank; None where nothing is known of memory."""
    if timeline is None or not timeline.memory:
        return None
    return [
        {
            "rank": rank,
            "peak_bytes": max(track.used_bytes, default=0),
            "base_bytes": track.base_bytes,
            "limit_bytes": track.limit_bytes,
        }
        for rank, track in sorted(timeline.memory.items())
    ]


def _path(view: View, timeline: Timeline | None) -> dict[str, Any] | None:
    """What it is made of (`parts_json`), and its actions in order; None where there is no timeline."""
    if timeline is None:
        return None
    found = path_of(view, timeline)
    actions = [timeline.spans[index] for index in critical_path(timeline, view.causes[timeline.source])]
    return {
        "ranks": list(found.ranks),
        "seconds": parts_json(found, view.task),
        "spans": [{"action": format_action(span.action), "rank": span.rank} for span in actions],
    }
