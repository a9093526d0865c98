"""Charts: lines and bars of figures, predicted beside measured, as a picture that also stands in a page.

What is measured is solid, what is predicted dashed or hollow; one subject has one colour. Lines carry their names at
their ends. Drawn for 390 pixels: a wider page may show it larger.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from plait.errors import UsageError
from plait.reports.canvas import new_figure, require_matplotlib, save, settings, svg_text
from plait.reports.colours import BLACK, GREY, SERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Series(NamedTuple):
    """A line or a row of bars: measured, or predicted.

    Where two series have the same name but for the words "measured" and "predicted", they have the same colour.
    """

    name: str
    xs: tuple[float | str, ...]
    ys: tuple[float, ...]
    measured: bool = True


class Chart(NamedTuple):
    """A picture of an experiment. With `bars` the xs are words."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    bars: bool = False
    x_log: bool = False
    y_log: bool = False


WIDTH_IN = 360 / 72
"""So that a word of 11 points is about 11 pixels high on a screen of 390, margins taken off."""

_SIZE, _SMALL = 11, 10
_LONGEST_NAME = 16
"""Longer names of lines stand above the picture, not beside it."""


def chart_svg(chart: Chart) -> str:
    """The chart as an SVG element to put into a page; the same chart gives the same text. Errors: UsageError."""
    require_matplotlib()
    _require(chart)
    with settings():
        return svg_text(_draw(chart), chart.title, describe(chart))


def write_chart(chart: Chart, path: Path) -> None:
    """The chart as a file, PNG or SVG by its suffix. Errors: UsageError."""
    require_matplotlib()
    _require(chart)
    with settings():
        save(_draw(chart), path, chart.title, describe(chart))


def describe(chart: Chart) -> str:
    """All figures of a chart in words, for who does not see it."""
    said = [f"{chart.y_label} by {chart.x_label}."]
    for one in chart.series:
        pairs = "; ".join(f"{_number(x)}: {_number(y)}" for x, y in zip(one.xs, one.ys, strict=True))
        said.append(f"{_named(one)}: {pairs}.")
    return " ".join(said)


def _named(one: Series) -> str:
    """With "measured" or "predicted", where the name does not say it."""
    how = "measured" if one.measured else "predicted"
    return one.name if how in one.name else f"{one.name}, {how}"


def _require(chart: Chart) -> None:
    """Errors: UsageError for what cannot be drawn."""
    where = f"cannot draw the chart {chart.title!r}"
    if not any(one.xs for one in chart.series):
        raise UsageError(f"{where}: it has no figures; at least one series must have a point")
    for one in chart.series:
        if len(one.xs) != len(one.ys):
            raise UsageError(f"{where}: {one.name!r} has {len(one.xs)} xs and {len(one.ys)} ys; give one y for each x")
        for x, y in zip(one.xs, one.ys, strict=True):
            numbers = [y] if isinstance(x, str) else [x, y]
            if not all(map(math.isfinite, numbers)):
                raise UsageError(f"{where}: {one.name!r} has {y:g} at {_number(x)}; leave out what is not known")
            if (chart.y_log and y <= 0) or (chart.x_log and not isinstance(x, str) and x <= 0):
                raise UsageError(
                    f"{where}: {one.name!r} has {y:g} at {_number(x)}, and an axis of powers of ten begins above 0; "
                    "leave the point out, or draw it without"
                )


def _subject(name: str) -> str:
    """What a series is of: its name without "measured" and "predicted"."""
    return re.sub(r"[\s,(]*\b(measured|predicted)\b[\s,)]*", " ", name).strip()


def _colours(chart: Chart) -> dict[str, str]:
    subjects = dict.fromkeys(_subject(one.name) for one in chart.series)
    return {subject: SERIES[index % len(SERIES)] for index, subject in enumerate(subjects)}


def _draw(chart: Chart) -> Figure:
    categories = _categories(chart)
    upright = not chart.bars or _fit(categories)
    rows = 0 if upright else len(categories) * (len(chart.series) * 0.2 + 0.15)
    figure = new_figure(WIDTH_IN, 3.4 if upright else 1.3 + rows)
    axes: Axes = figure.add_subplot()
    if chart.bars:
        _bars(axes, chart, categories, upright=upright)
    else:
        _lines(axes, chart, categories)
    _frame(figure, axes, chart, upright=upright)
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.06)
    return figure


def _fit(categories: Sequence[str]) -> bool:
    """Do the words fit under upright bars?"""
    longest = max(len(line) for words in _in_lines(categories) for line in words.split("\n"))
    return longest * len(categories) <= 46


# --- lines ----------------------------------------------------------------------------------------------------


