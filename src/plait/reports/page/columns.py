"""A timeline as typed columns: what a page holds of 100,000 spans, and draws what can be seen of.

Spans stand by row, then band (what computes, what talks), then begin, so that those of a band are one slice of every
column. There are no strings of a span: the page writes `17:2F0` from the numbers.
"""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plait.plans.action import Kind, Lane
from plait.reports.colours import COLOURS, SORTS
from plait.reports.moments import Moments
from plait.timeline.causes import Cause, Why, critical_path
from plait.timeline.compare import COMPUTE, TRANSFER, WAIT, summarise
from plait.timeline.span import Part, Span
from plait.timeline.timeline import Timeline

MAX_SPANS = 400_000
"""Spans of one timeline that a page holds; of more the first in time."""

MAX_PARTS = 2_000_000
"""Parts of one timeline's spans that a page holds; of later spans their sums alone."""

KINDS: tuple[str, ...] = tuple(kind.value for kind in Kind)
SORT_NAMES: tuple[str, ...] = tuple(COLOURS)
WHYS: tuple[Why, ...] = ("start", "order", "message", "exchange")
BANDS = 2
"""Of a row: what the compute lane does, and what the lanes of messages and reductions do."""

_NONE, _NOT_DRAWN = -1, -2
_PART_CODES: Mapping[str, int] = {COMPUTE: 0, TRANSFER: 1, WAIT: 2}

Column = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Columns:
    """One timeline's spans. `first[row × BANDS + band]` is where a band begins; the last entry is the end.

    `columns`: per span begin (seconds from the run's begin), length, kind, sort, round, stage, micro-batch, part (-1:
    none), epoch, bytes, seconds of its parts that transfer and wait, `cause` (a span, -1: nothing, -2: not drawn),
    `why`, `mate` (the same action in the other timeline, or -1) and `parts`, where its parts begin. `pieces`: of parts
    that are not what the action itself is, begin from the span's, length and code. `critical`: spans, first to last.

    `pattern`: of a predicted span whose exchanges are placed (`reports.moments`) the number of its pattern, counted
    from 1, else 0. `patterns`: `at` has the shares of computing before each exchange, pattern after pattern, `first`
    where each begins and the end.
    """

    source: str
    origin_s: float
    end_s: float
    first: Column
    columns: Mapping[str, Column]
    pieces: Mapping[str, Column]
    patterns: Mapping[str, Column]
    critical: Column
    notes: tuple[str, ...]

    @property
    def count(self) -> int:
        """Spans that are held."""
        return len(self.columns["start"])


class _Held(NamedTuple):
    """A span that has a row: its number in the timeline, its row and its band."""

    number: int
    row: int
    band: int
    span: Span


def make_columns(
    timeline: Timeline, rows: Mapping[int, int], causes: Sequence[Cause] = (), moments: Moments | None = None
) -> Columns:
    """The columns of the spans of the ranks in `rows` (rank to row); `mate` is set by `join`.

    `moments`: of exchanges, where the timeline is predicted.
    """
    held = [
        _Held(index, rows[span.rank], int(span.action.kind.lane is not Lane.COMPUTE), span)
        for index, span in enumerate(timeline.spans)
        if span.rank in rows
    ]
    held, notes = _limited(held, timeline)
    held.sort(key=lambda one: (one.row, one.band, one.span.start_s, one.span.end_s))
    origin_s = summarise(timeline).start_s
    spans = [one.span for one in held]
    predicted = timeline.source == "predicted"
    pieces, offsets, left_out = _pieces(spans, spread=predicted)
    pattern, patterns = _patterns(spans, moments if predicted else None)
    if left_out:
        notes.append(
            f"{timeline.source.capitalize()}: of {left_out:,} spans the page holds how long their parts took together, "
            f"not when; it holds {MAX_PARTS:,} parts."
        )
    place = {one.number: at for at, one in enumerate(held)}
    columns = {
        **_of_spans(spans, origin_s),
        "parts": np.array(offsets, dtype=np.uint32),
        "pattern": pattern,
        **_of_causes(held, place, causes),
        "mate": np.full(len(held), _NONE, dtype=np.int32),
    }
    path = critical_path(timeline, tuple(causes)) if causes else ()
    return Columns(
        timeline.source,
        origin_s,
        max((span.end_s for span in spans), default=origin_s) - origin_s,
        _first(held, len(rows)),
        columns,
        pieces,
        patterns,
        np.array([place[index] for index in path if index in place], dtype=np.int32),
        tuple(notes),
    )


