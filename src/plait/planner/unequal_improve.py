"""What `unequal_search` finds for every number of replicas, stages and micro-batches, schedule and recompute."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, permutations
from math import comb, factorial
from typing import NamedTuple

from plait.planner.placement import cut_of
from plait.planner.space import TrainingLimits, divisors
from plait.planner.unequal_costs import Counted, Machines, Unit, Way, counted, sort_of
from plait.planner.unequal_plans import Simulator
from plait.planner.unequal_search import UnitCosts, pipelines, unit_costs
from plait.plans.split import Recompute, Split, TrainingSetup
from plait.spec.cluster import Device

UNEQUAL_SCHEDULES = ("1f1b", "zb-h1", "gpipe", "layerwise")
"""Schedules that are searched on unequal machines: those with one stage a position."""

_MOST_UNITS = 64
_MOST_STAGES = 6
_MOST_LAYERS = 64
_REPLAYED = 64
_TOKENS = 32_768
_ALL = 2_000


class _Search(NamedTuple):
    """One number of replicas, micro-batch and recompute, one schedule and number of stages."""

    least_s: float
    setup: TrainingSetup
    units: tuple[Unit, ...]
    firsts: tuple[int, ...]
    costs: UnitCosts


def improved(
    machines: Machines, devices: Sequence[Device], limits: TrainingLimits, simulator: Simulator, bar_s: float
) -> list[Counted]:
    """Ways that take less than `bar_s`, if any, and those that were replayed on the way to the best."""
    if limits.tp not in (None, 1) or limits.ep not in (None, 1) or limits.virtual not in (None, 1):
        return []
    better: list[Counted] = []
    for one in sorted(_searches(machines, devices, limits), key=lambda one: one.least_s):
        if one.least_s >= bar_s:
            break
        setup = one.setup
        rows, _ = pipelines(one.costs, setup.schedule, setup.split.pp, setup.micro_batches, bar_s, one.firsts)
        for at in range(0, min(len(rows), _ALL), _REPLAYED):
            few = [row for row in rows[at : at + _REPLAYED] if row.least_s < bar_s]
            if not few:
                break
            ways = [Way(setup, tuple(one.units[unit] for unit in row.units), _cut(row.ends)) for row in few]
            done, bar_s = simulator.best([each for each in counted(machines, ways) if each.over_bytes <= 0], bar_s)
            better += done
    return better


def _cut(ends: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return cut_of([end - begin for begin, end in zip((0, *ends), ends, strict=False)])


def _searches(machines: Machines, devices: Sequence[Device], limits: TrainingLimits) -> Iterator[_Search]:
    recompute: list[Recompute] = [one for one in limits.recompute if one != "selective"] or ["none"]
    for replicas in (one for one in divisors(machines.job.batch) if limits.dp in (None, one)):
        units, firsts = _units(devices, replicas)
        if not units:
            continue
        share = machines.job.batch // replicas
        zero = 1 if replicas > 1 and 1 in limits.zero else 0
        for size in _sizes(share, machines.job.sequence, limits):
            for again in recompute:
                fused = machines.job.attention == "fused"
                drawn = TrainingSetup(Split(replicas), "1f1b", size, share // size, 1, again, zero, False, fused)
                yield from _of_costs(unit_costs(machines, units, drawn), drawn, units, firsts, limits)


def _of_costs(
    costs: UnitCosts, drawn: TrainingSetup, units: tuple[Unit, ...], firsts: tuple[int, ...], limits: TrainingLimits
) -> Iterator[_Search]:
    most = min(len({device.name for unit in units for device in unit}) // drawn.split.dp, costs.layers, _MOST_STAGES)
    for stages in range(1, most + 1):
        if limits.pp not in (None, stages):
            continue
        for schedule in UNEQUAL_SCHEDULES if stages > 1 else ("1f1b",):
            if schedule in limits.schedules:
                setup = TrainingSetup(
                    Split(drawn.split.dp, stages), schedule, drawn.micro_batch, drawn.micro_batches, 1,
                    drawn.recompute, drawn.zero, False, drawn.fused_attention,
                )  # fmt: skip
                yield _Search(costs.fastest_s(stages, drawn.micro_batches), setup, units, firsts, costs)


def _sizes(share: int, sequence: int, limits: TrainingLimits) -> list[int]:
    """Every size of a micro-batch that divides a replica's share and has no more tokens than do any good."""
    return [
        size
        for size in divisors(share)
        if limits.micro_batch in (None, size) and (size == 1 or size * sequence <= _TOKENS or limits.micro_batch)
    ]


def _units(devices: Sequence[Device], replicas: int) -> tuple[tuple[Unit, ...], tuple[int, ...]]:
    """All that may hold a stage, and which of them the first one. Where there are too many: neighbours of one sort.

    Which replica is which does not matter: those of the first stage stand in the order of the devices.
    """
    if replicas > len(devices):
        return (), ()
    if comb(len(devices), replicas) * factorial(min(replicas, 8)) <= _MOST_UNITS:
        units = tuple(order for few in combinations(devices, replicas) for order in permutations(few))
        place = {device.name: index for index, device in enumerate(devices)}
        firsts = [
            index
            for index, unit in enumerate(units)
            if [place[device.name] for device in unit] == sorted(place[device.name] for device in unit)
        ]
        return units, tuple(firsts)
    sorts: dict[tuple[object, ...], list[Device]] = {}
    for device in devices:
        sorts.setdefault(sort_of(device), []).append(device)
    groups: list[Unit] = []
    for members in sorts.values():
        each = len(members) // replicas
        groups += [tuple(members[place + each * replica] for replica in range(replicas)) for place in range(each)]
    return tuple(groups), tuple(range(len(groups)))