def _lines(axes: Axes, chart: Chart, categories: Sequence[str]) -> None:
    colours = _colours(chart)
    place = _places(categories)
    if chart.x_log and not categories:
        axes.set_xscale("log")
    if chart.y_log:
        axes.set_yscale("log")
    for one in chart.series:
        colour = colours[_subject(one.name)]
        axes.plot(
            [place(x) for x in one.xs],
            list(one.ys),
            color=colour,
            linestyle="-" if one.measured else (0, (4, 3)),
            linewidth=2 if one.measured else 1.5,
            marker=_MARKERS[list(colours).index(_subject(one.name)) % len(_MARKERS)],
            markersize=5,
            markerfacecolor=colour if one.measured else "white",
            markeredgecolor=colour,
            zorder=3 if one.measured else 2,
        )
    _x_ticks(axes, chart, categories)
    if not chart.y_log:
        _from_zero(axes, [y for one in chart.series for y in one.ys])
    _y_ticks(axes, log=chart.y_log)


_MARKERS = "os^Dvp"
"""So that no line is told by its colour alone."""


def _places(categories: Sequence[str]) -> Callable[[float | str], float]:
    return (lambda x: float(categories.index(str(x)))) if categories else float


def _from_zero(axes: Axes, ys: Sequence[float]) -> None:
    """A linear axis of figures above 0 begins there: heights can be compared."""
    if min(ys) >= 0:
        axes.set_ylim(0, max(ys) * 1.08 or 1)


def _x_ticks(axes: Axes, chart: Chart, categories: Sequence[str]) -> None:
    """At the words, or at the xs themselves where they are few."""
    if categories:
        axes.set_xticks(range(len(categories)), _in_lines(categories))
        return
    xs = sorted({float(x) for one in chart.series for x in one.xs})
    if len(xs) <= 7 and _apart(xs, log=chart.x_log):
        axes.set_xticks(xs, [_number(x) for x in xs])
        axes.minorticks_off()
    else:
        axes.xaxis.set_major_formatter(lambda x, _: _number(x))


def _apart(xs: Sequence[float], *, log: bool) -> bool:
    """Are no two of them so near each other that their numbers would overlap?"""
    at = [math.log(x) for x in xs] if log else list(xs)
    return all(two - one >= (at[-1] - at[0]) / 12 for one, two in pairwise(at))


def _y_ticks(axes: Axes, *, log: bool) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    axis = axes.yaxis
    if log:
        low, high = axes.get_ylim()
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < 300 else (1.0,), numticks=12))
        axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(lambda y, _: _number(y))


# --- bars -----------------------------------------------------------------------------------------------------


def _bars(axes: Axes, chart: Chart, categories: Sequence[str], *, upright: bool) -> None:
    colours, count = _colours(chart), len(chart.series)
    thick = 0.8 / count
    for index, one in enumerate(chart.series):
        colour = colours[_subject(one.name)]
        at = [categories.index(str(x)) - 0.4 + thick * (index + 0.5) for x in one.xs]
        draw: Any = axes.bar if upright else axes.barh
        look = {"color": colour} if one.measured else {"facecolor": "white", "hatch": "////"}
        bars = draw(at, list(one.ys), thick * 0.9, edgecolor=colour, linewidth=1.5, log=chart.y_log, **look)
        axes.bar_label(bars, [_number(y) for y in one.ys], padding=2, fontsize=_SMALL if count < 3 else 8)
    _bar_ticks(axes, chart, categories, upright=upright)


def _bar_ticks(axes: Axes, chart: Chart, categories: Sequence[str], *, upright: bool) -> None:
    positive = min((y for one in chart.series for y in one.ys), default=0) >= 0
    if upright:
        axes.set_xticks(range(len(categories)), _in_lines(categories))
        axes.margins(y=0.12)
        if positive and not chart.y_log:
            axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda y, _: _number(y))
        return
    axes.set_yticks(range(len(categories)), categories)
    axes.invert_yaxis()
    axes.margins(x=0.18)
    if positive and not chart.y_log:
        axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(lambda x, _: _number(x))


# --- what stands around ---------------------------------------------------------------------------------------


