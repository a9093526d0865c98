"""From spans to cells: what one row of a picture shows.

    time      |---------|---------|---------|
    segments  [F0    )[F1 )    [F1          )
    cells       F0        F1        F1

A cell shows what fills most of it. What a cell leaves out is carried on to the next ones, so that a row of many small
pieces shows the right share as well: its busy cells differ from its busy time by at most one cell. A cell never
shows what does not happen in it.

What a computation exchanges inside its stage is spread evenly over its span, by its share of it: a measured span has
dozens of exchanges and a predicted one has them all at its end, and both are to look alike. A computation that also
waits for other positions (the norm) is shown as it was.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from plait.plans.action import Lane
from plait.reports.marks import EXCHANGE, IDLE, TRANSFER, WAIT, Mark, What
from plait.timeline.compare import parts
from plait.timeline.span import Span

_PARTS: Mapping[str, Mark] = {"transfer": TRANSFER, "wait": WAIT}


_PIECES = 32
"""Into so many equal pieces a span with exchanges is divided, each with its share of them at its end."""


class Segment(NamedTuple):
    """One thing that a row shows, from `start_s` to `end_s`. The segments of a row do not overlap."""

    mark: Mark
    start_s: float
    end_s: float


def segments(spans: Iterable[Span], *, spread: bool = True) -> list[Segment]:
    """What a rank does, moment for moment: compute before transfer before wait where several go on at once.

    With `spread` what a computation exchanges is spread evenly over it, as a picture shows it; else it stands where it
    was.
    """
    events = sorted(_events(spans, spread))
    going_on: Counter[Mark] = Counter()
    found: list[Segment] = []
    since = 0.0
    for moment, at_once in groupby(events, key=lambda event: event[0]):
        shown = min((mark for mark, count in going_on.items() if count > 0), default=None)
        if shown is not None:
            found.append(Segment(shown, since, moment))
        for _, change, mark in at_once:
            going_on[mark] += change
        since = moment
    return found


def _events(spans: Iterable[Span], spread: bool) -> Iterator[tuple[float, int, Mark]]:
    for span in spans:
        for piece in _pieces(span, spread):
            if piece.end_s > piece.start_s:
                yield piece.start_s, 1, piece.mark
                yield piece.end_s, -1, piece.mark


def _pieces(span: Span, spread: bool) -> list[Segment]:
    compute = Mark(What.COMPUTE, span.action.micro_batch, span.action.kind.value)
    share = exchanged_s(span) / (span.end_s - span.start_s) if span.end_s > span.start_s else 0.0
    if share > 0 and spread and not any(part.what == "wait" for part in span.parts):
        return list(_spread(span, compute, share))
    marks = {**_PARTS, "transfer": EXCHANGE} if share > 0 else _PARTS
    return [Segment(marks.get(part.what, compute), part.start_s, part.end_s) for part in parts(span)]


def exchanged_s(span: Span) -> float:
    """Seconds that a computation exchanged inside its stage; 0 for messages between stages."""
    if span.action.kind.lane is not Lane.COMPUTE:
        return 0.0
    return sum(part.end_s - part.start_s for part in parts(span) if part.what == "transfer")


def _spread(span: Span, compute: Mark, share: float) -> Iterator[Segment]:
    piece_s = (span.end_s - span.start_s) / _PIECES
    for index in range(_PIECES):
        start_s = span.start_s + index * piece_s
        end_s = span.end_s if index == _PIECES - 1 else span.start_s + (index + 1) * piece_s
        turn_s = max(start_s, end_s - share * piece_s)
        yield Segment(compute, start_s, turn_s)
        yield Segment(EXCHANGE, turn_s, end_s)


def paint(row: Sequence[Segment], start_s: float, cell_s: float, cells: int) -> list[Mark]:
    """The marks of `cells` cells of `cell_s` seconds each, from `start_s` on."""
    shares = _shares(row, start_s, cell_s, cells)
    owed: defaultdict[Mark, float] = defaultdict(float)
    owed_busy = 0.0
    painted: list[Mark] = []
    for share in shares:
        busy = {mark: part for mark, part in share.items() if mark.what is What.COMPUTE}
        rest = {mark: part for mark, part in share.items() if mark.what is not What.COMPUTE}
        owed_busy += sum(busy.values())
        chosen = busy if busy and (owed_busy >= 0.5 or not rest) else rest
        owed_busy -= chosen is busy
        painted.append(_largest(chosen, owed))
    return painted


def _largest(share: dict[Mark, float], owed: defaultdict[Mark, float]) -> Mark:
    """The mark that fills most, with what earlier cells owe it; the others are owed what this cell did not show."""
    for mark, part in share.items():
        owed[mark] += part
    shown = max(share, key=lambda mark: (owed[mark], -mark.what, -mark.micro_batch))
    owed[shown] -= sum(share.values())
    return shown


def _shares(row: Sequence[Segment], start_s: float, cell_s: float, cells: int) -> list[dict[Mark, float]]:
    """What part of each cell each mark fills; idle fills the rest. Every part is above 0."""
    shares: list[dict[Mark, float]] = [defaultdict(float) for _ in range(cells)]
    for mark, begin_s, end_s in row:
        begin, end = max((begin_s - start_s) / cell_s, 0.0), min((end_s - start_s) / cell_s, float(cells))
        for cell in range(int(begin), min(int(end) + 1, cells)):
            overlap = min(end, cell + 1.0) - max(begin, float(cell))
            if overlap > _NOTHING:
                shares[cell][mark] += overlap
    for share in shares:
        idle = 1.0 - sum(share.values())
        if idle > _NOTHING:
            share[IDLE] = idle
    return shares


_NOTHING = 1e-9
"""A smaller part of a cell is rounding, not time."""
