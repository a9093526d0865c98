"""When each action of an order begins, many orders at once: what planner and passes ask again and again.

All positions of all orders go on together, one wave after another. Only actions that another position hands something
to are stopped at; what follows them without a wait goes with them (a W most of all), as one segment. A hand-over takes
time and keeps neither side busy; links never queue. The simulator is the exact reader of a lowered round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plait.errors import PlanError
from plait.plans.action import Action
from plait.plans.notation import format_action
from plait.schedules.order import KINDS, B, F, I, Order, W

Floats = NDArray[np.float64]
Ints = NDArray[np.integer]


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """An order and its seconds: per stage of F, of I and of W (B takes I + W), and of the hand-overs.

    `onward_s[s]` is from stage s to s + 1, `back_s[s]` from s + 1 to s: [stages − 1]. Where both are on one position
    neither counts.
    """

    order: Order
    forward_s: Sequence[float]
    input_s: Sequence[float]
    weight_s: Sequence[float]
    onward_s: Sequence[float]
    back_s: Sequence[float]


@dataclass(frozen=True, slots=True, eq=False)
class Ticks:
    """When each action of a run begins, and how long it takes, in the order of its columns: float64 [actions]."""

    begin_s: Floats
    seconds: Floats


def even_run(order: Order, forward_s: float, input_s: float, weight_s: float, hand_over_s: float = 0.0) -> Run:
    """All stages and all hand-overs alike."""
    stages = order.stages
    between = [hand_over_s] * (stages - 1)
    return Run(order, [forward_s] * stages, [input_s] * stages, [weight_s] * stages, between, between)


def tick(runs: Sequence[Run]) -> list[Ticks]:
    """Replay the runs, all together. Errors: PlanError where an order lacks an action, or gets stuck."""
    parts = [_prepare(run) for run in runs]
    begins = _waves(parts)
    return [
        Ticks(begin[part.segment_of] + part.offset, part.seconds) for part, begin in zip(parts, begins, strict=True)
    ]


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A run cut into segments. Per action: its segment, its offset in that, its seconds. Per segment: the segment that
    hands over to it (−1: none), the seconds from that one's begin until it may begin, and its own length. `rows` are
    the segments [first, end) of each position."""

    order: Order
    segment_of: Ints
    offset: Floats
    seconds: Floats
    heads: Ints
    giver: Ints
    after_s: Floats
    length: Floats
    rows: Ints


def _prepare(run: Run) -> _Part:
    order = run.order
    code = order.columns.kinds * order.stages + order.columns.stages
    seconds = _seconds(run).take(code)
    position = np.repeat(np.arange(order.positions, dtype=np.int32), np.diff(order.bounds))
    given = _given(order, position)
    outside = (given >= 0) & (position[np.maximum(given, 0)] != position)
    starts = outside.copy()
    starts[order.bounds[:-1][np.diff(order.bounds) > 0]] = True
    heads = np.flatnonzero(starts)
    segment_of = np.cumsum(starts) - 1
    before = np.cumsum(seconds) - seconds
    offset = before - before[heads][segment_of]
    handed = outside[heads]
    source = np.where(handed, given[heads], 0)
    giver = np.where(handed, segment_of[source], -1)
    after_s = np.where(handed, offset[source] + seconds[source] + _lag(run).take(code[heads]), 0.0)
    rows = np.searchsorted(heads, order.bounds)
    return _Part(order, segment_of, offset, seconds, heads, giver, after_s, np.add.reduceat(seconds, heads), rows)


def _seconds(run: Run) -> Floats:
    """Seconds by kind code and stage."""
    table = np.zeros((len(KINDS), run.order.stages))
    table[F], table[I], table[W] = run.forward_s, run.input_s, run.weight_s
    table[B] = table[I] + table[W]
    return table


def _lag(run: Run) -> Floats:
    """Seconds of the hand-over before an action, by kind code and stage."""
    table = np.zeros((len(KINDS), run.order.stages))
    table[F, 1:], table[B, :-1], table[I, :-1] = run.onward_s, run.back_s, run.back_s
    return table


