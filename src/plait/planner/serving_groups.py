"""Devices taken together: tensor groups of every size, inside hosts where they can be, and heads for each device.

Up to 6 unequal devices are divided into groups in every way there is. More of them are taken in turn, the fastest
together, inside hosts and across them; a better division may exist, and only groups of one size share a plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from plait.planner.serving_units import Demand, Unit, World

_EVERY_SIZE = 16
_EVERY_SUBSET = 7
"""Devices of which every subset is looked at as a tensor group across hosts."""

_EVERY_PARTITION = 6
"""Devices that are divided into tensor groups in every way there is."""

Group = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Units:
    """Units of one size that pipelines and replicas can be made of. `whole_only`: each only as all of the model."""

    tp: int
    units: tuple[Unit, ...]
    whole_only: bool = False


def unit_sets(world: World, demand: Demand, *, prefill: bool, tp: int | None = None) -> Iterator[Units]:
    """Single devices, and tensor groups of every size that there are heads for; only of size `tp` where it is given.

    `demand`, of a whole model, and `prefill` say for what heads are dealt.
    """
    names, dealer = world.ordered, _Dealer(world, demand, prefill)
    if tp in (None, 1):
        yield Units(1, tuple(Unit((name,)) for name in names))
    for size in sizes(world) if tp is None else [tp]:
        if 2 <= size <= min(len(names), world.spec.heads):
            yield from _of_size(world, size, dealer)


def sizes(world: World) -> list[int]:
    """Of tensor groups: every number of devices; of many equal hosts, all within one and whole hosts."""
    most, host = min(len(world.devices), world.spec.heads), world.equal_hosts
    if host is None or len(world.devices) <= _EVERY_SIZE:
        return list(range(2, most + 1))
    return [*range(2, min(host, most) + 1), *(host * count for count in (2, 4, 8, 16) if host * count <= most)]


def _of_size(world: World, size: int, dealer: _Dealer) -> Iterator[Units]:
    names = dealer.fastest_first(world.ordered)
    inside = [group for host in world.by_host.values() for group in _in_turn(dealer.fastest_first(host), size)]
    if world.equal_hosts is not None:
        yield from dealer.dealt(size, inside or _in_turn(world.ordered, size), [1])
        return
    if len(names) <= _EVERY_PARTITION:
        for groups in _partitions(names, size):
            yield from dealer.dealt(size, groups, sorted({1, len(groups)}))
        return
    else:
        for groups in (inside, _in_turn(names, size)):
            yield from dealer.dealt(size, groups, sorted({1, max(1, len(groups))}))
    seen = set(inside)
    for group in combinations(names, size) if len(names) <= _EVERY_SUBSET else [tuple(names[:size])]:
        if group not in seen:
            yield from dealer.dealt(size, [group], [1], whole_only=True)


def _in_turn(names: Sequence[str], size: int) -> list[Group]:
    """Groups of devices as they follow each other, as far as it goes."""
    return [tuple(names[at : at + size]) for at in range(0, len(names) - size + 1, size)]


def _partitions(names: Sequence[str], size: int) -> Iterator[list[Group]]:
    """Every way to make as many groups as there are devices for."""
    for kept in combinations(names, len(names) // size * size):
        yield from _grouped(kept, size)


def _grouped(names: Group, size: int) -> Iterator[list[Group]]:
    if not names:
        yield []
    for others in combinations(names[1:], size - 1) if names else ():
        rest = tuple(name for name in names[1:] if name not in others)
        for groups in _grouped(rest, size):
            yield [(names[0], *others), *groups]


@dataclass(eq=False)
class _Dealer:
    """Deals heads to the devices of a group, so that the slowest ends as early as it can and all have the memory."""

    world: World
    demand: Demand
    prefill: bool
    seen: set[tuple[Unit, ...]] = field(default_factory=set)
    times: dict[object, list[float]] = field(default_factory=dict)
    most: dict[object, int] = field(default_factory=dict)
    place: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.place = {name: at for at, name in enumerate(self.world.ordered)}

    def fastest_first(self, names: Sequence[str]) -> list[str]:
        """By the time for all heads; of equals in their order."""
        return sorted(names, key=lambda name: self._seconds(name)[-1])

    def dealt(
        self, size: int, groups: Sequence[Group], stages: Sequence[int], *, whole_only: bool = False
    ) -> Iterator[Units]:
        """The groups with heads for each device, where a group holds one of so many `stages`.

        Devices of a group stand as in the cluster, so that a ring over them is the same whatever their speed.
        """
        ordered = [tuple(sorted(group, key=self.place.__getitem__)) for group in groups]
        for count in stages if groups else ():
            units = tuple(Unit(group, self._shares(group, count)) for group in ordered)
            if units not in self.seen:
                self.seen.add(units)
                yield Units(size, units, whole_only)

    def _shares(self, group: Group, stages: int) -> tuple[int, ...]:
        """At least one head each; the next one to whom it delays least, as long as there is memory."""
        world = self.world
        if len({world.signature(name) for name in group}) == 1:
            return ()
        held = dict.fromkeys(group, 1)
        for _ in range(world.spec.heads - len(group)):
            able = [name for name in group if held[name] < self._most(name, stages)] or list(group)
            next_one = min(able, key=lambda name: self._seconds(name)[held[name]])
            held[next_one] += 1
        return () if len(set(held.values())) == 1 else tuple(held.values())

    def _seconds(self, name: str) -> list[float]:
        """Of the whole model with 1, 2, … of its heads."""
        world = self.world
        key = world.signature(name)
        if key not in self.times:
            tokens, rows = (world.job.prompt_tokens, 1) if self.prefill else (self.demand.rows, self.demand.rows)
            cached = 0.0 if self.prefill else self.demand.cached
            heads = world.spec.heads
            counts = {layer: world.alike.count(layer) for layer in set(world.alike)}
            self.times[key] = [
                world.model.last_s(name, tokens, rows, held / heads)
                + sum(
                    count * world.model.layer_s(name, layer, tokens, rows, cached, held / heads)
                    for layer, count in counts.items()
                )
                for held in range(1, heads + 1)
            ]
        return self.times[key]

    def _most(self, name: str, stages: int) -> int:
        """Heads of one of so many stages for which there is memory on the device."""
        world, key = self.world, (self.world.signature(name), stages)
        if key not in self.most:
            low, high = 1, world.spec.heads
            while low < high:
                middle = (low + high + 1) // 2
                low, high = (middle, high) if self._fits(name, middle, stages) else (low, middle - 1)
            self.most[key] = low
        return self.most[key]

    def _fits(self, name: str, heads: int, stages: int) -> bool:
        world, part = self.world, heads / self.world.spec.heads
        ends = world.model.first_bytes(part) + world.last_bytes(part, self.demand)
        held = (sum(world.layer_bytes(part, self.demand)) + ends) / stages
        return held + world.fixed_bytes(part, self.demand) <= world.devices[name].memory_bytes
