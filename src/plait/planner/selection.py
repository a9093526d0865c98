"""From all ways to split to the few worth a closer look, and what ruled the others out.

The grid's bounds rank all of them. The best are computed in full until the next bound is above the tenth best, so the
ten that are kept are the ten best of all by the closed form.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Set
from typing import NamedTuple

import numpy as np

from plait.planner.balance import Floats
from plait.planner.grid import Found, Grid, Ints
from plait.planner.result import Rejected
from plait.planner.scoring import Scored, actions, closed
from plait.planner.space import Way
from plait.plans.split import TrainingSetup
from plait.units import format_bytes

_KEPT = 96


class Bounded(NamedTuple):
    """A row with one way and ZeRO stage, and the bound of its seconds."""

    bound_s: float
    row: int
    way: Way
    zero: int


class Family(NamedTuple):
    """What explanations tell apart: the kind of split, the schedule, and what is recomputed."""

    kind: str
    schedule: str
    recompute: str


class Selection:
    """The rows that fit, best bounds first; the best of every family; and what does not fit."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.looked_at = 0
        self.memory_bytes = grid.model.machine.device.memory_bytes
        self._best: list[Bounded] = []
        self._fitting: list[Found] = []
        self._families: dict[Family, Bounded] = {}
        self._tallies: dict[tuple[int, int, int], list[float]] = {}
        self._least = np.inf
        self._least_row: Bounded | None = None
        self._families_of = grid.families()
        self._groups = grid.model_splits()
        for found in grid.search():
            self._add(found)
        self._best.sort(key=lambda one: one.bound_s)
        self._exact: dict[Bounded, Scored | None] = {}

    def best(self, count: int) -> list[Scored]:
        """The best `count` by the closed form, best first."""
        kept: list[tuple[float, ...]] = []
        found: list[Scored] = []
        for one in self._best:
            if len(kept) == count and one.bound_s > -kept[0][0]:
                break
            scored = self._score(one)
            if scored is None:
                continue
            found.append(scored)
            heapq.heappush(kept, (-scored.step_s,))
            if len(kept) > count:
                heapq.heappop(kept)
        return sorted(found, key=lambda one: one.rank)[:count]

    def contenders(self, bar_s: float, known: Set[TrainingSetup], most: int, most_actions: int) -> list[Scored]:
        """All that may take less than `bar_s` in some order of computing, the best by the closed form first.

        Without those that are known; no more than `most`, and than have `most_actions` together.
        """
        may = [
            Bounded(float(found.bound_s[at]), int(found.rows[at]), found.way, found.zero)
            for found in self._fitting
            for at in np.flatnonzero(found.least_s < bar_s).tolist()
        ]
        may.sort(key=lambda one: one.bound_s)
        kept: list[Scored] = []
        for one in may[:most]:
            setup = self.grid.setup(one.row, one.way, one.zero)
            if setup in known:
                continue
            most_actions -= actions(setup)
            if most_actions < 0:
                break
            scored = self._score(one)
            if scored is not None:
                kept.append(scored)
        return kept

    def families(self) -> Iterator[tuple[Family, Scored]]:
        """The best of every family that fits."""
        for family, one in self._families.items():
            scored = self._score(one)
            if scored is not None:
                yield family, scored

    def nearest(self) -> tuple[Bounded, float] | None:
        """The way that needs the fewest bytes a device, and how many; None where there is no way at all."""
        return None if self._least_row is None else (self._least_row, float(self._least))

    def rejected(self) -> tuple[Rejected, ...]:
        """What does not fit in memory, by the axes that divide the model; the nearest to fit first."""
        have = self.memory_bytes
        made = [
            Rejected(
                {"pp": pp, "tp": tp, "ep": ep},
                int(count),
                f"memory: a device would need {_range(least, most)} and has {format_bytes(have)}",
                least,
                float(have),
            )
            for (pp, tp, ep), (count, least, most) in self._tallies.items()
        ]
        return tuple(sorted(made, key=lambda one: one.need))

    def _score(self, one: Bounded) -> Scored | None:
        """In full; None where its real cut does not fit after all."""
        if one not in self._exact:
            scored = closed(self.grid.model, self.grid.setup(one.row, one.way, one.zero))
            self._exact[one] = scored if max(scored.need_bytes) <= self.memory_bytes else None
        return self._exact[one]

    def _add(self, found: Found) -> None:
        self.looked_at += len(found.rows)
        fits = found.need_bytes <= self.memory_bytes
        self._note_least(found)
        if not fits.all():
            self._reject(found.rows[~fits], found.need_bytes[~fits])
        rows, bounds = found.rows[fits], found.bound_s[fits]
        if not len(rows):
            return
        self._fitting.append(Found(found.way, found.zero, rows, found.need_bytes[fits], bounds, found.least_s[fits]))
        best = np.argpartition(bounds, _KEPT)[:_KEPT] if len(bounds) > _KEPT else np.arange(len(bounds))
        for at in best.tolist():
            self._best.append(Bounded(float(bounds[at]), int(rows[at]), found.way, found.zero))
        self._note_families(found, rows, bounds)

    def _note_families(self, found: Found, rows: Ints, bounds: Floats) -> None:
        codes, names = self._families_of
        mine = codes[rows]
        least = np.full(len(names), np.inf)
        np.minimum.at(least, mine, bounds)
        at_least = np.flatnonzero(bounds == least[mine])
        for at in at_least.tolist():
            kind, recompute = names[mine[at]]
            family = Family(kind, found.way.schedule, recompute)
            known = self._families.get(family)
            if known is None or bounds[at] < known.bound_s:
                self._families[family] = Bounded(float(bounds[at]), int(rows[at]), found.way, found.zero)

    def _note_least(self, found: Found) -> None:
        at = int(found.need_bytes.argmin())
        if found.need_bytes[at] < self._least:
            self._least = float(found.need_bytes[at])
            self._least_row = Bounded(float(found.bound_s[at]), int(found.rows[at]), found.way, found.zero)

    def _reject(self, rows: Ints, need: Floats) -> None:
        codes, names = self._groups
        mine = codes[rows]
        counts = np.bincount(mine, minlength=len(names))
        least, most = np.full(len(names), np.inf), np.zeros(len(names))
        np.minimum.at(least, mine, need)
        np.maximum.at(most, mine, need)
        for at in np.flatnonzero(counts).tolist():
            tally = self._tallies.setdefault(names[at], [0, np.inf, 0.0])
            tally[0] += int(counts[at])
            tally[1], tally[2] = min(tally[1], float(least[at])), max(tally[2], float(most[at]))


def _range(least: float, most: float) -> str:
    low, high = format_bytes(least), format_bytes(most)
    return low if low == high else f"{low} to {high}"
