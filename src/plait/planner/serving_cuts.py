"""Every order and every cut of a few units, by the closed forms of `serving_figures` in arrays: the best of each ask.

The exact searches know the least way through and the least slowest stage; what is asked for is often between the two
(m micro-batches: the longer of the way and m × the slowest; a prompt in pieces: the way and the fill). Where there are
few enough orders and cuts, all are looked at, so that a faster or larger machine can never lose the best of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations, islice, pairwise, permutations
from math import comb, perm
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plait.costs.shares import Share
from plait.planner.cut import Cut
from plait.planner.serving_units import Demand, Unit, World
from plait.plans.rules import TOKEN_BYTES
from plait.schedules.generation import LAYERWISE
from plait.spec.shards import even_rows

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_MOST_ORDERS = 6000
_MOST_WAYS = 1_000_000
"""Orders × cuts that are looked at: up to 4 machines with 50 layers, 6 with 16."""

_AT_ONCE = 100_000

_EVEN = 1e-11
"""How much of the slowest stage counts between equals: far less than what makes a difference."""


class Work(NamedTuple):
    """What a stage computes at a time: `tokens` positions of `requests`, of which `sampled` yield a token."""

    tokens: int
    requests: int
    cached: float
    sampled: int


@dataclass(frozen=True, slots=True)
class Ask:
    """A schedule for which the best order and cut are wanted, as `Way` has it. `prefill`: for the first token."""

    schedule: str
    micro_batches: int
    demand: Demand
    prefill: bool


def every_cut(
    world: World, units: Sequence[Unit], stages: int, asks: Sequence[Ask]
) -> Iterator[tuple[tuple[Unit, ...], Cut]]:
    """For every ask the best order and cut, of all that fit; nothing where there are too many to look at."""
    cuts, orders = comb(world.spec.layers - 1, stages - 1), perm(len(units), stages)
    if orders > _MOST_ORDERS or cuts > _MOST_WAYS:
        return
    different = _orders(world, units, stages)
    if cuts * len(different) > _MOST_WAYS:
        return
    bounds = _bounds(world.spec.layers, stages)
    for ask in asks:
        best = _Pipelines(world, bounds, ask).best(different)
        if best is not None:
            yield best


def _orders(world: World, units: Sequence[Unit], stages: int) -> list[tuple[Unit, ...]]:
    """Every order of so many units, once where units and links are the same."""
    seen: dict[object, tuple[Unit, ...]] = {}
    for order in permutations(units, stages):
        links = tuple(world.link(one, other) for one, other in pairwise((*order, order[0])))
        seen.setdefault((tuple(_sort(world, unit) for unit in order), links), order)
    return list(seen.values())


def _sort(world: World, unit: Unit) -> object:
    """Units with equal ones take the same."""
    if len(unit.devices) == 1:
        return world.signature(unit.devices[0])
    return world.stand_in(unit)


@cache
def _bounds(layers: int, stages: int) -> Integers:
    """Where stages begin, and the end: every cut [stages + 1, cuts]."""
    inner = np.array(list(combinations(range(1, layers), stages - 1)), dtype=np.int64).reshape(-1, stages - 1)
    ends = np.zeros((len(inner), stages + 1), dtype=np.int64)
    ends[:, 1:-1], ends[:, -1] = inner, layers
    return np.ascontiguousarray(ends.T)


@dataclass(eq=False)
class _Pipelines:
    """All cuts of one ask, order by order."""

    world: World
    bounds: Integers
    ask: Ask

    def __post_init__(self) -> None:
        self._seconds: dict[object, Floats] = {}
        self._fits: dict[object, NDArray[np.bool_]] = {}

    def best(self, orders: Sequence[tuple[Unit, ...]]) -> tuple[tuple[Unit, ...], Cut] | None:
        """The order and cut with the least value that fit, of equals the most even; None: none do."""
        least, found, left = np.inf, None, iter(orders)
        while some := list(islice(left, max(1, _AT_ONCE // self.bounds.shape[1]))):
            values = self._first_s(some) if self.ask.prefill else self._round_s(some)
            values = values + _EVEN * self._stages(some, Work(1, 1, 0.0, 1)).max(axis=0)
            for at, _ in enumerate(self.bounds[:-1]):
                values[~np.array([self._able(order[at], at) for order in some])] = np.inf
            place = np.unravel_index(values.argmin(), values.shape)
            if values[place] < least:
                least = float(values[place])
                ends = [int(end) for end in self.bounds[:, place[1]]]
                found = some[int(place[0])], tuple(pairwise(ends))
        return found

    @cached_property
    def _sizes(self) -> dict[int, int]:
        """Micro-batches by how many requests they hold."""
        least, larger = divmod(self.ask.demand.slots, self.ask.micro_batches)
        sizes = ((least + 1, larger), (least, self.ask.micro_batches - larger))
        return {size: times for size, times in sizes if times and size}

    def _round_s(self, orders: Sequence[tuple[Unit, ...]]) -> Floats:
        """As `serving_figures.decoding` [orders, cuts]."""
        sizes, cached, users = self._sizes, float(round(self.world.middle)), self.ask.demand.slots
        item, largest = self._item_bytes, max(self._sizes)
        stages = {size: self._stages(orders, Work(size, size, cached, size)) for size in sizes}
        path_s = self._links(orders, lambda link: link.transfer_s(self._rows(orders, largest) * item)).sum(axis=1)
        path_s += self._back(orders, lambda link: link.transfer_s(largest * TOKEN_BYTES))
        total: Floats = stages[largest].sum(axis=0) + path_s[:, None]
        if self.ask.schedule == LAYERWISE:
            return total
        busy_s = sum(stages[size] * times for size, times in sizes.items())
        carried = sum(self._rows(orders, size) * times for size, times in sizes.items())
        link_s = self._links(orders, lambda link: link.occupied_s(carried * item)).max(axis=1)
        link_s = np.maximum(link_s, self._back(orders, lambda link: link.occupied_s(users * TOKEN_BYTES)))
        longest: Floats = np.maximum(np.maximum(total, np.max(busy_s, axis=0)), link_s[:, None])
        return longest

    def _first_s(self, orders: Sequence[tuple[Unit, ...]]) -> Floats:
        """As `serving_figures.prefill`: the mean time to the first token [orders, cuts]."""
        job, item, size = self.world.job, self._item_bytes, self.ask.demand.chunk
        starts = range(0, job.prompt_tokens, size)
        lengths = [min(size, job.prompt_tokens - at) for at in starts]
        works = [
            Work(length, 1, float(at), int(at + size >= job.prompt_tokens))
            for at, length in zip(starts, lengths, strict=True)
        ]
        stages = [self._stages(orders, work) for work in works]
        users, count = self.ask.demand.slots, self.bounds.shape[0] - 1
        carried = [self._rows(orders, length) for length in lengths]
        if self.ask.schedule == LAYERWISE:
            moved = sum(self._links(orders, lambda link: link.transfer_s(one * item)).sum(axis=1) for one in carried)  # noqa: B023
            moved = moved + sum(
                self._back(orders, lambda link: link.transfer_s(work.sampled * TOKEN_BYTES))  # noqa: B023
                for work in works
            )
            alone: Floats = np.asarray(sum(stage.sum(axis=0) for stage in stages)) + np.asarray(moved)[:, None]
            return alone * (users + 1) / 2
        latency_s = self._links(orders, lambda link: link.latency_s)
        ends = np.zeros_like(stages[0])
        sent = np.zeros_like(stages[0])
        for length, stage in zip(carried, stages, strict=True):
            occupied_s = self._links(orders, lambda link: link.occupied_s(length * item))  # noqa: B023
            there = np.zeros_like(ends[0])
            for at in range(count):
                ends[at] = np.maximum(ends[at], there) + stage[at]
                if at < count - 1:
                    sent[at] = np.maximum(sent[at], ends[at]) + occupied_s[:, at, None]
                    there = sent[at] + latency_s[:, at, None]
        first_s: Floats = ends[-1] + self._back(orders, lambda link: link.transfer_s(TOKEN_BYTES))[:, None]
        moved_s = self._links(orders, lambda link: link.occupied_s(sum(carried) * item)).max(axis=1)
        each_s = np.maximum(np.max(sum(stages), axis=0), moved_s[:, None])
        mean_s: Floats = first_s + (users - 1) / 2 * each_s
        return mean_s

    @property
    def _item_bytes(self) -> float:
        return self.world.spec.hidden * self.world.model.sizes.item_bytes

    def _rows(self, orders: Sequence[tuple[Unit, ...]], rows: int) -> int:
        """Of so many rows those that a link of the first ranks carries."""
        return even_rows(rows, len(orders[0][0].devices))[0]

    def _links(self, orders: Sequence[tuple[Unit, ...]], figure: Callable[..., float]) -> Floats:
        """Of every link [orders, stages - 1]."""
        link = self.world.link
        return np.array([[figure(link(one, other)) for one, other in pairwise(order)] for order in orders])

    def _back(self, orders: Sequence[tuple[Unit, ...]], figure: Callable[..., float]) -> Floats:
        return np.array([figure(self.world.link(order[-1], order[0])) for order in orders])

    def _stages(self, orders: Sequence[tuple[Unit, ...]], work: Work) -> Floats:
        """Seconds of every stage [stages, orders, cuts]."""
        places = range(self.bounds.shape[0] - 1)
        return np.array([[self._stage(order[at], at, work) for order in orders] for at in places])

    def _stage(self, unit: Unit, at: int, work: Work) -> Floats:
        """As `ServingModel.stage_s` [cuts]."""
        key = _sort(self.world, unit), at, work
        if key not in self._seconds:
            ranks = zip(unit.devices, self.world.parts(unit), strict=True)
            compute = np.max([self._rank(name, part, at, work) for name, part in ranks], axis=0)
            self._seconds[key] = compute + self._exchanged(unit, at, work) if len(unit.devices) > 1 else compute
        return self._seconds[key]

    def _exchanged(self, unit: Unit, at: int, work: Work) -> Floats:
        """As `ServingModel.stage_exchange` [cuts]."""
        model, layers, tokens = self.world.model, self.world.spec.layers, work.tokens
        usual, last = (
            model.layer_exchange(unit.devices, layer, tokens, work.sampled).seconds for layer in (0, layers - 1)
        )
        seconds: Floats = usual * (self.bounds[at + 1] - self.bounds[at])
        if at == self.bounds.shape[0] - 2:
            seconds = seconds + last - usual
        return seconds + model.entry_exchange(unit.devices, tokens, is_first=at == 0).seconds

    def _rank(self, name: str, part: Share, at: int, work: Work) -> Floats:
        world, model = self.world, self.world.model
        known = {
            layer: model.layer_s(name, layer, work.tokens, work.requests, work.cached, part)
            for layer in set(world.alike)
        }
        times = np.concatenate([[0.0], np.cumsum([known[layer] for layer in world.alike])])
        seconds: Floats = times[self.bounds[at + 1]] - times[self.bounds[at]] + model.fixed_s(name)
        if at == 0:
            seconds = seconds + model.first_s(name, work.tokens)
        if at == self.bounds.shape[0] - 2:
            seconds = seconds + model.last_s(name, work.tokens, work.sampled, part)
        return seconds

    def _able(self, unit: Unit, at: int) -> NDArray[np.bool_]:
        """As `World.need_bytes` and `free_bytes` [cuts]."""
        world, demand = self.world, self.ask.demand
        key = _sort(world, unit), at
        if key not in self._fits:
            able = np.ones(self.bounds.shape[1], dtype=bool)
            for part, free in zip(world.parts(unit), world.free_bytes(unit), strict=True):
                held = np.concatenate([[0.0], np.cumsum(world.layer_bytes(part, demand))])
                need = held[self.bounds[at + 1]] - held[self.bounds[at]] + world.fixed_bytes(part, demand)
                if at == 0:
                    need = need + world.model.first_bytes(part)
                if at == self.bounds.shape[0] - 2:
                    need = need + world.last_bytes(part, demand)
                able &= np.round(need) <= free
            self._fits[key] = able
        return self._fits[key]
