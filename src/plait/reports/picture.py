"""A timeline as text: one row a stage, time left to right, predicted above measured, on one time scale.

Where ranks hold several stages (virtual ones) a row is a rank.

               ms 0         10        20
                  ┬─────────┬─────────┬────   busy
stage 0 predicted ██████▒▒▒▒▒▒██████▒▒▒▒▒▒    96 %
        measured  ███████▒▒▒▒▒▒██████▒▒▒▒▒▒  100 %
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby
from math import floor, log10
from typing import NamedTuple

from rich.text import Text

from plait.reports.cells import Segment, paint, segments
from plait.reports.marks import PASS_WORDS, PASSES, UNICODE, Glyphs, Mark, What, is_training, style_of
from plait.reports.window import RoundRange, Window, choose_window
from plait.timeline.timeline import Timeline

MIN_CELLS = 20
"""A picture narrower than this says nothing: it is drawn so wide all the same."""

_BUSY = 6
"""Columns of the busy share at a row's end."""

_TICK_CELLS = 8
"""Ticks stand at least so many cells apart."""


class Row(NamedTuple):
    """One line of the picture, painted; `busy` is the share of its timeline's part in which it computes, exactly."""

    label: str
    marks: tuple[Mark, ...]
    busy: float


class _Unpainted(NamedTuple):
    """What a line of the picture shows from `start_s` to `end_s`."""

    source: str
    start_s: float
    end_s: float
    segments: list[Segment]


_Rows = dict[tuple[int, int], list[_Unpainted]]
"""By stage and rank: of each timeline that has it."""


def picture(
    predicted: Timeline | None,
    measured: Timeline | None,
    width: int = 80,
    *,
    rounds: RoundRange | None = None,
    prefill: int = 1,
    glyphs: Glyphs = UNICODE,
) -> Text:
    """Both timelines, or the one there is, in lines of at most `width` columns. Errors: UsageError: nothing to draw.

    `rounds` asks for some rounds; else the first `prefill` and a few more are shown. The first line says what is shown.
    """
    timelines = [timeline for timeline in (predicted, measured) if timeline is not None]
    window = choose_window(timelines, rounds, prefill)
    rows = paint_rows(timelines, window, width)
    indent = len(rows[0].label)
    cells = len(rows[0].marks)
    lines = [*wrapped(window.caption.split(), " ", width), Text()]
    lines += _axis(window.duration_s, cells, indent, glyphs)
    training = is_training(mark for row in rows for mark in row.marks)
    lines += [_line(row, glyphs, training) for row in rows]
    legend = _training_legend(rows, glyphs) if training else _legend(rows, glyphs)
    lines += [Text(), *wrapped(legend, "   ", width)]
    return Text("\n", no_wrap=True, overflow="ignore").join(lines)


def paint_rows(timelines: Sequence[Timeline], window: Window, width: int) -> list[Row]:
    """The rows of every stage (of every rank of it, where it has several), all of the same width."""
    rows: _Rows = defaultdict(list)
    held = _held(timelines)
    for timeline, start_s, end_s in zip(timelines, window.starts_s, window.ends_s, strict=True):
        for key, found in _segments_by_row(timeline, held).items():
            rows[key].append(_Unpainted(timeline.source, start_s, end_s, found))
    labels = _labels(rows, held)
    cells = max(width - len(labels[0]) - _BUSY, MIN_CELLS)
    cell_s = window.duration_s / cells or 1.0
    flat = [one for _, sources in sorted(rows.items()) for one in sources]
    return [
        Row(label, tuple(paint(one.segments, one.start_s, cell_s, cells)), _busy(one))
        for label, one in zip(labels, flat, strict=True)
    ]


_Held = dict[int, tuple[int, ...]]
"""By rank: the stages that it holds, ascending."""


def _held(timelines: Sequence[Timeline]) -> _Held:
    found: dict[int, set[int]] = defaultdict(set)
    for timeline in timelines:
        for span in timeline.spans:
            found[span.rank].add(span.action.stage)
    return {rank: tuple(sorted(stages)) for rank, stages in found.items()}


def _segments_by_row(timeline: Timeline, held: _Held) -> dict[tuple[int, int], list[Segment]]:
    """Segments of each row: of a rank, under the first of its stages."""
    spans = sorted(timeline.spans, key=lambda span: (held[span.rank][0], span.rank))
    grouped = groupby(spans, key=lambda span: (held[span.rank][0], span.rank))
    return {key: segments(group) for key, group in grouped}


def _labels(rows: _Rows, held: _Held) -> list[str]:
    """``stage 1 predicted``, and under it only ``measured``; with the rank where a stage has several."""
    stages = [stage for stage, _ in rows]
    labels: list[tuple[str, str]] = []
    for (stage, rank), sources in sorted(rows.items()):
        name = f"stage{'s' if len(held[rank]) > 1 else ''} {', '.join(map(str, held[rank]))}"
        name += f" rank {rank}" if stages.count(stage) > 1 else ""
        labels += [(name if index == 0 else "", one.source) for index, one in enumerate(sources)]
    names, sources_wide = max(len(name) for name, _ in labels), max(len(source) for _, source in labels)
    return [f"{name:<{names}} {source:<{sources_wide}} " for name, source in labels]