def join(predicted: Columns, measured: Columns) -> None:
    """Set `mate` in both: the same action of the same epoch in the same row, where it occurs several times in turn."""
    keys = _keys(predicted)
    places = {key: at for at, key in enumerate(keys)}
    for at, key in enumerate(_keys(measured)):
        other = places.get(key)
        if other is not None:
            measured.columns["mate"][at] = other
            predicted.columns["mate"][other] = at


def encode(column: Column) -> dict[str, str]:
    """The bytes of a column, little-endian, as text, and the name of its type."""
    flat = np.ascontiguousarray(column, dtype=column.dtype.newbyteorder("<"))
    return {"type": column.dtype.name, "data": b64encode(flat.tobytes()).decode("ascii")}


def as_json(one: Columns) -> dict[str, Any]:
    """All of it, as it stands in the page."""
    return {
        "source": one.source,
        "end_s": one.end_s,
        "first": encode(one.first),
        "columns": {name: encode(column) for name, column in one.columns.items()},
        "pieces": {name: encode(column) for name, column in one.pieces.items()},
        "patterns": {name: encode(column) for name, column in one.patterns.items()},
        "critical": encode(one.critical),
    }


def _limited(held: list[_Held], timeline: Timeline) -> tuple[list[_Held], list[str]]:
    """The first in time, where there are too many, and a sentence that says so."""
    if len(held) <= MAX_SPANS:
        return held, []
    kept = sorted(held, key=lambda one: one.span.start_s)[:MAX_SPANS]
    return kept, [
        f"{timeline.source.capitalize()}: the picture has the first {MAX_SPANS:,} of {len(held):,} spans; the tables "
        "are of the whole run."
    ]


def _first(held: Sequence[_Held], rows: int) -> Column:
    counts = Counter((one.row, one.band) for one in held)
    sizes = (counts[row, band] for row in range(rows) for band in range(BANDS))
    return np.array(list(accumulate(sizes, initial=0)), dtype=np.uint32)


def _of_spans(spans: Sequence[Span], origin_s: float) -> dict[str, Column]:
    sums = [_sums(span) for span in spans]
    numbers = {kind: at for at, kind in enumerate(KINDS)}
    sorts = {kind.value: SORT_NAMES.index(sort) for kind, sort in SORTS.items()}
    letters = [span.action.kind.value for span in spans]
    return {
        "start": np.array([span.start_s - origin_s for span in spans], dtype=np.float64),
        "length": np.array([span.end_s - span.start_s for span in spans], dtype=np.float64),
        "kind": np.array([numbers[letter] for letter in letters], dtype=np.uint8),
        "sort": np.array([sorts[letter] for letter in letters], dtype=np.uint8),
        "round": np.array([span.action.round for span in spans], dtype=np.int32),
        "stage": np.array([span.action.stage for span in spans], dtype=np.int32),
        "micro_batch": np.array([span.action.micro_batch for span in spans], dtype=np.int32),
        "part": np.array([_part_number(span) for span in spans], dtype=np.int32),
        "epoch": np.array([span.epoch for span in spans], dtype=np.int32),
        "bytes": np.array([span.payload_bytes for span in spans], dtype=np.float64),
        "transfer": np.array([transfer for transfer, _ in sums], dtype=np.float32),
        "wait": np.array([wait for _, wait in sums], dtype=np.float32),
    }


