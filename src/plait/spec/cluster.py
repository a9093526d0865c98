"""Cluster: the hosts, devices and directed links that one has. `spec.cluster_file` reads and writes it as TOML.

A link has a direction, and every ordered pair of devices needs one; a `Network` says it for all pairs at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, permutations
from types import MappingProxyType
from typing import NamedTuple

from plait.errors import SpecError, nearest

_LISTED = 20
_INFINITE = float("inf")


@dataclass(frozen=True, slots=True)
class Host:
    """A machine with one or more devices."""

    name: str


class WireSpread(NamedTuple):
    """By which part of itself each figure of a link varied where it was measured (`prober.spread`); 0: not known."""

    latency: float = 0.0
    bandwidth: float = 0.0


NO_SPREAD = WireSpread()


class BesideSpread(NamedTuple):
    """By which part of itself each figure of a `Beside` varied where it was measured; 0: not known."""

    operation: float = 0.0
    weight_reads: float = 0.0
    activation_bandwidth: float = 0.0


class Beside(NamedTuple):
    """What a device's operations take in a dtype that FLOP/s and memory bandwidth do not say.

    `operation_s`: of every operation. `weight_reads`: what a product of many rows takes before its FLOP, in reads of
    its weights. `activation_bandwidth` (bytes/s): at which norms, rotations and activation functions pass what they
    read and write; None: at the memory's.
    """

    operation_s: float = 0.0
    weight_reads: float = 0.0
    activation_bandwidth: float | None = None
    spread: BesideSpread = BesideSpread()


NOTHING_BESIDE = Beside()


@dataclass(frozen=True, slots=True)
class Device:
    """`flops` in FLOP/s of the device, for each dtype; `memory_bandwidth` in bytes/s.

    `profile` names the efficiency curves (costs.profiles) that say how much of those figures real work reaches; without
    one, or with a name never heard of, the figures are taken through a plain default and marked "not calibrated".
    `kind` is what torch calls the sort of device: cpu, cuda, mps. `spread`: by which part of itself a figure varied
    where it was measured (`prober.spread`), under the dtypes of `flops` and ``memory_bandwidth``. `beside`: what a
    probe measured beside those figures, for each dtype; 0 where it says nothing.
    """

    name: str
    host: str
    memory_bytes: int
    flops: Mapping[str, float]
    memory_bandwidth: float
    profile: str | None = None
    kind: str = "cpu"
    spread: Mapping[str, float] = field(default_factory=dict)
    beside: Mapping[str, Beside] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "flops", MappingProxyType(dict(self.flops)))
        object.__setattr__(self, "spread", MappingProxyType(dict(self.spread)))
        object.__setattr__(self, "beside", MappingProxyType(dict(self.beside)))


@dataclass(frozen=True, slots=True)
class Link:
    """From `source` to `target`, each a device or a host. `bandwidth` in bytes/s."""

    source: str
    target: str
    latency_s: float
    bandwidth: float
    spread: WireSpread = NO_SPREAD


@dataclass(frozen=True, slots=True)
class Wire:
    """What joins two devices where no link of their own does. Bandwidths in bytes/s.

    `bandwidth`: what one device sends at most. `host_bandwidth`: what all devices of a host together send at most to
    other hosts; None inside a host.
    """

    latency_s: float
    bandwidth: float
    host_bandwidth: float | None = None
    spread: WireSpread = NO_SPREAD


@dataclass(frozen=True, slots=True)
class Network:
    """The same wire inside every host, and the same one between any two: thousands of devices need no list of links."""

    within_host: Wire
    between_hosts: Wire


@dataclass(frozen=True, slots=True)
class Cluster:
    """Raises SpecError where names do not fit together, or two devices have no link in one of the directions."""

    hosts: tuple[Host, ...]
    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()
    network: Network | None = None
    _devices: Mapping[str, Device] = field(init=False, repr=False, compare=False)
    _links: Mapping[tuple[str, str], Link] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # looked up by the planner many thousand times
        object.__setattr__(self, "_devices", {device.name: device for device in self.devices})
        object.__setattr__(self, "_links", {(link.source, link.target): link for link in self.links})
        _check_names(self)
        _check_links(self)

    def device(self, name: str) -> Device:
        """The device of that name. Raises SpecError, with the nearest one, where there is none."""
        found = self._devices.get(name)
        if found is None:
            raise SpecError(f"no device {name!r} in the cluster; {_nearest(name, self._devices)}")
        return found

    def link(self, source: str, target: str) -> Link:
        """The link between two devices: their own, or else that of their hosts, or else the network's wire."""
        found = self._find(self.device(source), self.device(target))
        if found is None:
            raise SpecError(f"no link from {source!r} to {target!r}")
        return found

    def _find(self, source: Device, target: Device) -> Link | None:
        found = self._links.get((source.name, target.name)) or self._links.get((source.host, target.host))
        if found is None and self.network is not None:
            wire = self.network.within_host if source.host == target.host else self.network.between_hosts
            found = Link(source.name, target.name, wire.latency_s, wire.bandwidth, wire.spread)
        return found

    def missing_links(self) -> Iterator[tuple[Device, Device]]:
        """The ordered pairs of devices without a link."""
        return (pair for pair in permutations(self.devices, 2) if self._find(*pair) is None)


