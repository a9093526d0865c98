"""What the exact search works on: the problem, its equal machines taken together, and the seconds of every stage.

A stage that does not fit in memory takes infinite seconds, so that the searches need to know seconds only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plait.planner.cut import Cut

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Problem:
    """n machines and L layers, in seconds and bytes; all figures are at least 0, and `numpy.inf` where there is no way.

    `layer_s` [n, L]: seconds of each layer on each machine. `fixed_s` [n]: of a stage, beside its layers. `first_s`,
    `last_s` [n]: more on the stage that holds the embedding, and the head. `layer_bytes` [L] or [n, L], `fixed_bytes`
    [n], `first_bytes`, `last_bytes` (one or [n]): what they take of `free_bytes` [n]. `hand_over_s` [n, n]: for how
    long a message keeps the link i -> j. `latency_s` [n, n]: how much later it is there. `back_s` [n, n]: a token from
    the last stage to the first one, for the objective latency alone.
    """

    layer_s: Floats
    fixed_s: Floats
    first_s: Floats
    last_s: Floats
    layer_bytes: Floats
    fixed_bytes: Floats
    first_bytes: float | Floats
    last_bytes: float | Floats
    free_bytes: Floats
    hand_over_s: Floats
    latency_s: Floats
    back_s: Floats

    @property
    def machines(self) -> int:
        """n."""
        return int(self.layer_s.shape[0])

    @property
    def layers(self) -> int:
        """L."""
        return int(self.layer_s.shape[1])

    @property
    def bytes_(self) -> tuple[Floats, Floats, Floats]:
        """Bytes of the layers, the embedding and the head on every machine: [n, L], [n], [n]."""
        return (
            np.broadcast_to(np.asarray(self.layer_bytes, dtype=np.float64), self.layer_s.shape),
            np.broadcast_to(np.asarray(self.first_bytes, dtype=np.float64), (self.machines,)),
            np.broadcast_to(np.asarray(self.last_bytes, dtype=np.float64), (self.machines,)),
        )


@dataclass(frozen=True)
class Assignment:
    """`machines` in the order of their stages, and the layers [first, end) of each.

    `value_s`: the slowest stage or link (throughput: the rate is 1 ÷ value), or a token's seconds (latency). `exact`:
    it is proven that nothing is better.
    """

    machines: tuple[int, ...]
    cut: Cut
    value_s: float
    exact: bool


@dataclass(frozen=True, eq=False)
class Tables:
    """Seconds of every stage on every class of equal machines.

    `members`: the machines of each class, ascending. `times` [C, L+1]: seconds of the layers before each. `middle`
    [C, L+1, L+1]: of a stage with layers [a, b) that holds neither end; `first` [C, L+1]: [0, b) with the embedding;
    `last` [C, L+1]: [a, L) with the head; `both` [C]: the whole model. `occupied`, `delay`, `back` [C, C]: of the
    links; on the diagonal those inside a class.
    """

    members: tuple[tuple[int, ...], ...]
    times: Floats
    fixed: Floats
    middle: Floats
    first: Floats
    last: Floats
    both: Floats
    occupied: Floats
    delay: Floats
    back: Floats

    @property
    def sizes(self) -> Integers:
        """Machines of each class [C]."""
        return np.array([len(one) for one in self.members], dtype=np.int64)

    @property
    def layers(self) -> int:
        """L."""
        return int(self.first.shape[1]) - 1

    def stage_s(self, order: Sequence[int], cut: Cut) -> list[float]:
        """Seconds of each stage, where stage i is on a machine of class `order[i]`."""
        if len(order) == 1:
            return [float(self.both[order[0]])]
        middle = [float(self.middle[j, a, b]) for j, (a, b) in zip(order[1:-1], cut[1:-1], strict=True)]
        return [float(self.first[order[0], cut[0][1]]), *middle, float(self.last[order[-1], cut[-1][0]])]

    def machines(self, order: Sequence[int]) -> tuple[int, ...]:
        """A machine of each class in turn, the lowest that is left."""
        left = [list(one) for one in self.members]
        return tuple(left[one].pop(0) for one in order)


def tables(problem: Problem, *, in_order: bool = False) -> Tables:
    """Equal machines taken together, and the seconds of each stage that they could hold.

    `in_order`: links do not count, the machines cannot change places anyway; those of the tables are of no use.
    """
    members = _classes(problem, in_order)
    of = np.array([one[0] for one in members])
    layers = problem.layers
    times = np.concatenate([np.zeros((len(of), 1)), np.cumsum(problem.layer_s[of], axis=1)], axis=1)
    layer_bytes, first_bytes, last_bytes = problem.bytes_
    held = np.concatenate([np.zeros((len(of), 1)), np.cumsum(layer_bytes[of], axis=1)], axis=1)
    middle = times[:, None, :] - times[:, :, None] + problem.fixed_s[of, None, None]  # [C, a, b]
    need = held[:, None, :] - held[:, :, None] + problem.fixed_bytes[of, None, None]
    free = problem.free_bytes[of]
    ends = np.arange(layers + 1)
    none = ends[:, None] >= ends[None, :]  # [a, b]: no layer

    def bounded(seconds: Floats, bytes_: Floats, room: Floats) -> Floats:
        return np.where(bytes_ <= room, seconds, np.inf)

    first = bounded(middle[:, 0] + problem.first_s[of, None], need[:, 0] + first_bytes[of, None], free[:, None])
    last = bounded(
        middle[:, :, layers] + problem.last_s[of, None], need[:, :, layers] + last_bytes[of, None], free[:, None]
    )
    whole = need[:, 0, layers] + first_bytes[of] + last_bytes[of]
    both = bounded(middle[:, 0, layers] + problem.first_s[of] + problem.last_s[of], whole, free)
    first[:, 0] = last[:, layers] = np.inf
    return Tables(
        members,
        times,
        problem.fixed_s[of],
        np.where(none[None], np.inf, bounded(middle, need, free[:, None, None])),
        first,
        last,
        both,
        _links(problem.hand_over_s, members),
        _links(problem.hand_over_s + problem.latency_s, members),
        _links(problem.back_s, members),
    )


def _classes(problem: Problem, in_order: bool) -> tuple[tuple[int, ...], ...]:
    """Machines that may change places without any difference, links included."""
    classes: list[list[int]] = []
    for machine in range(problem.machines):
        for one in classes:
            if _equal(problem, one[0], machine) and (in_order or _joined_alike(problem, one[0], machine)):
                one.append(machine)
                break
        else:
            classes.append([machine])
    return tuple(map(tuple, classes))


def _equal(problem: Problem, one: int, other: int) -> bool:
    rows = (problem.fixed_s, problem.first_s, problem.last_s, problem.fixed_bytes, problem.free_bytes, problem.layer_s)
    return all(np.array_equal(row[one], row[other]) for row in (*rows, *problem.bytes_))


def _joined_alike(problem: Problem, one: int, other: int) -> bool:
    others = np.ones(problem.machines, dtype=bool)
    others[[one, other]] = False
    return all(
        np.array_equal(links[one, others], links[other, others])
        and np.array_equal(links[others, one], links[others, other])
        and links[one, other] == links[other, one]
        for links in (problem.hand_over_s, problem.latency_s, problem.back_s)
    )


def _links(links: Floats, members: tuple[tuple[int, ...], ...]) -> Floats:
    of = np.array([one[0] for one in members])
    between: Floats = links[np.ix_(of, of)].astype(np.float64)
    for index, one in enumerate(members):
        between[index, index] = links[one[0], one[1]] if len(one) > 1 else np.inf
    return between


@dataclass(frozen=True, eq=False)
class Level:
    """Sets of k machines: how many of each class [N, C], and the number that names each set [N]."""

    counts: Integers
    codes: Integers

    def select(self, columns: Integers) -> Level:
        """Some of the sets."""
        return Level(self.counts[columns], self.codes[columns])


@dataclass(frozen=True, eq=False)
class Growth:
    """From sets of k machines to sets of k + 1: for each class, which sets can take one more, and what they become."""

    level: Level
    columns: tuple[Integers, ...]
    targets: tuple[Integers, ...]


def weights(sizes: Integers) -> Integers:
    """By how much one more machine of each class raises the number of a set."""
    raised: Integers = np.cumprod(np.concatenate([[1], sizes[:-1] + 1])).astype(np.int64)
    return raised


def ones(sizes: Integers) -> Level:
    """The sets of one machine."""
    return Level(np.eye(len(sizes), dtype=np.int64), weights(sizes))


def grow(level: Level, sizes: Integers) -> Growth:
    """Every set with one more machine of every class that has one left."""
    raised = weights(sizes)
    columns = tuple(np.flatnonzero(level.counts[:, one] < size) for one, size in enumerate(sizes))
    codes = [level.codes[columns[one]] + raised[one] for one in range(len(sizes))]
    unique, index, inverse = np.unique(np.concatenate(codes), return_index=True, return_inverse=True)
    sources = np.concatenate(columns)
    added = np.repeat(np.arange(len(sizes)), [len(one) for one in columns])
    counts = level.counts[sources[index]]
    counts[np.arange(len(index)), added[index]] += 1
    ends = np.cumsum([len(one) for one in columns])[:-1]
    return Growth(Level(counts, unique), columns, tuple(np.split(inverse.ravel(), ends)))


def best_cut(table: Tables, order: Sequence[int], limit_s: float, by_total: bool) -> Cut:
    """For machines in this order: the cut with the least sum of squares, no stage above `limit_s`.

    `by_total`: the least sum of seconds comes first, squares decide between equals.
    """
    layers, stages = table.layers, len(order)
    if stages == 1:
        return ((0, layers),)
    seconds = table.first[order[0]]
    total = np.where(seconds <= limit_s, seconds, np.inf)
    squares, origin = total**2, [np.zeros(layers + 1, dtype=np.int64)]
    for place in range(1, stages):
        stage = table.middle[order[place]]
        if place == stages - 1:
            stage = np.full_like(stage, np.inf)
            stage[:, layers] = table.last[order[place]]
        stage = np.where(stage <= limit_s, stage, np.inf)
        totals, square = total[:, None] + stage, squares[:, None] + stage**2  # [a, b]
        least = totals.min(axis=0) * (1 + 1e-12) if by_total else np.full(layers + 1, np.inf)
        square = np.where(totals <= least, square, np.inf)
        start = square.argmin(axis=0)
        ends = np.arange(layers + 1)
        total, squares = totals[start, ends], square[start, ends]
        origin.append(start)
    ends_at = [layers]
    for start in reversed(origin[1:]):
        ends_at.append(int(start[ends_at[-1]]))
    bounds = [0, *reversed(ends_at)]
    return tuple((bounds[i], bounds[i + 1]) for i in range(stages))
