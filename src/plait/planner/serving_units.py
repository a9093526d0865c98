"""What holds a stage in generation: one device or a tensor group, with seconds and bytes as the exact search wants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from plait.costs.protocol import FREE, LinkCost
from plait.costs.serving import Part, ServingModel
from plait.costs.shares import Share, rank_shares
from plait.planner.capacity import PROCESS_BYTES
from plait.planner.exact import Problem
from plait.plans.rules import TOKEN_BYTES
from plait.spec.cluster import Cluster, Device
from plait.spec.job import Job
from plait.spec.model import ModelSpec
from plait.spec.shards import even_rows
from plait.spec.tensors import has_experts


@dataclass(frozen=True, slots=True)
class Unit:
    """The devices of a stage, and what each gets, in proportion; no shares: as even as heads divide."""

    devices: tuple[str, ...]
    shares: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Demand:
    """What goes through one pipeline at a time.

    `rows`: requests of the largest micro-batch that decodes; `cached`: positions before the one that they compute.
    `slots`: requests whose caches are held. `chunk`: positions of a prompt that are computed together.
    """

    rows: int
    slots: int
    cached: float
    chunk: int
    context: int


class StageSort(NamedTuple):
    """How many layers of each sort a stage holds, and whether it is the first and the last."""

    counts: tuple[tuple[int, int], ...]
    is_first: bool
    is_last: bool


class StageTime(NamedTuple):
    """Seconds of a stage for one micro-batch, of which some are exchanged, and the bytes that its ranks send for it."""

    seconds: float
    exchange_s: float
    sent_bytes: float


Known = tuple[Unit, StageSort, int, object]
"""A unit, its layers, how many rows, and what the first of them computes."""


@dataclass(frozen=True)
class World:
    """Model, cluster and job, and what they cost: what every part of the search asks."""

    spec: ModelSpec
    cluster: Cluster
    job: Job
    model: ServingModel

    @cached_property
    def devices(self) -> dict[str, Device]:
        """By name."""
        return {device.name: device for device in self.cluster.devices}

    def with_links(self, cluster: Cluster) -> World:
        """The same on a cluster with other links, or fewer hosts: what does not depend on them is kept."""
        world = World(self.spec, cluster, self.job, self.model.with_links(cluster))
        world.known.update((key, time) for key, time in self.known.items() if len(key[0].devices) == 1)
        world._layer_bytes.update(self._layer_bytes)
        world._needs.update(self._needs)
        return world

    @cached_property
    def equal_hosts(self) -> int | None:
        """Devices of every host, where all are equal and joined alike, best within hosts; None where they are not."""
        sorts = {self.signature(name) for name in self.devices}
        sizes = {len(names) for names in self.by_host.values()}
        return sizes.pop() if len(sorts) == len(sizes) == 1 and self._joined_alike() else None

    def _joined_alike(self) -> bool:
        network, links = self.cluster.network, self.cluster.links
        if network is not None:
            within = {(network.within_host.latency_s, network.within_host.bandwidth)}
            between = {(network.between_hosts.latency_s, network.between_hosts.bandwidth)}
        else:
            host = {device.name: device.host for device in self.cluster.devices}
            ends = [(host.get(link.source, link.source), host.get(link.target, link.target), link) for link in links]
            within = {(link.latency_s, link.bandwidth) for one, other, link in ends if one == other}
            between = {(link.latency_s, link.bandwidth) for one, other, link in ends if one != other}
        if (network is not None and links) or len(within) > 1 or len(between) > 1:
            return False
        return all(inner[0] <= outer[0] and inner[1] >= outer[1] for inner in within for outer in between)

    @cached_property
    def by_host(self) -> dict[str, list[str]]:
        """Names of every host's devices."""
        hosts: dict[str, list[str]] = {}
        for device in self.cluster.devices:
            hosts.setdefault(device.host, []).append(device.name)
        return hosts

    def stand_in(self, unit: Unit) -> Unit:
        """A unit that costs the same: one for all of a size where hosts are equal."""
        if self.equal_hosts is None:
            return unit
        return Unit(tuple(self.ordered[: len(unit.devices)]), unit.shares)

    @cached_property
    def ordered(self) -> list[str]:
        """All devices, host by host."""
        return [name for names in self.by_host.values() for name in names]

    @cached_property
    def alike(self) -> tuple[int, ...]:
        """For every layer the first one that costs the same."""
        first: dict[tuple[bool, int | None], int] = {}
        windows = self.spec.windows
        return tuple(
            first.setdefault((has_experts(self.spec, layer), windows[layer] if layer < len(windows) else None), layer)
            for layer in range(self.spec.layers)
        )

    @cached_property
    def known(self) -> dict[Known, StageTime]:
        """What stages take, once it was asked for."""
        return {}

    @cached_property
    def _links(self) -> dict[tuple[Unit, Unit], LinkCost]:
        return {}

    @cached_property
    def _layer_bytes(self) -> dict[tuple[Part, Demand], list[float]]:
        return {}

    @cached_property
    def _needs(self) -> dict[object, list[int]]:
        return {}

    @cached_property
    def _sorts(self) -> dict[tuple[int, int], StageSort]:
        return {}

    def sort(self, layers: tuple[int, int]) -> StageSort:
        """What decides how long a stage takes and how much it holds, beside its devices."""
        known = self._sorts.get(layers)
        if known is None:
            counts = tuple(sorted(Counter(self.alike[slice(*layers)]).items()))
            known = self._sorts[layers] = StageSort(counts, layers[0] == 0, layers[1] == self.spec.layers)
        return known

    @property
    def middle(self) -> float:
        """Positions that a request has cached in the middle of its answer."""
        return self.job.prompt_tokens + self.job.max_tokens / 2

    def signature(self, name: str) -> tuple[object, ...]:
        """Devices with equal ones are equally fast and large."""
        device = self.devices[name]
        return device.memory_bytes, tuple(sorted(device.flops.items())), device.memory_bandwidth, device.profile

    def link(self, source: Unit, to: Unit) -> LinkCost:
        """The slowest of the links that join two units, rank by rank."""
        known = self._links.get((source, to))
        if known is None:
            known = self._links[source, to] = self._link(source, to)
        return known

    def _link(self, source: Unit, to: Unit) -> LinkCost:
        pairs = {self._ends(one, other) for one, other in zip(source.devices, to.devices, strict=False)}
        links = [self.model.wires.link(one, other) for one, other in pairs if one != other]
        latency_s = max((link.latency_s for link in links), default=0.0)
        return LinkCost(latency_s, min((link.bandwidth for link in links), default=np.inf))

    def _ends(self, source: str, to: str) -> tuple[str, str]:
        """Two devices that are joined as these are: the first such pair where hosts are equal."""
        if self.equal_hosts is None or source == to:
            return source, to
        same = self.devices[source].host == self.devices[to].host
        return self.ordered[0], self.ordered[1 if same else self.equal_hosts]

    def layer_bytes(self, part: Part, demand: Demand) -> list[float]:
        """Weights and cache of every layer, on a device that holds `part` of it."""
        known_bytes = self._layer_bytes.get((part, demand))
        if known_bytes is not None:
            return known_bytes
        model = self.model
        known = {
            layer: model.weight_bytes(layer, part) + model.kv_bytes(layer, demand.slots, demand.context, part)
            for layer in set(self.alike)
        }
        self._layer_bytes[part, demand] = found = [known[layer] for layer in self.alike]
        return found

    def fixed_bytes(self, part: Part, demand: Demand) -> float:
        """Workspace and process, which every stage takes beside its layers."""
        return self.model.workspace_bytes(self._at_once(demand), 0, demand.context, part) + PROCESS_BYTES

    def last_bytes(self, part: Part, demand: Demand) -> float:
        """The head, and the workspace of its logits."""
        workspace = self.model.workspace_bytes
        tokens = self._at_once(demand)
        logits = workspace(tokens, demand.rows, demand.context, part) - workspace(tokens, 0, demand.context, part)
        return self.model.last_bytes(part) + logits

    def _at_once(self, demand: Demand) -> int:
        return max(demand.rows, min(demand.chunk, demand.context))

    def parts(self, unit: Unit) -> tuple[Share, ...]:
        """What each device of a unit holds of a layer."""
        return rank_shares(self.spec, len(unit.devices), unit.shares, self.model.weights)

    def need_bytes(self, unit: Unit, layers: tuple[int, int], demand: Demand) -> list[int]:
        """What each device of a stage must hold."""
        key = unit.shares, len(unit.devices), self.sort(layers), demand
        known = self._needs.get(key)
        if known is not None:
            return known
        needs = []
        for part in self.parts(unit):
            need = self.fixed_bytes(part, demand) + sum(self.layer_bytes(part, demand)[slice(*layers)])
            if layers[0] == 0:
                need += self.model.first_bytes(part)
            if layers[1] == self.spec.layers:
                need += self.last_bytes(part, demand)
            needs.append(round(need))
        self._needs[key] = needs
        return needs

    def free_bytes(self, unit: Unit) -> list[int]:
        """What each device of a stage has."""
        return [self.devices[name].memory_bytes for name in unit.devices]


