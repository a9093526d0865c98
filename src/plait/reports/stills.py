"""A timeline as a picture that stands still: PNG or SVG, one row a rank, predicted above measured, on one time scale.

stage 0 predicted ▐F0▌▐F1▌   ▐ B0 ▌▐ B1 ▌       computations fill their lane, with their micro-batch where it fits
                  ──▁▁──▁▁                      messages and reductions run below it, waits are thin
        measured  ▐F0 ▌▐F1▌   ▐ B0 ▌▐ B1 ▌
"""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from plait.plans.action import Kind, Lane
from plait.reports.canvas import new_figure, picture_suffix, save, settings
from plait.reports.cells import exchanged_s
from plait.reports.colours import BLACK, COLOURS, GREY, WORDS, sort_of
from plait.reports.view import Row, View
from plait.reports.window import RoundRange, Window, choose_window
from plait.timeline.compare import covered_s, parts
from plait.timeline.span import Span
from plait.timeline.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_IN = 10.0
MOST_ROWS = 48
"""More ranks than these would be lines too thin to be told apart: some of them are shown, evenly chosen."""

_LANE_IN, _GAP_SHARE, _LETTER_IN = 0.24, 0.5, 0.075
_TITLE_LETTER_IN = 0.1
_LOW_LANE_IN, _FEW_LINES = 0.15, 24
"""Where there are more lines, they are lower."""

_COMPUTE, _BELOW, _THIN = (0.26, 0.96), (0.06, 0.22), (0.12, 0.16)
"""From where to where in its lane something is drawn."""

_MOST_LABELS = 2000


class Box(NamedTuple):
    """A rectangle: a key of `COLOURS`, seconds from the window's begin, and heights within its lane."""

    sort: str
    start_s: float
    end_s: float
    low: float
    high: float
    label: str = ""


class _Line(NamedTuple):
    """One timeline's line of a row. `busy`: the share of the window in which it computes."""

    label: str
    source: str
    boxes: list[Box]
    busy: float


@dataclass(frozen=True, slots=True)
class Drawing:
    """All that a still shows, before it is drawn. `notes`: which part of the run, and of its ranks."""

    title: str
    lines: tuple[_Line, ...]
    duration_s: float
    notes: tuple[str, ...]


def write_still(view: View, path: Path, *, rounds: RoundRange | None = None, width_in: float = WIDTH_IN) -> None:
    """Draw the view's timelines into `path`, PNG or SVG by its suffix, the same bytes every time.

    `rounds`: those that are shown; by default of a training run the first step, of an answer its prompt and a few
    tokens. Errors: UsageError for other suffixes, rounds that are not there, and where matplotlib is missing.
    """
    picture_suffix(path)
    drawing = plan_drawing(view, rounds)
    with settings():
        save(_draw(drawing, width_in), path, drawing.title, _describe(drawing))


def plan_drawing(view: View, rounds: RoundRange | None = None) -> Drawing:
    """What a still of the view shows. Errors: UsageError for rounds that are not there."""
    if not any(timeline.spans for timeline in view.timelines) and rounds is None:
        return Drawing(view.title, (), 0.0, ("Nothing is drawn: the run has no timeline.", *view.missing))
    timelines = [timeline for timeline in view.timelines if timeline.spans]
    window = choose_window(timelines, rounds or _usual(view, timelines), _prefill(timelines))
    rows = _chosen(view.rows)
    notes = [window.caption]
    if len(rows) < len(view.rows):
        notes.append(f"{len(rows)} of {len(view.rows)} ranks are shown, evenly chosen.")
    lines = _lines(rows, timelines, window)
    return Drawing(view.title, tuple(lines), window.duration_s, tuple(notes))


def _usual(view: View, timelines: Sequence[Timeline]) -> RoundRange | None:
    """Of training the first step that is there; else the window chooses."""
    if view.task != "train":
        return None
    first = min(span.action.round for timeline in timelines for span in timeline.spans)
    return RoundRange(first, first + 1)


def _prefill(timelines: Sequence[Timeline]) -> int:
    """Rounds up to the first that yields tokens, as far as messages tell."""
    numbers = sorted({span.action.round for timeline in timelines for span in timeline.spans})
    tokens = (Kind.SEND_TOKENS, Kind.RECEIVE_TOKENS)
    first = min((s.action.round for one in timelines for s in one.spans if s.action.kind in tokens), default=None)
    return 1 if first is None else numbers.index(first) + 1