def first_devices(cluster: Cluster, count: int) -> Cluster:
    """The cluster's first `count` devices, with their hosts and links. Raises SpecError where there are fewer."""
    if count < 1:
        raise SpecError(f"--gpus {count} was asked for, but there must be at least 1")
    if count > len(cluster.devices):
        raise SpecError(
            f"--gpus {count} was asked for, but the cluster has {len(cluster.devices)} devices: "
            f"{count - len(cluster.devices)} too many"
        )
    return only_devices(cluster, [device.name for device in cluster.devices[:count]])


def only_devices(cluster: Cluster, kept: Iterable[str]) -> Cluster:
    """The cluster with these devices alone, in its own order. Raises SpecError for one that it does not have."""
    wanted = {cluster.device(name).name for name in kept}
    devices = tuple(device for device in cluster.devices if device.name in wanted)
    used = {device.host for device in devices}
    names = used | {device.name for device in devices}
    hosts = tuple(host for host in cluster.hosts if host.name in used)
    links = tuple(link for link in cluster.links if link.source in names and link.target in names)
    return Cluster(hosts, devices, links, cluster.network)


class EqualMachine(NamedTuple):
    """A cluster of `hosts` equal hosts with `devices_per_host` devices like `device` each, joined by `network`."""

    device: Device
    devices_per_host: int
    hosts: int
    network: Network


def equal_machine(cluster: Cluster) -> EqualMachine | None:
    """The cluster's one sort of host, where all are equal: devices' figures, devices a host, and what joins them.

    None where they differ, or where a link of its own stands beside the network. Links between hosts are shared by the
    devices of the sending host. A wire that nothing uses (one device a host, one host) is that of the other kind.
    """
    first = cluster.devices[0]
    if any(_figures(device) != _figures(first) for device in cluster.devices):
        return None
    per_host = Counter(device.host for device in cluster.devices)
    counts = set(per_host.values())
    if len(counts) != 1 or len(per_host) != len(cluster.hosts):
        return None
    network = _equal_network(cluster, counts.copy().pop())
    return None if network is None else EqualMachine(first, counts.pop(), len(per_host), network)


def _figures(device: Device) -> tuple[object, ...]:
    return device.memory_bytes, device.flops, device.memory_bandwidth, device.profile, device.kind, device.beside


def _equal_network(cluster: Cluster, devices_per_host: int) -> Network | None:
    if cluster.network is not None:
        return None if cluster.links else cluster.network
    within: set[Wire] = set()
    between: set[Wire] = set()
    for source, target in permutations(cluster.devices, 2):
        link = cluster.link(source.name, target.name)
        same = source.host == target.host
        shared = None if same or link.source == source.name else link.bandwidth
        (within if same else between).add(
            Wire(link.latency_s, link.bandwidth, shared if devices_per_host > 1 else None)
        )
        if len(within) > 1 or len(between) > 1:
            return None
    inside, outside = next(iter(within), None), next(iter(between), None)
    unused = Wire(0.0, _INFINITE)
    return Network(inside or outside or unused, outside or inside or unused)


def _check_names(cluster: Cluster) -> None:
    hosts = {host.name: None for host in cluster.hosts}
    names = [*(host.name for host in cluster.hosts), *(device.name for device in cluster.devices)]
    known = dict.fromkeys(names)
    if len(known) != len(names):
        twice = sorted(name for name, count in Counter(names).items() if count > 1)
        raise SpecError(f"{_listed(map(repr, twice))} names more than one host or device; a link could mean either")
    for device in cluster.devices:
        if device.host not in hosts:
            raise SpecError(
                f"device {device.name!r} is on unknown host {device.host!r}; {_nearest(device.host, hosts)}"
            )
    for link in cluster.links:
        for end in (link.source, link.target):
            if end not in known:
                raise SpecError(f"link {_arrow(link)} ends at unknown {end!r}; {_nearest(end, known)}")


def _check_links(cluster: Cluster) -> None:
    if len(cluster._links) != len(cluster.links):
        pairs = Counter((link.source, link.target) for link in cluster.links)
        source, target = next(pair for pair, count in pairs.items() if count > 1)
        raise SpecError(f"link {source} -> {target} is there more than once")
    missing = [] if cluster.network is not None else list(cluster.missing_links())
    if not missing:
        return
    one_way = any(cluster._find(target, source) is not None for source, target in missing)
    raise SpecError(
        f"{len(missing)} of {len(cluster.devices) * (len(cluster.devices) - 1)} directed links are missing: "
        + _listed(f"{source.name} -> {target.name}" for source, target in missing)
        + ("; a link has one direction, unless it says both_ways = true" if one_way else "")
    )


def _listed(words: Iterable[str]) -> str:
    """The first words, and how many more there are."""
    given = list(words)
    rest = len(given) - _LISTED
    return ", ".join(given[:_LISTED]) + (f" and {rest} more" if rest > 0 else "")


def _nearest(given: str, known: Mapping[str, object]) -> str:
    """As `nearest`, of thousands of names only those that begin alike or stand first."""
    if len(known) <= _LISTED:
        return nearest(given, known)
    start = given[: max(1, len(given) // 2)]
    close = nearest(given, islice((name for name in known if name.startswith(start)), 1000))
    return close if close.startswith("did you mean") else f"known: {_listed(known)}"


def _arrow(link: Link) -> str:
    return f"{link.source} -> {link.target}"