def problem(
    world: World, units: Sequence[Unit], demand: Demand, *, prefill: bool = False, in_order: bool = False
) -> Problem:
    """The exact search's problem: decoding a micro-batch, or one chunk of a prompt (`prefill`), on these units.

    A unit takes as long, and is as full, as the worst of its devices; bytes are relative to what that one has.
    `in_order`: only links from each unit to the next are wanted.
    """
    chunk = min(demand.chunk, world.job.prompt_tokens)
    tokens, rows = (chunk, 1) if prefill else (demand.rows, demand.rows)
    cached = max(0.0, (world.job.prompt_tokens - chunk) / 2) if prefill else demand.cached
    sorts = [world.stand_in(unit) for unit in units]
    times = {unit: _seconds(world, unit, tokens, rows, cached) for unit in set(sorts)}
    bytes_ = {unit: _held(world, unit, demand) for unit in set(sorts)}
    seconds, held = [times[unit] for unit in sorts], [bytes_[unit] for unit in sorts]
    links = [
        [world.link(one, other) if not in_order or at - before == 1 else FREE for at, other in enumerate(units)]
        for before, one in enumerate(units)
    ]
    ranks = len(units[0].devices)
    item = even_rows(tokens, ranks)[0] * world.spec.hidden * world.model.sizes.item_bytes
    latency_s = np.array([[link.latency_s for link in row] for row in links])
    return Problem(
        layer_s=np.array([one[0] for one in seconds]),
        fixed_s=np.array([one[1] for one in seconds]),
        first_s=np.array([one[2] for one in seconds]),
        last_s=np.array([one[3] for one in seconds]),
        layer_bytes=np.array([one[0] for one in held]),
        fixed_bytes=np.array([one[1] for one in held]),
        first_bytes=np.array([one[2] for one in held]),
        last_bytes=np.array([one[3] for one in held]),
        free_bytes=np.ones(len(units)),
        hand_over_s=np.array([[link.occupied_s(item) for link in row] for row in links]),
        latency_s=latency_s,
        back_s=np.array([[link.transfer_s(rows * TOKEN_BYTES) for link in row] for row in links]),
    )