def _chosen(rows: Sequence[Row]) -> list[Row]:
    """Evenly, the first and the last among them."""
    if len(rows) <= MOST_ROWS:
        return list(rows)
    return [rows[index * (len(rows) - 1) // (MOST_ROWS - 1)] for index in range(MOST_ROWS)]


def _lines(rows: Sequence[Row], timelines: Sequence[Timeline], window: Window) -> Iterator[_Line]:
    shown = {row.rank for row in rows}
    of_rank: list[dict[int, list[Span]]] = []
    for timeline, start_s, end_s in zip(timelines, window.starts_s, window.ends_s, strict=True):
        spans: dict[int, list[Span]] = defaultdict(list)
        for span in timeline.spans:
            if span.rank in shown and span.end_s >= start_s and span.start_s <= end_s:
                spans[span.rank].append(span)
        of_rank.append(spans)
    for row in rows:
        label = row.label
        for index, timeline in enumerate(timelines):
            start_s, end_s = window.starts_s[index], window.ends_s[index]
            found = of_rank[index][row.rank]
            boxes = [box for span in found for box in _boxes(span)]
            clipped = [box for box in (_clipped(box, start_s, end_s) for box in boxes) if box is not None]
            yield _Line(label, timeline.source, clipped, _busy(found, start_s, end_s))
            label = ""


def _clipped(box: Box, start_s: float, end_s: float) -> Box | None:
    """What of a box is within the window, in seconds from its begin."""
    first_s, last_s = max(box.start_s, start_s), min(box.end_s, end_s)
    return box._replace(start_s=first_s - start_s, end_s=last_s - start_s) if last_s > first_s else None


def _boxes(span: Span) -> Iterator[Box]:
    kind = span.action.kind
    if kind.lane is Lane.COMPUTE:
        yield from _computing(span)
        return
    for part in parts(span):
        low, high = _THIN if part.what == "wait" else _BELOW
        yield Box(sort_of(kind, part.what), part.start_s, part.end_s, low, high)


def _computing(span: Span) -> Iterator[Box]:
    """What a computation exchanges is a band along it, as high as its share: measured and predicted look alike.

    A measured span has dozens of exchanges, a predicted one has them all at its end.
    """
    kind = span.action.kind
    if any(part.what == "wait" for part in parts(span)):
        for part in parts(span):
            low, high = _THIN if part.what == "wait" else _COMPUTE
            yield Box(sort_of(kind, part.what), part.start_s, part.end_s, low, high)
        return
    label = "" if kind in _OF_STAGE else str(span.action.micro_batch)
    yield Box(sort_of(kind, "compute"), span.start_s, span.end_s, *_COMPUTE, label)
    exchanged = exchanged_s(span)
    if exchanged > 0:
        low, high = _COMPUTE
        share = exchanged / (span.end_s - span.start_s)
        yield Box("exchange", span.start_s, span.end_s, low, low + share * (high - low))


_OF_STAGE = (Kind.OPTIMIZER, Kind.NORM)


def _busy(spans: Sequence[Span], start_s: float, end_s: float) -> float:
    computing = [
        part._replace(start_s=max(part.start_s, start_s), end_s=min(part.end_s, end_s))
        for span in spans
        for part in parts(span)
        if part.what == "compute" and part.end_s > start_s and part.start_s < end_s
    ]
    return covered_s(computing) / (end_s - start_s) if end_s > start_s else 0.0


# --- drawing --------------------------------------------------------------------------------------------------


def _draw(drawing: Drawing, width_in: float) -> Figure:
    letters = max((len(_named(line)) for line in drawing.lines), default=0)
    left_in, right_in = 0.2 + letters * _LETTER_IN, 0.55
    notes = [line for note in drawing.notes for line in textwrap.wrap(note, int((width_in - 0.4) / _LETTER_IN))]
    lane_in = _lane_in(drawing.lines)
    gaps = sum(1 for line in drawing.lines if line.label)
    body_in = (len(drawing.lines) + gaps * _GAP_SHARE) * lane_in
    legend = _legend_of(drawing)
    columns = -(-len(legend) // (1 if width_in >= _WIDE_IN else 2 if width_in >= _WIDE_IN / 2 else 4)) or 1
    title = textwrap.wrap(drawing.title, int((width_in - 0.3) / _TITLE_LETTER_IN))
    above_in = 0.12 + 0.18 * len(title)
    top_in, bottom_in = above_in + 0.2 + 0.18 * -(-len(legend) // columns), 0.5 + 0.17 * len(notes)
    height_in = top_in + max(body_in, 0.3) + bottom_in
    figure = new_figure(width_in, height_in)
    figure.text(0.15 / width_in, 1 - 0.1 / height_in, "\n".join(title), fontsize=11, va="top", color=BLACK)
    for index, note in enumerate(notes):
        at = (0.08 + 0.17 * (len(notes) - 1 - index)) / height_in
        figure.text(0.15 / width_in, at, note, fontsize=8, va="bottom", color=BLACK)
    if drawing.lines:
        axes = figure.add_axes(
            (
                left_in / width_in,
                bottom_in / height_in,
                (width_in - left_in - right_in) / width_in,
                body_in / height_in,
            )
        )
        _draw_lines(axes, drawing, width_in - left_in - right_in, body_in)
        _draw_legend(figure, legend, columns, (0.1 / width_in, 1 - above_in / height_in))
    return figure


def _lane_in(lines: Sequence[_Line]) -> float:
    return _LANE_IN if len(lines) <= _FEW_LINES else max(_LOW_LANE_IN, _LANE_IN * _FEW_LINES / len(lines))


def _named(line: _Line) -> str:
    return f"{line.label} {line.source}".strip()


def _draw_lines(axes: Axes, drawing: Drawing, width_in: float, body_in: float) -> None:
    """All lines, from the top; heights are in inches, times in the axis's unit."""
    scale, unit = _unit(drawing.duration_s)
    duration, lane_in, at_in = drawing.duration_s * scale or 1.0, _lane_in(drawing.lines), 0.0
    axes.set_xlim(0, duration)
    axes.set_ylim(body_in, 0)
    corners: dict[str, list[Any]] = defaultdict(list)
    labels: list[tuple[float, float, Box]] = []
    middles = []
    for line in drawing.lines:
        at_in += _GAP_SHARE * lane_in if line.label else 0.0
        for box in line.boxes:
            low, high = at_in + (1 - box.low) * lane_in, at_in + (1 - box.high) * lane_in
            start, end = box.start_s * scale, box.end_s * scale
            corners[box.sort].append([(start, low), (end, low), (end, high), (start, high)])
            if box.label and (end - start) / duration * width_in > 0.05 + _LETTER_IN * len(box.label):
                labels.append(((start + end) / 2, (low + high) / 2, box))
        middles.append(at_in + (1 - sum(_COMPUTE) / 2) * lane_in)
        at_in += lane_in
    _fill(axes, corners, apart=max(len(line.boxes) for line in drawing.lines) < _MOST_APART * width_in)
    _name(axes, labels)
    _frame(axes, unit, drawing.lines, middles, width_in)


_MOST_APART = 40
"""So many boxes an inch can have a white line between them."""


def _fill(axes: Axes, corners: Mapping[str, Sequence[Any]], *, apart: bool) -> None:
    """Waits first, exchanges over the computations that they are part of. `apart`: lines between boxes."""
    from matplotlib.collections import PolyCollection

    for sort in ("wait", *(sort for sort in COLOURS if sort != "wait")):
        if sort in corners:
            width = 0.3 if apart and sort not in ("wait", "exchange") else 0.0
            drawn = PolyCollection(corners[sort], facecolors=COLOURS[sort], edgecolors="white", linewidths=width)
            drawn.set_gid(sort)
            axes.add_collection(drawn, autolim=False)


def _name(axes: Axes, labels: Sequence[tuple[float, float, Box]]) -> None:
    """Micro-batches, where there are several and not too many boxes."""
    if len({box.label for _, _, box in labels}) < 2 or len(labels) > _MOST_LABELS:
        return
    for x, y, box in labels:
        colour = "white" if box.sort in ("weight", "exchange") else BLACK
        axes.text(x, y, box.label, fontsize=7, ha="center", va="center", color=colour)


def _frame(axes: Axes, unit: str, lines: Sequence[_Line], middles: Sequence[float], width_in: float) -> None:
    """Names at the left, busy shares at the right, time below."""
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0, labelsize=8, labelcolor=BLACK)
    axes.tick_params(axis="x", labelsize=8, color=BLACK, labelcolor=BLACK)
    axes.grid(axis="x", color=GREY, linewidth=0.4)
    axes.set_axisbelow(True)
    axes.set_xlabel(unit, fontsize=8, color=BLACK, labelpad=1)
    axes.set_yticks(middles, [_named(line) for line in lines])
    beside = 1 + 0.06 / width_in
    axes.text(beside, 1.0, "busy", fontsize=8, va="bottom", transform=axes.transAxes, color=BLACK)
    for line, middle in zip(lines, middles, strict=True):
        share, where = f"{line.busy * 100:.0f} %", axes.get_yaxis_transform()
        axes.text(beside, middle, share, fontsize=8, va="center", transform=where, color=BLACK)


_WIDE_IN = 9.0
"""So wide that a legend of everything is one line."""


def _legend_of(drawing: Drawing) -> list[str]:
    there = {box.sort for line in drawing.lines for box in line.boxes}
    return [sort for sort in COLOURS if sort in there]


def _draw_legend(figure: Figure, sorts: Sequence[str], columns: int, at: tuple[float, float]) -> None:
    from matplotlib.patches import Patch

    figure.legend(
        handles=[Patch(facecolor=COLOURS[sort], label=WORDS[sort]) for sort in sorts],
        loc="upper left",
        bbox_to_anchor=at,
        ncols=columns,
        frameon=False,
        fontsize=8,
        handlelength=1.0,
        handleheight=0.8,
        columnspacing=1.2,
        borderpad=0.1,
    )


def _unit(duration_s: float) -> tuple[float, str]:
    """How many of a unit a second is, and its name."""
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if duration_s * factor >= 2:
            return factor, unit
    return 1e6, "µs"


def _describe(drawing: Drawing) -> str:
    """The picture in words: each line's busy share."""
    said = [
        f"{label}, {line.source}: computes {line.busy * 100:.0f} % of the time."
        for label, line in zip(_whole_labels(drawing.lines), drawing.lines, strict=True)
    ]
    return " ".join([*drawing.notes, *said])


def _whole_labels(lines: Sequence[_Line]) -> Iterator[str]:
    label = ""
    for line in lines:
        label = line.label or label
        yield label
