"""The least time of a token: dynamic programming over sets of machines, the last of them, and where it ends.

`least[j, S, b]`: the least seconds from a token's begin until machines S, j last, have done layers [0, b). A stage of
machine j from a to b takes times[b] − times[a] + fixed, so the best begin is a minimum over a window, which memory
bounds: [C, sets, L] numbers and log2(L) passes over them for every machine added. What cannot beat the best answer so
far is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from plait.planner.cut import Cut
from plait.planner.exact_tables import Floats, Growth, Integers, Tables, best_cut, grow, ones

Order = tuple[int, ...]
"""The classes of the machines, in the order of their stages."""

_SAME = 1e-12
"""Values nearer than this, relatively, are the same: summed in another order."""


def latency(table: Tables, stages: range, beam: int | None) -> tuple[Order, Cut, float] | None:
    """Classes in order, their layers, and the seconds of a token; None where the model does not fit.

    `stages`: how many there may be. `beam`: sets kept of each size, which proves nothing any more; None: all.
    """
    search = _Search(table, stages, beam)
    search.alone()
    if stages[-1] > 1:
        for firsts in _firsts(table) if beam is None else [np.arange(len(table.members))]:
            search.from_first(firsts)
    if not search.order:
        return None
    cut = best_cut(table, search.order, np.inf, by_total=True)
    return search.order, cut, token_s(table, search.order, cut)


def token_s(table: Tables, order: Order, cut: Cut) -> float:
    """Seconds of a token through stages on these classes and back."""
    links = sum(table.delay[a, b] for a, b in pairwise(order))
    back = table.back[order[-1], order[0]] if len(order) > 1 else 0.0
    return float(sum(table.stage_s(order, cut)) + links + back)


def _firsts(table: Tables) -> list[Integers]:
    """Classes of the first stage that can be looked at together: all, where a token comes back the same way to any."""
    classes = np.arange(len(table.members))
    ways = np.where(np.diag(table.sizes == 1), np.nan, table.back)
    least, most = np.nanmin(ways, axis=1, initial=np.inf), np.nanmax(ways, axis=1, initial=-np.inf)
    if np.all((least == most) | (least > most)):
        return [classes]
    return [classes[one : one + 1] for one in classes]


class _Step(NamedTuple):
    """`least` [C, sets, L]: for sets of one size; what they grow to; which of the sets were kept."""

    least: Floats
    growth: Growth
    kept: Integers


@dataclass(eq=False)
class _Search:
    """The best order so far, and the search for a better one. `beam`: sets kept of each size; None: all."""

    table: Tables
    stages: range
    beam: int | None
    best_s: float = np.inf
    order: Order = ()
    rest_s: Floats = field(init=False)

    def __post_init__(self) -> None:
        layers = np.diff(self.table.times, axis=1).min(axis=0)
        later = np.cumsum(layers[::-1])[::-1]
        self.rest_s = later + self.table.fixed.min() + self.table.delay.min()  # at least, from each layer on

    def alone(self) -> None:
        """One machine for all layers."""
        if 1 in self.stages and np.isfinite(self.table.both).any():
            self.order = (int(self.table.both.argmin()),)
            self.best_s = float(self.table.both.min())

    def from_first(self, firsts: Integers) -> None:
        """Every way that begins on one of these classes."""
        table = self.table
        layers, count = table.layers, len(table.members)
        level, least = ones(table.sizes).select(firsts), np.full((count, len(firsts), layers), np.inf)
        least[firsts, np.arange(len(firsts))] = table.first[firsts, :layers]
        back_s = _back(table, firsts)
        steps: list[_Step] = []
        for at in range(2, self.stages.stop):
            kept = self._kept(least)
            if not len(kept):
                return
            steps.append(_Step(least[:, kept], grow(level.select(kept), table.sizes), kept))
            if at in self.stages:
                self._end(steps, back_s)
            least, level = _grown(table, steps[-1]), steps[-1].growth.level

    def _kept(self, least: Floats) -> Integers:
        """Sets that can still lead to the best answer; what cannot is made infinite in `least`."""
        bound = least + self.rest_s
        least[bound > self.best_s * (1 + _SAME)] = np.inf
        lowest = np.where(np.isfinite(least), bound, np.inf).min(axis=(0, 2))
        kept = np.flatnonzero(np.isfinite(lowest))
        if self.beam is not None and len(kept) > self.beam:
            kept = np.sort(kept[np.argsort(lowest[kept], kind="stable")[: self.beam]])
        return kept

    def _end(self, steps: list[_Step], back_s: Floats) -> None:
        """The best last stage after the sets of the last step, if it is better than what is known."""
        step, places = steps[-1], len(steps) + 1
        for target in range(len(step.growth.columns)):
            before = _before(self.table, step, target)
            total = before + self.table.last[target, : self.table.layers] + back_s[target]
            if not total.size:
                continue
            row, begin = np.unravel_index(total.argmin(), total.shape)
            value = float(total[row, begin])
            same = value <= self.best_s * (1 + _SAME) and np.isfinite(value)
            if value < self.best_s * (1 - _SAME) or (same and places < len(self.order)):
                self.best_s = value
                self.order = _way_back(self.table, steps, target, int(step.growth.columns[target][row]), int(begin))


def _back(table: Tables, firsts: Integers) -> Floats:
    """Seconds of a token from a last stage on each class to the first: the same for all of `firsts`, or the longest."""
    ways = table.back[:, firsts].copy()
    for column, first in enumerate(firsts):
        if len(firsts) > 1 and table.sizes[first] == 1:
            ways[first, column] = -np.inf  # never the last one too: another column says how far it is
    back: Floats = ways.max(axis=1)
    return back


def _before(table: Tables, step: _Step, target: int) -> Floats:
    """The least seconds until a stage on class `target` can begin at each layer [sets that can take one, L]."""
    columns = step.growth.columns[target]
    before = np.full((len(columns), table.layers), np.inf)
    for source in range(len(step.least)):
        if np.isfinite(table.delay[source, target]):
            np.minimum(before, step.least[source, columns] + table.delay[source, target], out=before)
    return before


def _grown(table: Tables, step: _Step) -> Floats:
    layers = table.layers
    grown = np.full((len(step.least), len(step.growth.level.codes), layers), np.inf)
    for target, targets in enumerate(step.growth.targets):
        times = table.times[target, :layers]
        fits = np.isfinite(table.middle[target, :layers, :layers]).sum(axis=0)  # layers of a stage, at most
        least = _window_min(_before(table, step, target) - times, fits)
        grown[target, targets] = least + times + table.fixed[target]
    return grown


def _window_min(values: Floats, widths: Integers) -> Floats:
    """For each b the least of `values[:, b - widths[b] : b]`, by minima over powers of two; infinite where it is empty.

    The windows' begins must not descend.
    """
    result = np.full_like(values, np.inf)
    minima, width = values, 1
    while width <= widths.max():
        ends = np.flatnonzero((widths >= width) & (widths < 2 * width))
        result[:, ends] = np.minimum(minima[:, ends - widths[ends]], minima[:, ends - width])
        if minima.shape[1] <= width:
            break
        minima = np.minimum(minima[:, :-width], minima[:, width:])
        width *= 2
    return result


def _way_back(table: Tables, steps: list[_Step], target: int, column: int, end: int) -> Order:
    """The order that leads to `target` after a set of the last step, which ends at layer `end`."""
    order = [target]
    for at in reversed(range(len(steps))):
        step = steps[at]
        source = int((step.least[:, column, end] + table.delay[:, target]).argmin())
        order.append(source)
        if at:
            growth = steps[at - 1].growth
            row = int(np.flatnonzero(growth.targets[source] == step.kept[column])[0])
            before = _before(table, steps[at - 1], source)[row]
            end = int((before + table.middle[source, : table.layers, end]).argmin())
            column = int(growth.columns[source][row])
        target = source
    return tuple(reversed(order))
