"""Devices taken together: tensor groups of every size, inside hosts where they can be, and heads for each device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from plait.costs.tensor_group import head_shares
from plait.planner.serving_units import Unit, World

_EVERY_SIZE = 16
_ALL_SUBSETS = 7
"""Devices of which every subset is looked at as a tensor group across hosts."""


@dataclass(frozen=True, slots=True)
class Units:
    """Units of one size that pipelines and replicas can be made of. `whole_only`: each only as all of the model."""

    tp: int
    units: tuple[Unit, ...]
    whole_only: bool = False


def seconds_alone(world: World, name: str, *, prefill: bool) -> float:
    """A layer on one device: what makes it fast for the objective."""
    tokens = world.job.prompt_tokens if prefill else 1
    cached = 0.0 if prefill else world.middle
    return sum(world.model.layer_s(name, layer, tokens, 1, cached) for layer in set(world.alike))


def unit_sets(world: World, *, prefill: bool, tp: int | None = None) -> Iterator[Units]:
    """Single devices, and tensor groups of every size that there are heads for; only of size `tp` where it is given."""
    names = list(world.devices)
    sorts = {world.signature(name): name for name in reversed(names)}
    alone = {sort: 1 / seconds_alone(world, name, prefill=prefill) for sort, name in sorts.items()}
    speeds = {name: alone[world.signature(name)] for name in names}
    if tp in (None, 1):
        yield Units(1, tuple(Unit((name,)) for name in names))
    for size in sizes(world) if tp is None else [tp]:
        if 2 <= size <= min(len(names), world.spec.heads):
            yield from _groups(world, size, speeds)


def sizes(world: World) -> list[int]:
    """Of tensor groups: every number of devices; of many equal hosts, all within one and whole hosts."""
    most, host = min(len(world.devices), world.spec.heads), world.equal_hosts
    if host is None or len(world.devices) <= _EVERY_SIZE:
        return list(range(2, most + 1))
    return [*range(2, min(host, most) + 1), *(host * count for count in (2, 4, 8, 16) if host * count <= most)]


def _groups(world: World, size: int, speeds: dict[str, float]) -> Iterator[Units]:
    inside = [group for host in world.by_host.values() for group in _in_turn(host, size, speeds)]
    across = [] if inside else _in_turn(list(world.devices), size, speeds)
    groups = inside or across
    for dealt in _dealt(world, groups, speeds):
        yield Units(size, dealt)
    if world.equal_hosts is not None and not across and len(world.devices) > _EVERY_SIZE:
        return
    others = [group for group in _across(world, size, speeds) if group not in groups]
    for dealt in _dealt(world, others, speeds):
        yield Units(size, dealt, whole_only=True)


def _in_turn(names: Sequence[str], size: int, speeds: dict[str, float]) -> list[tuple[str, ...]]:
    """Groups of equally fast devices, as far as it goes: the fastest together."""
    ordered = sorted(names, key=lambda name: -speeds[name])
    return [tuple(ordered[at : at + size]) for at in range(0, len(ordered) - size + 1, size)]


def _across(world: World, size: int, speeds: dict[str, float]) -> Iterator[tuple[str, ...]]:
    """Groups on more than one host: every subset of a few devices, else the fastest."""
    names = sorted(world.devices, key=lambda name: -speeds[name])
    subsets = combinations(names, size) if len(names) <= _ALL_SUBSETS else [tuple(names[:size])]
    for group in subsets:
        if len({world.devices[name].host for name in group}) > 1:
            yield tuple(group)


def _dealt(world: World, groups: Sequence[tuple[str, ...]], speeds: dict[str, float]) -> Iterator[tuple[Unit, ...]]:
    """The groups with heads in proportion to speed, and where memory is uneven, in proportion to memory too."""
    seen: set[tuple[Unit, ...]] = set()
    memory = {name: float(device.memory_bytes) for name, device in world.devices.items()}
    for figures in (speeds, memory) if world.equal_hosts is None else (speeds,):
        units = tuple(Unit(group, _shares(world, [figures[name] for name in group])) for group in groups)
        if units and units not in seen:
            seen.add(units)
            yield units


def _shares(world: World, figures: Sequence[float]) -> tuple[int, ...]:
    if max(figures) <= min(figures) * (1 + 1e-9):
        return ()
    return head_shares(world.spec, figures)
