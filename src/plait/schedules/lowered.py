"""All that each position does in a training step, in columns, and as actions."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, repeat

import numpy as np
from numpy.typing import NDArray

from plait.plans.action import Action
from plait.plans.collection import no_collection
from plait.plans.notation import format_actions
from plait.schedules.order import KINDS, Order

Ints = NDArray[np.int32]

WHOLE = -1
"""The part of an action that is not cut."""


@dataclass(frozen=True, slots=True, eq=False)
class Lowered:
    """Columns int32 [actions], by position, each one's actions in order. `order` is what they were lowered from."""

    order: Order
    position: Ints
    kinds: Ints
    stages: Ints
    micro_batches: Ints
    parts: Ints

    def __len__(self) -> int:
        return len(self.kinds)

    @property
    def bounds(self) -> NDArray[np.intp]:
        """Position q's actions are [bounds[q], bounds[q + 1])."""
        return np.searchsorted(self.position, np.arange(self.order.positions + 1))

    def actions(self, number: int = 0) -> tuple[tuple[Action, ...], ...]:
        """The actions of every position, of round `number`."""
        kinds = [KINDS[code] for code in self.kinds.tolist()]
        parts = [None if part == WHOLE else part for part in self.parts.tolist()]
        fields = zip(repeat(number), self.stages.tolist(), kinds, self.micro_batches.tolist(), parts, strict=False)
        with no_collection():
            # tuple.__new__ spares the frame of a NamedTuple's own constructor
            made = list(map(tuple.__new__, repeat(Action), fields))
        bounds = self.bounds.tolist()
        return tuple(tuple(made[first:end]) for first, end in pairwise(bounds))

    def drawn(self) -> list[str]:
        """One line a position, in the notation."""
        return [format_actions(actions, 0) for actions in self.actions()]

    def at(self, rows: NDArray[np.intp], parts: Ints | None = None) -> Lowered:
        """The rows named, in the order named; `parts` replaces their parts."""
        return Lowered(
            self.order,
            self.position[rows],
            self.kinds[rows],
            self.stages[rows],
            self.micro_batches[rows],
            self.parts[rows] if parts is None else parts,
        )


def lower(order: Order) -> Lowered:
    """The order's own actions, each whole."""
    position = np.repeat(np.arange(order.positions, dtype=np.int32), np.diff(order.bounds))
    kinds, stages, micro_batches = order.columns
    return Lowered(order, position, kinds, stages, micro_batches, np.full(len(kinds), WHOLE, np.int32))


def insert(lowered: Lowered, after: NDArray[np.intp], kind: int, parts: Ints) -> Lowered:
    """An action of `kind`, of a whole stage, after each of the rows `after`, of that row's stage and position."""
    place = np.concatenate([np.arange(len(lowered)), after])
    sort = np.argsort(place, kind="stable")
    columns = (
        (lowered.position, lowered.position[after]),
        (lowered.kinds, np.full(len(after), kind, np.int32)),
        (lowered.stages, lowered.stages[after]),
        (lowered.micro_batches, np.zeros(len(after), np.int32)),
        (lowered.parts, parts),
    )
    return Lowered(lowered.order, *(np.concatenate(column)[sort] for column in columns))
