"""All that the page's script draws from, as JSON: spans, rows, ranks, memory, colours and Bokeh's empty figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from plait.reports.colours import COLOURS, SORTS, WORDS
from plait.reports.marks import ACTION_WORDS
from plait.reports.page import palette, tables
from plait.reports.page.columns import KINDS, SORT_NAMES, WHYS, Columns, as_json, encode, join, make_columns
from plait.reports.page.figures import memory_item, timeline_item
from plait.reports.page.geometry import COMPUTES, NARROW, TALKS, Geometry, labels, make_geometry
from plait.reports.page.ranks import ranks_as_json
from plait.reports.path import path_of, path_words
from plait.reports.view import View
from plait.timeline.timeline import MemoryTrack

MAX_MEMORY_POINTS = 1_000_000
"""Points of all memory tracks that a page holds; ranks beyond that have their highest point in the table alone."""


class Drawn(NamedTuple):
    """`notes`: what was left out, in sentences. `legend`: name, words and letters of every sort of work in it.

    `spread`: predicted exchanges are drawn by their share; `placed`: they are where `reports.moments` has them.
    """

    data: dict[str, Any]
    notes: tuple[str, ...]
    legend: tuple[tuple[str, str, str], ...]
    memory_ranks: tuple[int, ...]
    has_path: bool
    spread: bool
    placed: bool


def make_drawn(view: View) -> Drawn | None:
    """None: there is nothing to draw."""
    if not any(timeline.spans for timeline in view.timelines) or not view.rows:
        return None
    rows = {row.rank: at for at, row in enumerate(view.rows)}
    held = [make_columns(one, rows, view.causes.get(one.source, ()), view.moments) for one in view.timelines]
    if len(held) == 2:
        join(*held)
    memory, notes = _memory(view, [one.origin_s for one in held])
    of_ranks = {"memory": memory, "ranks": ranks_as_json(view)}
    data = {**_of_timelines(view, held), **of_ranks, "paths": list(_paths(view)), **_words()}
    if memory["ranks"]:
        data["items"]["memory"] = memory_item(data["end_s"])
    return Drawn(
        data,
        (*(note for one in held for note in one.notes), *notes),
        tuple(_legend(held)),
        tuple(one["rank"] for one in memory["ranks"]),
        any(len(one.critical) for one in held),
        any(one.source == "predicted" and _has_spread(one) for one in held),
        any(one.columns["pattern"].any() for one in held),
    )


def _paths(view: View) -> Iterator[str]:
    """The critical paths in words, the same as in the text."""
    for timeline in view.timelines:
        if view.causes.get(timeline.source):
            words = path_words(path_of(view, timeline))
            if words is not None:
                yield f"{words.title}: {words.made_of}."


def _of_timelines(view: View, held: Sequence[Columns]) -> dict[str, Any]:
    geometry = make_geometry(len(view.rows), len(held))
    sources = [one.source for one in held]
    names, short = [row.label for row in view.rows], [str(row.rank) for row in view.rows]
    end_s = max(one.end_s for one in held)
    return {
        "end_s": end_s,
        "rows": [{"rank": row.rank, "label": row.label, "count": len(row.ranks)} for row in view.rows],
        "timelines": [as_json(one) for one in held],
        "geometry": _geometry(geometry, names, short, sources),
        "items": {"timeline": timeline_item(geometry, end_s, names, sources)},
    }


def _words() -> dict[str, Any]:
    return {
        "words": {
            "kinds": [[letters, ACTION_WORDS[letters]] for letters in KINDS],
            "sorts": [WORDS[name] for name in SORT_NAMES],
            "sort_names": SORT_NAMES,
            "whys": WHYS,
        },
        "themes": [_theme(dark) for dark in (False, True)],
    }


def _geometry(geometry: Geometry, names: Sequence[str], short: Sequence[str], sources: Sequence[str]) -> dict[str, Any]:
    return {
        "lines": geometry.lines,
        "row_height": geometry.row_height,
        "height": geometry.height,
        "shown": geometry.shown,
        "line_pixels": geometry.line_pixels,
        "bands": [COMPUTES, TALKS],
        "narrow": NARROW,
        "labels": list(labels(geometry, names, sources).items()),
        "short_labels": list(labels(geometry, short, [source[0] for source in sources]).items()),
    }


def _theme(dark: bool) -> dict[str, Any]:
    colours, letters = palette.drawn(dark)
    return {**(palette.DARK if dark else palette.LIGHT), "sorts": colours, "letters": letters}


def _has_spread(one: Columns) -> bool:
    """True where exchanges are held by how long they take alone."""
    without = np.diff(one.columns["parts"].astype(np.int64)) == 0
    return bool((without & (one.columns["transfer"] > 0) & (one.columns["pattern"] == 0)).any())


def _legend(held: Sequence[Columns]) -> Iterator[tuple[str, str, str]]:
    seen = {SORT_NAMES[code] for one in held for code in np.unique(one.columns["sort"])}
    seen |= {"exchange"} if any(one.columns["transfer"].any() for one in held) else set()
    seen |= {"wait"} if any(one.columns["wait"].any() for one in held) else set()
    for name in COLOURS:
        if name in seen:
            yield name, WORDS[name], " ".join(kind.value for kind, sort in SORTS.items() if sort == name)


def _memory(view: View, origins_s: Sequence[float]) -> tuple[dict[str, Any], list[str]]:
    """Tracks of the ranks, the fullest first, as far as there is room; times from each timeline's own begin."""
    tracks = {
        rank: [track if (track := one.memory.get(rank)) and track.times_s else None for one in view.timelines]
        for rank in {rank for one in view.timelines for rank, track in one.memory.items() if track.times_s}
    }
    ranks: list[dict[str, Any]] = []
    points, left_out = 0, 0
    for rank in sorted(tracks, key=lambda rank: (-_fullness(tracks[rank]), rank)):
        size = sum(len(track.times_s) for track in tracks[rank] if track is not None)
        if points + size > MAX_MEMORY_POINTS:
            left_out += 1
            continue
        points += size
        ranks.append(_tracks(rank, tracks[rank], origins_s))
    sources = [timeline.source for timeline in view.timelines]
    note = f"Of {left_out:,} ranks the page has the highest point of memory alone, not its course."
    return {"ranks": ranks, "sources": sources}, [note] if left_out else []


def _tracks(rank: int, tracks: Sequence[MemoryTrack | None], origins_s: Sequence[float]) -> dict[str, Any]:
    """What a process held before it loaded anything is put under a prediction, which does not count it."""
    base = _base(tracks)
    return {
        "rank": rank,
        "limit": next((one.limit_bytes for one in tracks if one is not None and one.limit_bytes is not None), None),
        "base": base,
        "tracks": [
            None
            if track is None
            else {
                "x": encode(np.array(track.times_s, dtype=np.float64) - origin_s),
                "y": encode(np.array(track.used_bytes, dtype=np.float64) + (0 if track.base_bytes else base)),
            }
            for track, origin_s in zip(tracks, origins_s, strict=True)
        ],
    }


def _base(tracks: Sequence[MemoryTrack | None]) -> int:
    return max((track.base_bytes for track in tracks if track is not None), default=0)


def _fullness(tracks: Sequence[MemoryTrack | None]) -> float:
    """Highest point ÷ limit, the larger of both timelines."""
    return max(
        (tables.peak_bytes(track) / (track.limit_bytes or 1) for track in tracks if track is not None), default=0.0
    )
