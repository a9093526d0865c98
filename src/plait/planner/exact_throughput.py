"""The least slowest stage or link: a search over its seconds, each tried by dynamic programming over sets of machines.

For a threshold T, `most[j, S]` is the number of layers that the machines S can hold in stages below T, j last, over
links below T. A stage that begins later ends no earlier, so the most is enough to know: [C, sets] numbers a threshold
in place of every order and cut. The one exception, layers so unequal that a stage could hold an earlier layer alone
while no link leads past its machine, is seen (the bound without it is lower) and then searched with all ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plait.planner.cut import Cut
from plait.planner.exact_ends import order_by_ends
from plait.planner.exact_tables import Flags, Floats, Growth, Integers, Level, Tables, best_cut, grow, ones

Counts = NDArray[np.int32]

Order = tuple[int, ...]
"""The classes of the machines, in the order of their stages."""


def throughput(table: Tables, stages: range, beam: int | None) -> tuple[Order, Cut, float] | None:
    """Classes in order, their layers, and the seconds of the slowest; None where the model does not fit.

    `stages`: how many there may be. `beam`: sets kept of each size, which proves nothing any more; None: all.
    """
    search, values = _Search(table, stages, beam), _values(table)
    found = _least(values, lambda limit_s: search.order(limit_s, empties=beam is None))
    if found is not None and beam is None:
        at, order = found[0], search.order(values[found[0]], empties=False)
        found = (at, order) if order is not None else None
        if order is None:
            found = _least(values[at:], lambda limit_s: order_by_ends(table, search.growths, stages, limit_s))
            found = None if found is None else (at + found[0], found[1])
    if found is None:
        return None
    order = found[1]
    cut = best_cut(table, order, values[found[0]], by_total=False)
    return order, cut, max(*table.stage_s(order, cut), *(table.occupied[a, b] for a, b in pairwise(order)), 0.0)


def _least(values: Floats, order_at: Callable[[float], Order | None]) -> tuple[int, Order] | None:
    """The first of the ascending values that has an order, and that order."""
    low, high, best = 0, len(values) - 1, None
    if high < 0 or (order := order_at(values[high])) is None:
        return None
    best = order
    while low < high:
        middle = (low + high) // 2
        if (order := order_at(values[middle])) is not None:
            high, best = middle, order
        else:
            low = middle + 1
    return high, best


def _values(table: Tables) -> Floats:
    """Everything that can be the slowest, ascending; of what differs by rounding alone the largest."""
    parts = (table.middle, table.first, table.last, table.both, table.occupied)
    values = np.unique(np.concatenate([part.ravel() for part in parts]))
    finite: Floats = values[np.isfinite(values)]
    apart = np.append(finite[1:] > finite[:-1] * (1 + 1e-12), True)
    kept: Floats = finite[apart[: len(finite)]]
    return kept


@dataclass(eq=False)
class _Search:
    """One problem, searched for many thresholds. `beam`: sets kept of each size; None: all."""

    table: Tables
    stages: range
    beam: int | None

    @cached_property
    def growths(self) -> list[Growth]:
        """All sets, by size: the same for every threshold."""
        level, growths = ones(self.table.sizes), []
        for _ in range(self.stages[-1] - 1):
            growths.append(grow(level, self.table.sizes))
            level = growths[-1].level
        return growths

    def order(self, limit_s: float, empties: bool) -> Order | None:
        """Machines that hold all layers with nothing above `limit_s`, the fewest; None: there are none.

        `empties`: a stage may hold no layer; then None proves that there are none, but an order proves nothing.
        """
        alone = np.flatnonzero(self.table.both <= limit_s)
        if len(alone) and 1 in self.stages:
            return (int(alone[0]),)
        reach = _reach(self.table, limit_s, empties)
        level, most = ones(self.table.sizes), np.diag(np.minimum(reach.first, self._cap(1, empties)))
        steps: list[_Step] = []
        for count in range(2, self.stages.stop):
            steps.append(self._step(level, most, count))
            if count in self.stages:
                end = _end(steps[-1], reach)
                if end is not None:
                    return _way_back(steps, reach, *end)
            level, most = steps[-1].growth.level, _grown(steps[-1], reach, self._cap(count, empties))
            if not most.any():
                return None
        return None

    def _cap(self, count: int, empties: bool) -> int:
        """The most layers that `count` stages may hold: those that come later need one each."""
        return self.table.layers - (1 if empties else max(1, self.stages.start - count))

    def _step(self, level: Level, most: Counts, count: int) -> _Step:
        if self.beam is None:
            return _Step(most, self.growths[count - 2], None)
        kept = np.argsort(-most.max(axis=0), kind="stable")[: self.beam]
        return _Step(most[:, kept], grow(level.select(kept), self.table.sizes), kept)


class _Step(NamedTuple):
    """`most` [C, sets]: layers held by sets of one size, for each last class; what they grow to; which were kept."""

    most: Counts
    growth: Growth
    kept: Integers | None


@dataclass(frozen=True, eq=False)
class _Reach:
    """What one threshold allows.

    `first` [C]: where a first stage ends at most. `ends` [C, L]: where one ends that begins at a layer (0: it cannot).
    `last` [C]: where a last stage begins at least. `allowed` [C, C]: the links.
    """

    first: Counts
    ends: Counts
    last: Counts
    allowed: Flags


def _reach(table: Tables, limit_s: float, empties: bool) -> _Reach:
    layers = table.layers
    counts = (table.middle[:, :layers, :layers] <= limit_s).sum(axis=2, dtype=np.int32)  # never to the last layer
    ends = np.arange(layers, dtype=np.int32) + counts
    if not empties:
        ends[counts == 0] = 0
    ends[:, 0] = 0
    first = (table.first[:, :layers] <= limit_s).sum(axis=1, dtype=np.int32)
    last = layers - (table.last[:, 1:layers] <= limit_s).sum(axis=1, dtype=np.int32)
    return _Reach(first, ends, last, table.occupied <= limit_s)


def _before(step: _Step, reach: _Reach, target: int) -> Counts:
    """The most layers before a stage on class `target`, for each set that can take one."""
    sources, columns = np.flatnonzero(reach.allowed[:, target]), step.growth.columns[target]
    if not len(sources):
        return np.zeros(len(columns), dtype=np.int32)
    most: Counts = step.most[sources].max(axis=0)[columns]
    return most


def _grown(step: _Step, reach: _Reach, cap: int) -> Counts:
    grown = np.zeros((len(step.most), len(step.growth.level.codes)), dtype=np.int32)
    for target, targets in enumerate(step.growth.targets):
        grown[target, targets] = np.minimum(reach.ends[target][_before(step, reach, target)], cap)
    return grown


def _end(step: _Step, reach: _Reach) -> tuple[int, int] | None:
    """A set, and the class of the last stage that it can go on with to the model's end; the last class that can."""
    for target in reversed(range(len(step.growth.columns))):
        enough = np.flatnonzero(_before(step, reach, target) >= reach.last[target])
        if len(enough):
            return int(step.growth.columns[target][enough[0]]), target
    return None


def _way_back(steps: list[_Step], reach: _Reach, column: int, target: int) -> Order:
    """The order that led there; among equals the later class comes later, as they stand in the problem."""
    order = [target]
    for at in reversed(range(len(steps))):
        sources = np.flatnonzero(reach.allowed[:, target])
        target = int(sources[len(sources) - 1 - steps[at].most[sources, column][::-1].argmax()])
        order.append(target)
        if at:
            kept, growth = steps[at].kept, steps[at - 1].growth
            column = int(column if kept is None else kept[column])
            column = int(growth.columns[target][np.flatnonzero(growth.targets[target] == column)[0]])
    return tuple(reversed(order))
