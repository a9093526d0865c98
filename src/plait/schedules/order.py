"""The order in which every position computes: columns of numbers, so that large schedules are made in milliseconds.

An order holds compute actions only (F, B or its halves I and W). Passes lower it to all that a rank does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plait.plans.action import Action, Kind

Ints = NDArray[np.int32]
Table = Ints
"""Rows of (kind code, stage, micro-batch): int32 [actions, 3]."""

KINDS = tuple(Kind)
"""A kind's code is its place here."""
F, B, I, W = (  # noqa: E741
    KINDS.index(kind) for kind in (Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)
)

Placement = tuple[tuple[int, ...], ...]
"""The stages of each position."""


def loop(positions: int, virtual: int) -> Placement:
    """Stage s is on position s mod positions."""
    return tuple(tuple(range(position, positions * virtual, positions)) for position in range(positions))


def v_shape(positions: int) -> Placement:
    """Two stages a position: s on the way down, 2·positions − 1 − s on the way back."""
    return tuple((position, 2 * positions - 1 - position) for position in range(positions))


class Column(NamedTuple):
    """One position's actions in order: kind codes, stages and micro-batches, each int32 [actions]."""

    kinds: Ints
    stages: Ints
    micro_batches: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """What each position computes, in order. Position q's actions are [bounds[q], bounds[q + 1]) of the columns."""

    schedule: str
    placement: Placement
    micro_batches: int
    columns: Column
    bounds: Ints

    @property
    def positions(self) -> int:
        """Pipeline positions."""
        return len(self.placement)

    @property
    def stages(self) -> int:
        """Stages over all positions."""
        return sum(map(len, self.placement))

    def column(self, position: int) -> Column:
        """The actions of one position."""
        part = slice(int(self.bounds[position]), int(self.bounds[position + 1]))
        return Column(*(column[part] for column in self.columns))

    def actions(self, number: int = 0) -> tuple[tuple[Action, ...], ...]:
        """The actions of every position, of round `number`."""
        return tuple(_actions(self.column(position), number) for position in range(self.positions))


def _actions(column: Column, number: int) -> tuple[Action, ...]:
    kinds = [KINDS[code] for code in column.kinds.tolist()]
    made = zip(kinds, column.stages.tolist(), column.micro_batches.tolist(), strict=True)
    return tuple([Action(number, stage, kind, micro_batch) for kind, stage, micro_batch in made])


def make_order(schedule: str, placement: Placement, micro_batches: int, tables: Sequence[Table]) -> Order:
    """An order from one table a position; rows of micro-batches from `micro_batches` on are surplus, and dropped."""
    kept = [table[table[:, 2] < micro_batches] for table in tables]
    bounds = np.cumsum([0, *map(len, kept)], dtype=np.int32)
    columns = np.ascontiguousarray(np.concatenate(kept).T)
    return Order(schedule, placement, micro_batches, Column(*columns), bounds)


def block(count: int, *pattern: tuple[int, int, int]) -> Table:
    """The rows of `pattern`, (kind, stage, first micro-batch), `count` times, the micro-batches counting up."""
    if count <= 0:
        return np.empty((0, 3), np.int32)
    table = np.tile(np.array(pattern, np.int32), (count, 1))
    table[:, 2] += np.repeat(np.arange(count, dtype=np.int32), len(pattern))
    return table


def alternate(*tables: Table) -> Table:
    """A row of each table in turn. The tables are equally long."""
    return np.stack(tables, axis=1).reshape(-1, 3)


def held_peak(order: Order) -> tuple[int, ...]:
    """The most that each position holds at once, in activations of one micro-batch in one of its stages.

    They are held from F until B, or until W where the backward is split (W needs them too).
    """
    change = np.zeros(len(KINDS), np.int64)
    change[[F, B, W]] = 1, -1, -1
    peaks = []
    for position in range(order.positions):
        held = np.cumsum(change[order.column(position).kinds])
        peaks.append(int(held.max(initial=0)))
    return tuple(peaks)
