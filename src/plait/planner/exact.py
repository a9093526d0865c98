"""The exact optimum over contiguous layers: which machines, in which order, with which layers each.

Machines may be unequal, links directed and unequal, and a machine that does not help is left out. Equal machines (links
included) are taken together, so that a hundred of one sort are one search over their number.

Exact while there are no more sets of machines than 16 different ones have (throughput) or 12 (latency). Beyond that a
beam search keeps the 64 most promising sets of each size, counts the longest way back of a token while it searches, and
of more than 60 different machines looks only at the 30 fastest and the 30 with the most memory: what it finds is a real
assignment with a real value, but a better one may exist (`exact` is False).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from math import prod

import numpy as np

from plait.planner.cut import Cut
from plait.planner.exact_latency import latency
from plait.planner.exact_tables import Assignment, Problem, Tables, best_cut, tables
from plait.planner.exact_throughput import throughput

__all__ = ["Assignment", "Problem", "best_in_order", "best_latency", "best_throughput"]

_THROUGHPUT_SETS = 2**16
_LATENCY_SETS = 2**12
_BEAM, _BEAM_MACHINES = 64, 60

_Best = Callable[[Tables, range, int | None], tuple[tuple[int, ...], Cut, float] | None]


def best_throughput(problem: Problem, stages: int | range | None = None) -> Assignment | None:
    """The assignment whose slowest stage or link takes the least seconds: its rate is 1 ÷ `value_s`.

    `stages`: how many, or a range of them; None: any number. None where the model does not fit. Among equals the fewest
    machines, then the least sum of the stages' squares. A token's way back to the first stage, a few bytes, is not
    counted.
    """
    return _best(problem, stages, throughput, _THROUGHPUT_SETS)


def best_latency(problem: Problem, stages: int | range | None = None) -> Assignment | None:
    """The assignment with which one token takes the least: its stages, the links between them, and the way back.

    `stages`: how many, or a range of them; None: any number. None where the model does not fit. Among equals the fewest
    machines, then the least sum of the stages' squares.
    """
    return _best(problem, stages, latency, _LATENCY_SETS)


def _best(problem: Problem, stages: int | range | None, search: _Best, most_sets: int) -> Assignment | None:
    table, machines = tables(problem), tuple(range(problem.machines))
    exact = _sets(table) <= most_sets
    if not exact and len(table.members) > _BEAM_MACHINES:
        machines = _promising(problem)
        table = tables(_only(problem, machines))
    asked = (
        range(1, table.layers + 1)
        if stages is None
        else range(stages, stages + 1)
        if isinstance(stages, int)
        else stages
    )
    counts = range(max(1, asked.start), min(asked.stop, table.layers + 1, len(machines) + 1))
    if not counts:
        return None
    found = search(table, counts, None if exact else _BEAM)
    if found is None:
        return None
    order, cut, value_s = found
    return Assignment(tuple(machines[one] for one in table.machines(order)), cut, value_s, exact)


def _sets(table: Tables) -> int:
    return prod(int(size) + 1 for size in table.sizes)


def _promising(problem: Problem) -> tuple[int, ...]:
    """Half of the machines that are kept for their speed, half for their memory; in the problem's order."""
    half = _BEAM_MACHINES // 2
    fast = np.argsort(problem.layer_s.sum(axis=1), kind="stable")[:half]
    others = np.setdiff1d(np.arange(problem.machines), fast)
    large = others[np.argsort(-problem.free_bytes[others], kind="stable")[:half]]
    return tuple(int(one) for one in np.sort(np.concatenate([fast, large])))


def _only(problem: Problem, machines: tuple[int, ...]) -> Problem:
    """The same problem with these machines alone."""
    kept, square = list(machines), np.ix_(machines, machines)
    layer_bytes, first_bytes, last_bytes = problem.bytes_
    return replace(
        problem,
        layer_bytes=layer_bytes[kept],
        first_bytes=first_bytes[kept],
        last_bytes=last_bytes[kept],
        layer_s=problem.layer_s[kept],
        fixed_s=problem.fixed_s[kept],
        first_s=problem.first_s[kept],
        last_s=problem.last_s[kept],
        fixed_bytes=problem.fixed_bytes[kept],
        free_bytes=problem.free_bytes[kept],
        hand_over_s=problem.hand_over_s[square],
        latency_s=problem.latency_s[square],
        back_s=problem.back_s[square],
    )


def best_in_order(problem: Problem) -> Assignment | None:
    """The cut with the least slowest stage or link where every machine is used, in the order in which they stand.

    None where the model does not fit. Among equals the least sum of the stages' squares.
    """
    table, stages = tables(problem, in_order=True), problem.machines
    place = {machine: index for index, members in enumerate(table.members) for machine in members}
    order = [place[machine] for machine in range(stages)]
    if stages > table.layers:
        return None
    slowest = table.first[order[0]] if stages > 1 else np.full(table.layers + 1, table.both[order[0]])
    for at, one in enumerate(order[1:], start=2):
        stage = table.middle[one]
        if at == stages:
            stage = np.full_like(stage, np.inf)
            stage[:, -1] = table.last[one]
        slowest = np.maximum(slowest[:, None], stage).min(axis=0)
    limit_s = float(slowest[-1])
    if not np.isfinite(limit_s):
        return None
    links_s = (float(problem.hand_over_s[pair]) for pair in pairwise(range(stages)))
    cut = best_cut(table, order, limit_s, by_total=False)
    return Assignment(tuple(range(stages)), cut, max([limit_s, *links_s]), True)