def _part_number(span: Span) -> int:
    return _NONE if span.action.part is None else span.action.part


def _sums(span: Span) -> tuple[float, float]:
    """Seconds that the parts of a span transfer inside a computation, and wait."""
    inside = _foreign(span)
    return _seconds(inside, TRANSFER), _seconds(inside, WAIT)


def _seconds(inside: Iterable[Part], what: str) -> float:
    return sum(each.end_s - each.start_s for each in inside if each.what == what)


def _foreign(span: Span) -> list[Part]:
    """The parts that are not what the action itself is: exchanges and waits of a computation, waits of a message."""
    if span.action.kind.lane is Lane.COMPUTE:
        return [each for each in span.parts if each.what != COMPUTE]
    return [each for each in span.parts if each.what == WAIT]


def _pieces(spans: Iterable[Span], *, spread: bool) -> tuple[dict[str, Column], list[int], int]:
    """All foreign parts one after another; where each span's begin, and the end; of how many spans none are held.

    With `spread` exchanges are left out where nothing is waited for: a prediction says how long they take together, and
    has them all at the end. They are drawn by their pattern, or else by their share, as in `reports.cells`.
    """
    starts: list[float] = []
    lengths: list[float] = []
    codes: list[int] = []
    offsets, left_out = [0], 0
    for span in spans:
        inside = _foreign(span) if span.parts else []
        if spread and all(part.what == TRANSFER for part in inside):
            inside = []
        if len(starts) + len(inside) > MAX_PARTS:
            left_out += 1
            inside = []
        for what, start_s, end_s in inside:
            starts.append(start_s - span.start_s)
            lengths.append(end_s - start_s)
            codes.append(_PART_CODES[what])
        offsets.append(len(starts))
    pieces: dict[str, Column] = {
        "start": np.array(starts, dtype=np.float32),
        "length": np.array(lengths, dtype=np.float32),
        "code": np.array(codes, dtype=np.uint8),
    }
    return pieces, offsets, left_out


def _patterns(spans: Sequence[Span], moments: Moments | None) -> tuple[Column, dict[str, Column]]:
    """Each span's pattern, and all patterns once."""
    known: dict[tuple[float, ...], int] = {(): 0}
    of_span = [0 if moments is None else known.setdefault(moments.of(span), len(known)) for span in spans]
    patterns = list(known)[1:]
    return np.array(of_span, dtype=np.int32), {
        "first": np.array(list(accumulate(map(len, patterns), initial=0)), dtype=np.uint32),
        "at": np.array([share for pattern in patterns for share in pattern], dtype=np.float32),
    }


def _of_causes(held: Sequence[_Held], place: Mapping[int, int], causes: Sequence[Cause]) -> dict[str, Column]:
    if not causes:
        return {"cause": np.full(len(held), _NONE, np.int32), "why": np.zeros(len(held), np.uint8)}
    codes = {why: at for at, why in enumerate(WHYS)}
    of_held = [causes[one.number] for one in held]
    return {
        "cause": np.array([_NONE if c.span < 0 else place.get(c.span, _NOT_DRAWN) for c in of_held], dtype=np.int32),
        "why": np.array([codes[c.why] for c in of_held], dtype=np.uint8),
    }


def _keys(one: Columns) -> list[tuple[int, ...]]:
    """What joins two timelines: row, epoch, round, stage, kind, micro-batch, part, and which of the like ones it is."""
    band_of = np.searchsorted(one.first, np.arange(one.count), side="right") - 1
    names = ("epoch", "round", "stage", "kind", "micro_batch", "part")
    seen: Counter[tuple[int, ...]] = Counter()
    keys: list[tuple[int, ...]] = []
    for key in zip((band_of // BANDS).tolist(), *(one.columns[name].tolist() for name in names), strict=True):
        keys.append((*key, seen[key]))
        seen[key] += 1
    return keys
