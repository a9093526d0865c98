"""The links of a cluster as two maps, latency and bandwidth: a cell for each directed link, with its figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.errors import UsageError
from plait.reports.canvas import new_figure, picture_suffix, save, settings
from plait.reports.link_matrix import shortened, spread_words
from plait.spec.cluster import Cluster, Link
from plait.units import format_rate, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CELL_IN, _SMALL_IN, _LEAST_IN, _NAMES_IN = 0.7, 0.2, 2.4, 1.2
_WRITTEN = 16
"""With more devices the cells have no room for figures."""

_NAME = 14
_MAP, _LIGHT, _DARK = "Blues", 0.05, 0.55
"""One hue, read alike with any colour vision; not so dark that black words would be lost."""


def draw_links(cluster: Cluster, path: Path) -> None:
    """Write a PNG or an SVG, as the file's name says. Errors: UsageError where it cannot be."""
    picture_suffix(path)
    names = [device.name for device in cluster.devices]
    if len(names) < 2:
        raise UsageError(f"{path} would show links, and one device has none: measure several, as in --ranks 2")
    side = max(_LEAST_IN, (_CELL_IN if len(names) <= _WRITTEN else _SMALL_IN) * len(names))
    with settings():
        figure = new_figure(2 * (side + _NAMES_IN), side + _NAMES_IN)
        latency, bandwidth = figure.subplots(1, 2)
        _draw(latency, cluster, names, "Latency: darker is longer", _latency, higher_is_darker=True)
        _draw(bandwidth, cluster, names, "Bandwidth: darker is narrower", _bandwidth, higher_is_darker=False)
        figure.set_layout_engine("tight")
        save(figure, path, "Links", f"Latency and bandwidth between {len(names)} devices, from row to column")


def _latency(link: Link) -> tuple[float, str]:
    return link.latency_s, format_seconds(link.latency_s) + _below(link.spread.latency)


def _bandwidth(link: Link) -> tuple[float, str]:
    return link.bandwidth, format_rate(link.bandwidth) + _below(link.spread.bandwidth)


def _below(spread: float) -> str:
    return f"\n{words.strip()}" if (words := spread_words(spread)) else ""


def _draw(
    axes: Axes,
    cluster: Cluster,
    names: Sequence[str],
    title: str,
    figure_of: Callable[[Link], tuple[float, str]],
    *,
    higher_is_darker: bool,
) -> None:
    """On a scale of powers of ten, since links differ by those."""
    short = [shortened(name, _NAME) for name in names]
    axes.set_title(title)
    axes.set_xticks(range(len(names)), [f"to {name}" for name in short], rotation=30, ha="right")
    axes.set_yticks(range(len(names)), [f"from {name}" for name in short])
    cells = {
        (row, column): figure_of(cluster.link(one, other))
        for row, one in enumerate(names)
        for column, other in enumerate(names)
        if one != other
    }
    image: Any = _shades(cells, len(names), higher_is_darker=higher_is_darker)
    axes.imshow(image, cmap=_MAP, vmin=0.0, vmax=1.0)
    if len(names) > _WRITTEN:
        return
    for (row, column), (_, words) in cells.items():
        axes.text(column, row, words, ha="center", va="center", fontsize=8, color="black")


def _shades(
    cells: Mapping[tuple[int, int], tuple[float, str]], size: int, *, higher_is_darker: bool
) -> list[list[float]]:
    """For each cell a place on the colour map; not a number where there is no link."""
    powers = {at: math.log10(max(value, _LEAST)) for at, (value, _) in cells.items()}
    low, high = min(powers.values()), max(powers.values())
    shades = [[math.nan] * size for _ in range(size)]
    for (row, column), power in powers.items():
        place = (power - low) / (high - low) if high - low > _ALIKE else 0.0
        dark = place if higher_is_darker or high - low <= _ALIKE else 1 - place
        shades[row][column] = _LIGHT + (_DARK - _LIGHT) * dark
    return shades


_LEAST, _ALIKE = 1e-9, 0.05
"""Seconds below which latencies count as none; powers of ten within which links count as alike."""
