"""What a page knows of every rank, drawn or not: its place on each axis, its device and its host.

Ranks of a position are numbered with tp fastest, then cp, ep and dp (`costs.topology`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from plait.plans.layout import Layout
from plait.reports.page.columns import Column, encode
from plait.reports.view import View

_INNER = ("tp", "cp", "ep", "dp")


def coordinates(layout: Layout) -> dict[str, Column]:
    """For each axis of the layout, the place of each rank on it; `pp` is the pipeline position. -1: no stage has it."""
    places = {axis: np.full(_count(layout), -1, dtype=np.int32) for axis in layout.axes}
    inner = [axis for axis in _INNER if axis in layout.axes]
    inner += [axis for axis in layout.axes if axis not in (*_INNER, "pp")]
    for position, stages in enumerate(layout.positions):
        ranks = np.array(layout.stages[stages[0]].ranks)
        index = np.arange(len(ranks))
        for axis in inner:
            places[axis][ranks] = index % layout.axes[axis]
            index = index // layout.axes[axis]
        if "pp" in places:
            places["pp"][ranks] = position
    return places


def _count(layout: Layout) -> int:
    """Ranks of the layout; of a damaged run's, which may leave some out, up to the highest."""
    return max([layout.ranks, *(rank + 1 for stage in layout.stages for rank in stage.ranks)])


def ranks_as_json(view: View) -> dict[str, Any]:
    """What the field that asks for a rank answers from."""
    layout = view.layout
    devices, device_of = _numbered(_devices(layout))
    hosts, host_of = _numbered(_hosts(view))
    count = _count(layout)
    row_of = np.full(count, -1, dtype=np.int32)
    for at, row in enumerate(view.rows):
        row_of[[rank for rank in row.ranks if rank < count]] = at
    position_of = np.full(count, -1, dtype=np.int32)
    for position, stages in enumerate(layout.positions):
        position_of[list(layout.stages[stages[0]].ranks)] = position
    return {
        "count": count,
        "axes": {axis: encode(column) for axis, column in coordinates(layout).items()},
        "sizes": dict(layout.axes),
        "row": encode(row_of),
        "position": encode(position_of),
        "device": encode(device_of),
        "devices": devices,
        "host": encode(host_of),
        "hosts": hosts,
        "positions": [_position(layout, stages) for stages in layout.positions],
    }


def _position(layout: Layout, stages: tuple[int, ...]) -> dict[str, Any]:
    return {"stages": list(stages), "layers": [list(layout.stages[stage].layers) for stage in stages]}


def _devices(layout: Layout) -> dict[int, str]:
    named: dict[int, str] = {}
    for stage in layout.stages:
        for at, rank in enumerate(stage.ranks):
            named.setdefault(rank, stage.devices[at] if at < len(stage.devices) else stage.device)
    return _whole(layout, named)


def _hosts(view: View) -> dict[int, str]:
    """As the timelines say; else as the rows; else as the plan."""
    named: dict[int, str] = {}
    for timeline in reversed(view.timelines):
        named = {**timeline.hosts, **named}
    for row in view.rows:
        named.setdefault(row.rank, row.host)
    for stage in view.layout.stages:
        for rank in stage.ranks:
            named.setdefault(rank, stage.host)
    return _whole(view.layout, named)


def _whole(layout: Layout, named: Mapping[int, str]) -> dict[int, str]:
    return {rank: named.get(rank, "unknown") for rank in range(_count(layout))}


def _numbered(names: Mapping[int, str]) -> tuple[list[str], Column]:
    known = list(dict.fromkeys(names.values()))
    numbers = {name: at for at, name in enumerate(known)}
    return known, np.array([numbers[name] for name in names.values()], dtype=np.int32)
