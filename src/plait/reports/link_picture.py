"""The links of a cluster as two maps, latency and bandwidth: a cell for each directed link, with its figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.reports.canvas import new_figure, picture_suffix, save, settings
from plait.reports.link_matrix import shortened
from plait.spec.cluster import Cluster, Link
from plait.units import format_rate, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CELL_IN, _SMALL_IN, _LEAST_IN, _NAMES_IN = 0.7, 0.2, 2.4, 1.2
_WRITTEN = 16
"""With more devices the cells have no room for figures."""

_NAME = 14
_MAP = "cividis"
"""Read alike with any colour vision (Nuñez, Anderton, Renslow (2018))."""


def draw_links(cluster: Cluster, path: Path) -> None:
    """Write a PNG or an SVG, as the file's name says. Errors: UsageError where it cannot be."""
    picture_suffix(path)
    names = [device.name for device in cluster.devices]
    side = max(_LEAST_IN, (_CELL_IN if len(names) <= _WRITTEN else _SMALL_IN) * len(names))
    with settings():
        figure = new_figure(2 * (side + _NAMES_IN), side + _NAMES_IN)
        latency, bandwidth = figure.subplots(1, 2)
        _draw(latency, cluster, names, "Latency", lambda link: link.latency_s, format_seconds, f"{_MAP}_r")
        _draw(bandwidth, cluster, names, "Bandwidth", lambda link: link.bandwidth, format_rate, _MAP)
        figure.set_layout_engine("tight")
        save(figure, path, "Links", f"Latency and bandwidth between {len(names)} devices, from row to column")


def _draw(
    axes: Axes,
    cluster: Cluster,
    names: Sequence[str],
    title: str,
    figure_of: Callable[[Link], float],
    words: Callable[[float], str],
    colours: str,
) -> None:
    """The lighter the better: short latencies, wide links. On a scale of powers of ten, since links differ by those."""
    values = [[math.nan if one == other else figure_of(cluster.link(one, other)) for other in names] for one in names]
    known: list[float] = [value for row in values for value in row if not math.isnan(value)]
    low, high = (math.log10(max(min(known, default=1.0), 1e-9)), math.log10(max(max(known, default=1.0), 1e-9)))
    if high - low < 0.1:
        low, high = low - 0.5, high + 0.5
    scaled = [[math.nan if math.isnan(value) else math.log10(max(value, 1e-9)) for value in row] for row in values]
    image: Any = scaled
    axes.imshow(image, cmap=colours, vmin=low, vmax=high)
    short = [shortened(name, _NAME) for name in names]
    axes.set_title(title)
    axes.set_xticks(range(len(names)), [f"to {name}" for name in short], rotation=30, ha="right")
    axes.set_yticks(range(len(names)), [f"from {name}" for name in short])
    if len(names) > _WRITTEN:
        return
    for row, line in enumerate(scaled):
        for column, value in enumerate(line):
            if not math.isnan(value):
                light = (value - low) / (high - low) > 0.5
                dark_text = light != colours.endswith("_r")
                axes.text(
                    column,
                    row,
                    words(values[row][column]),
                    ha="center",
                    va="center",
                    fontsize=8,
                    color="black" if dark_text else "white",
                )
