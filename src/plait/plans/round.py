"""A round: the actions of every pipeline position, and the work they are done on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from plait.plans.action import Action


class Row(NamedTuple):
    """Positions [start, start + length) of one request, whose cache lies in `slot`.

    `samples`: the row's last position yields a token. In training a row is a whole sequence: `request` is its number in
    the step's batch, and it samples nothing.
    """

    request: int
    slot: int
    start: int
    length: int
    samples: bool


class MicroBatch(NamedTuple):
    """Rows that go through the stages together, in ascending order of slot."""

    rows: tuple[Row, ...]

    @property
    def tokens(self) -> int:
        """Positions that a stage computes."""
        return sum(row.length for row in self.rows)

    @property
    def sampled(self) -> int:
        """Tokens that the last stage yields."""
        return sum(row.samples for row in self.rows)


class Carried(NamedTuple):
    """A token message that was sent in `round` and is received in a later one."""

    round: int
    micro_batch: int
    requests: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Round:
    """What every pipeline position does, beside the work. `Layout.positions` says which stages a position holds.

    `carried_in` was in flight when the round began, `carried_out` is when it ends.
    """

    number: int
    work: tuple[MicroBatch, ...]
    actions: tuple[tuple[Action, ...], ...]
    carried_in: tuple[Carried, ...] = ()
    carried_out: tuple[Carried, ...] = ()