def _given(order: Order, position: Ints) -> Ints:
    """For each action the index of the action that it needs the outcome of; −1 for F of the first stage."""
    kinds, stages, micro_batches = order.columns
    last, total = order.stages - 1, order.micro_batches
    forward, back, weight = kinds == F, (kinds == B) | (kinds == I), kinds == W
    key = stages * total + micro_batches
    forwards, backwards = _places(forward, key, order), _places(back, key, order)
    turn = back & (stages == last)
    given = np.where(forward | turn, forwards[np.where(forward, key - total, key)], -2)
    given = np.where(weight, backwards[key], given)
    given = np.where(back & ~turn, backwards[np.minimum(key + total, len(backwards) - 1)], given)
    given[forward & (stages == 0)] = -1
    missing = given == -2
    index = np.arange(len(kinds), dtype=np.int32)
    late = (given >= index) & (position[np.maximum(given, 0)] == position)
    held = forwards[key[back]]
    late[back] |= (held < 0) | (held >= index[back])
    wrong = np.flatnonzero(missing | late)
    if len(wrong):
        name = format_action(_action(order, int(wrong[0])), with_round=False)
        raise PlanError(f"schedule {order.schedule}: what {name} needs is not there, or stands after it")
    return given


def _places(wanted: NDArray[np.bool_], key: Ints, order: Order) -> Ints:
    """Where the wanted actions stand, by stage · micro-batches + micro-batch; −2 where there is none."""
    found = np.full(order.stages * order.micro_batches, -2, np.int32)
    at = np.flatnonzero(wanted)
    found[key[at]] = at
    return found


def _action(order: Order, index: int) -> Action:
    kinds, stages, micro_batches = order.columns
    return Action(0, int(stages[index]), KINDS[kinds[index]], int(micro_batches[index]))


class _Board:
    """The segments of all parts in one row of arrays; each position's are followed by one that never begins."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        places, firsts, givers, after, lengths = [], [], [], [], []
        size = 0
        for part in parts:
            count, positions = len(part.giver), part.order.positions
            # a position's segments move up by one for each position before it
            place = size + np.arange(count) + np.searchsorted(part.rows, np.arange(count), side="right") - 1
            places.append(place)
            givers.append(np.where(part.giver < 0, -1, place[part.giver]))
            after.append(part.after_s)
            lengths.append(part.length)
            firsts.append(size + part.rows[:-1] + np.arange(positions))
            size += count + positions
        self.places = places
        where = np.concatenate(places)
        self.size = size
        self.giver = np.full(size, size + 1)
        given = np.concatenate(givers)
        self.giver[where] = np.where(given < 0, size, given)
        self.after_s, self.length = np.zeros(size), np.zeros(size)
        self.after_s[where], self.length[where] = np.concatenate(after), np.concatenate(lengths)
        self.firsts = np.concatenate(firsts)


def _waves(parts: Sequence[_Part]) -> list[Floats]:
    """When each segment of each part begins."""
    if not parts:
        return []
    board = _Board(parts)
    begin = np.full(board.size + 2, np.inf)
    begin[board.size] = 0.0
    at = board.firsts.copy()
    free = np.zeros(len(at))
    while True:
        ready_s = np.maximum(begin.take(board.giver.take(at)) + board.after_s.take(at), free)
        ready = ready_s < np.inf
        if not ready.any():
            break
        begin[at] = ready_s
        np.copyto(free, ready_s + board.length.take(at), where=ready)
        at += ready
    begins = [begin[place] for place in board.places]
    for part, begun in zip(parts, begins, strict=True):
        _require_done(part, begun)
    return begins


def _require_done(part: _Part, begin: Floats) -> None:
    stuck = np.flatnonzero(np.isinf(begin))
    if len(stuck):
        name = format_action(_action(part.order, int(part.heads[stuck[0]])), with_round=False)
        raise PlanError(f"schedule {part.order.schedule} gets stuck at {name}")