def _busy(row: _Unpainted) -> float:
    busy_s = sum(
        max(0.0, min(segment.end_s, row.end_s) - max(segment.start_s, row.start_s))
        for segment in row.segments
        if segment.mark.what is What.COMPUTE
    )
    return busy_s / (row.end_s - row.start_s) if row.end_s > row.start_s else 0.0


def _line(row: Row, glyphs: Glyphs, training: bool) -> Text:
    line = Text(row.label)
    for mark, run in groupby(row.marks):
        line.append(glyphs.of(mark, training=training) * len(list(run)), style_of(mark, training=training))
    return line.append(f"{row.busy * 100:.0f} %".rjust(_BUSY))


def _axis(duration_s: float, cells: int, indent: int, glyphs: Glyphs) -> list[Text]:
    """Two lines: the ticks' times in ms, and the ticks."""
    duration_ms = duration_s * 1e3
    step = tick_step(duration_ms, cells)
    numbers, ticks = "", ""
    for index in range(cells):
        place = index * step / duration_ms * cells if duration_ms > 0 else index * cells
        if round(place) >= cells:
            break
        label = f"{index * step:.10g}"
        numbers = numbers.ljust(round(place)) + label
        ticks = ticks.ljust(round(place), glyphs.line) + glyphs.tick
    numbers, ticks = numbers.ljust(cells), ticks.ljust(cells, glyphs.line)
    if len(numbers) > cells:
        numbers = numbers[: numbers.rindex(" ")].ljust(cells)
    return [Text(f"{'ms ':>{indent}}{numbers}{'busy':>{_BUSY}}"), Text(" " * indent + ticks)]


def tick_step(duration_ms: float, cells: int) -> float:
    """The smallest of 1, 2 and 5 × 10ⁿ ms that keeps ticks far enough apart."""
    least = duration_ms * _TICK_CELLS / cells * (1 - 1e-9)
    if least <= 0:
        return 1.0
    power = 10.0 ** floor(log10(least))
    return next((factor * power for factor in (1, 2, 5) if factor * power >= least), 10 * power)


def _legend(rows: Sequence[Row], glyphs: Glyphs) -> list[Text]:
    """A word on every character that stands in the picture."""
    drawn: dict[str, list[Mark]] = defaultdict(list)
    for mark in sorted({mark for row in rows for mark in row.marks}):
        drawn[glyphs.of(mark)].append(mark)
    return [_word(character, marks) for character, marks in drawn.items()]


_MEANINGS: Mapping[What, str] = {
    What.EXCHANGE: "exchange inside an action",
    What.TRANSFER: "transfer",
    What.WAIT: "waits for a message",
    What.IDLE: "nothing to do",
}


def _word(character: str, marks: Sequence[Mark], meanings: Mapping[What, str] = _MEANINGS) -> Text:
    mark = marks[0]
    numbers = ", ".join(str(mark.micro_batch) for mark in marks)
    meaning = meanings.get(mark.what, f"compute micro-batch {numbers}")
    shown = "(blank)" if mark.what is What.IDLE else character
    return Text.assemble((shown, style_of(mark)), f" {meaning}")


def _training_legend(rows: Sequence[Row], glyphs: Glyphs) -> list[Text]:
    """A word on every pass in the picture: its first character, which is micro-batch 0's, and the last."""
    drawn = {mark for row in rows for mark in row.marks}
    words = []
    for letters, characters in PASSES.items():
        numbers = sorted(mark.micro_batch for mark in drawn if mark.what is What.COMPUTE and mark.letters == letters)
        if numbers:
            last = min(numbers[-1], len(characters) - 1)
            shown = characters[0] if not last else f"{characters[0]} to {characters[last]}"
            of = f": micro-batches 0 to {last}" if last else ""
            of += ", and on" if last and numbers[-1] > last else ""
            style = style_of(Mark(What.COMPUTE, 0, letters), training=True)
            words.append(Text.assemble((shown, style), f" {PASS_WORDS[letters]}{of}"))
    others = sorted(mark for mark in drawn if mark.what is not What.COMPUTE)
    meanings = {**_MEANINGS, What.TRANSFER: "transfer or reduction", What.WAIT: "waits for others"}
    return words + [_word(glyphs.of(mark), [mark], meanings) for mark in others]


def wrapped(words: Sequence[str | Text], gap: str, width: int) -> list[Text]:
    """The words in lines of at most `width` columns, none broken."""
    lines = [Text()]
    for word in words:
        if lines[-1] and len(lines[-1]) + len(gap) + len(word) > width:
            lines.append(Text())
        lines[-1].append(gap if lines[-1] else "").append_text(Text(word) if isinstance(word, str) else word)
    return lines