def _seconds(
    world: World, unit: Unit, tokens: int, rows: int, cached: float
) -> tuple[list[float], float, float, float]:
    """Of every layer, and what a stage, the first and the last one take more."""
    model, devices = world.model, unit.devices
    ranks = list(zip(devices, world.parts(unit), strict=True))
    known = {
        layer: max(model.layer_s(name, layer, tokens, rows, cached, part) for name, part in ranks)
        for layer in set(world.alike)
    }
    exchanged = [model.layer_exchange(devices, layer, tokens, rows).seconds for layer in range(world.spec.layers)]
    entry_s = model.entry_exchange(devices, tokens, is_first=False).seconds
    first_s = model.entry_exchange(devices, tokens, is_first=True).seconds - entry_s
    return (
        [known[layer] + exchange_s for layer, exchange_s in zip(world.alike, exchanged, strict=True)],
        max(model.fixed_s(name) for name in devices) + entry_s,
        max(model.first_s(name, tokens, rows) for name in devices) + first_s,
        max(model.last_s(name, tokens, rows, part) for name, part in ranks),
    )


def _held(world: World, unit: Unit, demand: Demand) -> tuple[list[float], float, float, float]:
    """Bytes ÷ free bytes of the layers, a stage, the embedding and the head, each of the device that is fullest."""
    ranks = list(zip(world.parts(unit), world.free_bytes(unit), strict=True))
    layers = np.max([np.array(world.layer_bytes(part, demand)) / free for part, free in ranks], axis=0)
    return (
        [float(one) for one in layers],
        max(world.fixed_bytes(part, demand) / free for part, free in ranks),
        max(world.model.first_bytes(part) / free for part, free in ranks),
        max(world.last_bytes(part, demand) / free for part, free in ranks),
    )