def _frame(figure: Figure, axes: Axes, chart: Chart, *, upright: bool) -> None:
    """Title, labels, names; few lines."""
    across, up = (chart.x_label, chart.y_label) if upright else (chart.y_label, chart.x_label)
    axes.set_xlabel(across, fontsize=_SIZE)
    axes.set_ylabel(up, fontsize=_SIZE)
    axes.tick_params(labelsize=_SMALL, color=BLACK, labelcolor=BLACK)
    axes.grid(axis="y" if upright else "x", color=GREY, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.suptitle(_wrapped(chart.title, 54), fontsize=_SIZE + 1, x=0.02, ha="left", color=BLACK)
    _names(axes, chart)


def _wrapped(words: str, width: int) -> str:
    return "\n".join(textwrap.wrap(words, width, break_long_words=False, break_on_hyphens=False))


def _in_lines(categories: Sequence[str]) -> list[str]:
    """Words that stand side by side, each in as many lines as it needs."""
    return [_wrapped(words, max(6, 44 // len(categories))) for words in categories]


def _names(axes: Axes, chart: Chart) -> None:
    """At the ends of lines where the names are short; else above. What is dashed or hollow is said above."""
    subjects = _colours(chart)
    beside = not chart.bars and len(subjects) > 1 and all(0 < len(subject) <= _LONGEST_NAME for subject in subjects)
    if beside:
        _beside(axes, chart, subjects)
    handles, words = _keys(chart, subjects, beside=beside)
    if handles:
        axes.legend(
            handles,
            words,
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=2 if max(map(len, words)) > 14 or len(words) == 4 else 3,
            frameon=False,
            fontsize=_SMALL,
            borderaxespad=0.2,
            handlelength=1.8,
            columnspacing=1.2,
        )


def _keys(chart: Chart, subjects: dict[str, str], *, beside: bool) -> tuple[list[Any], list[str]]:
    """What the legend says: both looks once where names stand beside their lines, else each series."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    shapes = dict(zip(subjects.values(), _MARKERS, strict=False))

    def key(colour: str, *, measured: bool) -> Any:
        if chart.bars:
            return Patch(facecolor=colour if measured else "white", edgecolor=colour, hatch="" if measured else "////")
        fill = colour if measured else "white"
        line: Any = "-" if measured else (0, (4, 3))
        shape = shapes.get(colour, "o")
        return Line2D([], [], color=colour, ls=line, linewidth=2, marker=shape, markersize=5, markerfacecolor=fill)

    looks = sorted({one.measured for one in chart.series}, reverse=True)
    if beside:
        words = ["measured" if measured else "predicted" for measured in looks]
        return [key(BLACK, measured=measured) for measured in looks], words
    both = len(looks) > 1
    if len(chart.series) == 1:
        one = chart.series[0]
        return [key(subjects[_subject(one.name)], measured=one.measured)], [_named(one)]
    return (
        [key(subjects[_subject(one.name)], measured=one.measured) for one in chart.series],
        [_named(one) if both else one.name for one in chart.series],
    )


def _beside(axes: Axes, chart: Chart, subjects: dict[str, str]) -> None:
    """Each subject's name at the right, as near to its line's end as the others leave room for."""
    ends: dict[str, tuple[float, float]] = {}
    place = _places(_categories(chart))
    for one in chart.series:
        if one.xs and (one.measured or _subject(one.name) not in ends):
            ends[_subject(one.name)] = place(one.xs[-1]), one.ys[-1]
    to_axes = axes.transScale + axes.transLimits
    heights = {subject: float(to_axes.transform(end)[1]) for subject, end in ends.items()}
    for subject, height in spread(heights, _LINE).items():
        axes.annotate(
            subject,
            xy=ends[subject],
            xytext=(1.03, height),
            textcoords="axes fraction",
            va="center",
            fontsize=_SMALL,
            color=BLACK,
            arrowprops={
                "arrowstyle": "-",
                "color": subjects[subject],
                "linewidth": 1,
                "shrinkA": 1,
                "shrinkB": 3,
                "relpos": (0, 0.5),
            },
        )


_LINE = 0.075
"""A line of words, as a part of the picture's height."""


def _categories(chart: Chart) -> tuple[str, ...]:
    """The words along an axis, where the xs are words."""
    if not chart.bars and not any(isinstance(x, str) for one in chart.series for x in one.xs):
        return ()
    return tuple(dict.fromkeys(str(x) for one in chart.series for x in one.xs))


def spread(heights: dict[str, float], apart: float) -> dict[str, float]:
    """Heights as near to the given ones as may be, in their order, none nearer than `apart` to the next, within 0 to 1.

    By least squares: those that are too near each other stand around their mean (pooling of adjacent violators, Ayer et
    al., "An empirical distribution function for sampling with incomplete information", 1955).
    """
    order = sorted(heights, key=lambda name: heights[name])
    pools: list[tuple[float, int]] = []  # the mean of some neighbours, each less what stands below it, and their number
    for index, name in enumerate(order):
        mean, count = heights[name] - index * apart, 1
        while pools and pools[-1][0] > mean:
            other, others = pools.pop()
            mean, count = (mean * count + other * others) / (count + others), count + others
        pools.append((mean, count))
    most = max(0.0, 1.0 - apart * (len(order) - 1))
    means = [min(max(mean, 0.0), most) for mean, count in pools for _ in range(count)]
    return {name: mean + index * apart for index, (name, mean) in enumerate(zip(order, means, strict=True))}


def _number(value: float | str) -> str:
    """Three digits, with k, M or G for thousands; words as they are."""
    if isinstance(value, str):
        return value
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.3g}{letter}"
    return f"{value:.4g}" if abs(value) >= 1000 else f"{value:.3g}"
