"""Every layer at which a set of machines can end, not only the furthest: slower, and exact for any layers and links."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from plait.planner.exact_tables import Flags, Growth, Integers, Tables


def order_by_ends(table: Tables, growths: Sequence[Growth], stages: range, limit_s: float) -> tuple[int, ...] | None:
    """Classes in order that hold all layers with no stage and no link above `limit_s`, the fewest; None: none do.

    `growths`: all sets of machines by size, from those of one on.
    """
    if 1 in stages and (table.both <= limit_s).any():
        return (int(np.flatnonzero(table.both <= limit_s)[0]),)
    ends = np.zeros((len(table.both), len(table.both), table.layers), dtype=bool)  # [last class, set, end]
    np.einsum("iie->ie", ends)[:] = table.first[:, : table.layers] <= limit_s
    levels = [ends]
    for at, growth in enumerate(growths):
        if at + 2 in stages:
            order = _order(table, growths, levels, limit_s)
            if order is not None:
                return order
        levels.append(_grown(table, growth, levels[-1], limit_s))
    return None


def _earliest(table: Tables, limit_s: float) -> Integers:
    """The earliest begin of a stage that ends at a layer [C, L]; the end itself where there is none."""
    counts = (table.middle[:, : table.layers, : table.layers] <= limit_s).sum(axis=1)
    earliest: Integers = np.arange(table.layers) - counts
    return earliest


def _before(table: Tables, growth: Growth, ends: Flags, target: int, limit_s: float) -> Flags:
    """Where a stage on class `target` can begin [sets that can take one, L]."""
    sources = np.flatnonzero(table.occupied[:, target] <= limit_s)
    anywhere: Flags = np.any(ends[sources], axis=0)
    return anywhere[growth.columns[target]]


def _grown(table: Tables, growth: Growth, ends: Flags, limit_s: float) -> Flags:
    grown = np.zeros((len(ends), len(growth.level.codes), table.layers), dtype=bool)
    earliest, places = _earliest(table, limit_s), np.arange(table.layers)
    for target, targets in enumerate(growth.targets):
        before = _before(table, growth, ends, target, limit_s)
        nearest = np.maximum.accumulate(np.where(before, places, -1), axis=1)
        grown[target, targets, 1:] = nearest[:, :-1] >= earliest[target, 1:]
    return grown


def _order(table: Tables, growths: Sequence[Growth], levels: Sequence[Flags], limit_s: float) -> tuple[int, ...] | None:
    """The way to the model's end from the sets of the last level, if there is one."""
    growth = growths[len(levels) - 1]
    for target in reversed(range(len(growth.columns))):
        begins = _before(table, growth, levels[-1], target, limit_s) & (table.last[target, : table.layers] <= limit_s)
        if begins.any():
            row, begin = map(int, np.argwhere(begins)[0])
            return _way_back(table, growths, levels, limit_s, target, int(growth.columns[target][row]), begin)
    return None


def _way_back(
    table: Tables,
    growths: Sequence[Growth],
    levels: Sequence[Flags],
    limit_s: float,
    target: int,
    column: int,
    end: int,
) -> tuple[int, ...]:
    order, earliest = [target], _earliest(table, limit_s)
    for at in reversed(range(len(levels))):
        sources = np.flatnonzero(table.occupied[:, target] <= limit_s)
        target = int(sources[np.flatnonzero(levels[at][sources, column, end])[-1]])
        order.append(target)
        if at:
            growth = growths[at - 1]
            column = int(growth.columns[target][np.flatnonzero(growth.targets[target] == column)[0]])
            before = levels[at - 1][table.occupied[:, target] <= limit_s, column].any(axis=0)
            end = int(np.flatnonzero(before[earliest[target, end] : end])[0] + earliest[target, end])
    return tuple(reversed(order))
