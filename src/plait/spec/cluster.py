"""Cluster: the hosts, devices and directed links that one has, read from a TOML file.

    [[hosts]]
    name = "desk"

    [[devices]]
    name = "desk-cpu"
    host = "desk"
    memory_gib = 32                    # or memory_bytes
    gflops = { float32 = 450 }         # or flops, tflops: what it reaches, for each dtype
    memory_bandwidth_gb_per_s = 40     # or memory_bandwidth_bytes_per_s

    [[links]]
    from = "desk-cpu"                  # a device, or a host: then for all its devices
    to = "laptop-cpu"
    latency_us = 120                   # or latency_s, latency_ms
    bandwidth_gbit_per_s = 1           # or bandwidth_bytes_per_s, _mb_per_s, _gb_per_s, _mbit_per_s

A link has a direction, and every ordered pair of devices needs one. `both_ways = true` writes both at once. A link from
a host to itself joins the devices in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tomli_w

from plait.errors import SpecError, nearest
from plait.spec.cluster_file import ClusterTable
from plait.spec.tables import read_toml, validated

_LISTED = 20


@dataclass(frozen=True, slots=True)
class Host:
    """A machine with one or more devices."""

    name: str


@dataclass(frozen=True, slots=True)
class Device:
    """`flops` in FLOP/s of the device, for each dtype; `memory_bandwidth` in bytes/s.

    `profile` names the efficiency curves (costs.profiles) that say how much of those figures real work reaches; without
    one, or with a name never heard of, the figures are taken through a plain default and marked "not calibrated".
    """

    name: str
    host: str
    memory_bytes: int
    flops: Mapping[str, float]
    memory_bandwidth: float
    profile: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "flops", MappingProxyType(dict(self.flops)))


@dataclass(frozen=True, slots=True)
class Link:
    """From `source` to `target`, each a device or a host. `bandwidth` in bytes/s."""

    source: str
    target: str
    latency_s: float
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Wire:
    """What joins two devices where no link of their own does. Bandwidths in bytes/s.

    `bandwidth`: what one device sends at most. `host_bandwidth`: what all devices of a host together send at most to
    other hosts; None inside a host.
    """

    latency_s: float
    bandwidth: float
    host_bandwidth: float | None = None


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

    def __post_init__(self) -> None:
        _check_names(self)
        if self.network is None:
            _check_links(self)

    def device(self, name: str) -> Device:
        """The device of that name. Raises SpecError, with the nearest one, where there is none."""
        for device in self.devices:
            if device.name == name:
                return device
        raise SpecError(f"no device {name!r} in the cluster; {nearest(name, [each.name for each in self.devices])}")

    def link(self, source: str, target: str) -> Link:
        """The link between two devices: their own, or else that of their hosts, or else the network's wire."""
        ends = self.device(source), self.device(target)
        found = _find_link(self, *ends)
        if found is None and self.network is not None:
            wire = self.network.within_host if ends[0].host == ends[1].host else self.network.between_hosts
            found = Link(source, target, wire.latency_s, wire.bandwidth)
        if found is None:
            raise SpecError(f"no link from {source!r} to {target!r}")
        return found


def read_cluster(path: Path) -> Cluster:
    """The cluster in a TOML file. Raises SpecError that names every fault and its place."""
    what = "cluster file"
    return cluster_from_toml(read_toml(path, what, SpecError), f"{what} {path}")


def cluster_from_toml(values: Mapping[str, Any], what: str = "cluster") -> Cluster:
    """The cluster in a parsed TOML table; `what` begins every error."""
    table = validated(ClusterTable, values, what, SpecError)
    links: list[Link] = []
    for each in table.links:
        links.append(Link(each.source, each.target, each.latency, each.bandwidth))
        if each.both_ways and each.source != each.target:
            links.append(Link(each.target, each.source, each.latency, each.bandwidth))
    devices = tuple(
        Device(each.name, each.host, each.memory, each.speeds, each.memory_bandwidth) for each in table.devices
    )
    try:
        return Cluster(tuple(Host(each.name) for each in table.hosts), devices, tuple(links))
    except SpecError as error:
        raise SpecError(f"{what}: {error}") from None


def cluster_to_toml(cluster: Cluster) -> str:
    """The file, in SI units; reading it gives an equal cluster."""
    return tomli_w.dumps(
        {
            "hosts": [{"name": host.name} for host in cluster.hosts],
            "devices": [
                {
                    "name": device.name,
                    "host": device.host,
                    "memory_bytes": device.memory_bytes,
                    "flops": dict(device.flops),
                    "memory_bandwidth_bytes_per_s": device.memory_bandwidth,
                }
                for device in cluster.devices
            ],
            "links": [
                {
                    "from": link.source,
                    "to": link.target,
                    "latency_s": link.latency_s,
                    "bandwidth_bytes_per_s": link.bandwidth,
                }
                for link in cluster.links
            ],
        }
    )


def _check_names(cluster: Cluster) -> None:
    hosts = [host.name for host in cluster.hosts]
    names = [*hosts, *(device.name for device in cluster.devices)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SpecError(f"{', '.join(map(repr, twice))} names more than one host or device; a link could mean either")
    for device in cluster.devices:
        if device.host not in hosts:
            raise SpecError(f"device {device.name!r} is on unknown host {device.host!r}; {nearest(device.host, hosts)}")
    for link in cluster.links:
        for end in (link.source, link.target):
            if end not in names:
                raise SpecError(f"link {_arrow(link)} ends at unknown {end!r}; {nearest(end, names)}")


def _check_links(cluster: Cluster) -> None:
    pairs = [(link.source, link.target) for link in cluster.links]
    for link in cluster.links:
        if pairs.count((link.source, link.target)) > 1:
            raise SpecError(f"link {_arrow(link)} is there more than once")
    missing = [pair for pair in permutations(cluster.devices, 2) if _find_link(cluster, *pair) is None]
    if not missing:
        return
    words = [f"{source.name} -> {target.name}" for source, target in missing[:_LISTED]]
    rest = len(missing) - len(words)
    one_way = any(_find_link(cluster, target, source) is not None for source, target in missing)
    raise SpecError(
        f"{len(missing)} of {len(cluster.devices) * (len(cluster.devices) - 1)} directed links are missing: "
        + ", ".join(words)
        + (f" and {rest} more" if rest else "")
        + ("; a link has one direction, unless it says both_ways = true" if one_way else "")
    )


def _find_link(cluster: Cluster, source: Device, target: Device) -> Link | None:
    for ends in ((source.name, target.name), (source.host, target.host)):
        for link in cluster.links:
            if (link.source, link.target) == ends:
                return link
    return None


def _arrow(link: Link) -> str:
    return f"{link.source} -> {link.target}"
