"""Unequal machines taken for equal ones: each as slow, as small and as badly linked as the weakest of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

from plait.spec.cluster import (
    NOTHING_BESIDE,
    Beside,
    BesideSpread,
    Cluster,
    Device,
    EqualMachine,
    Link,
    Network,
    Wire,
)


def weakest_machine(cluster: Cluster, names: Sequence[str] | None = None) -> EqualMachine | None:
    """The machine that all these devices (None: all) can stand for: what runs on it runs on them, at least as fast.

    Of every figure the least: FLOP/s, memory and its bandwidth, links within hosts and between them. Hosts with unequal
    numbers of devices count as one host a device, which share their links. None where the devices have nothing in
    common: no dtype, or profiles that differ.
    """
    devices = [device for device in cluster.devices if names is None or device.name in set(names)]
    device = _weakest_device(devices)
    if device is None:
        return None
    counts = Counter(one.host for one in devices)
    even = len(set(counts.values())) == 1
    inside: list[Link] = []
    outside: list[Link] = []
    for one, other in permutations(devices, 2):
        link = cluster.link(one.name, other.name)
        (inside if even and one.host == other.host else outside).append(link)
    per_host = next(iter(counts.values())) if even else 1
    within, between = _weakest_wire(inside, 1), _weakest_wire(outside, 1 if even else max(counts.values()))
    if per_host > 1 and between is not None:
        # one link from a host may be what all of its devices send over
        between = replace(between, host_bandwidth=between.bandwidth)
    free = Wire(0.0, float("inf"))
    network = Network(within or between or free, between or within or free)
    return EqualMachine(device, per_host, len(devices) // per_host, network)


def _weakest_device(devices: Sequence[Device]) -> Device | None:
    first = devices[0]
    dtypes = set(first.flops).intersection(*(device.flops for device in devices))
    if not dtypes or any(device.profile != first.profile for device in devices):
        return None
    return replace(
        first,
        memory_bytes=min(device.memory_bytes for device in devices),
        memory_bandwidth=min(device.memory_bandwidth for device in devices),
        flops={dtype: min(device.flops[dtype] for device in devices) for dtype in sorted(dtypes)},
        spread={name: max(device.spread.get(name, 0.0) for device in devices) for name in first.spread},
        beside=_most_beside(devices),
    )


def _most_beside(devices: Sequence[Device]) -> dict[str, Beside]:
    """Of each dtype that a device says something of: the longest, and the slowest."""
    dtypes = dict.fromkeys(dtype for device in devices for dtype in device.beside)
    found = {}
    for dtype in dtypes:
        all_of_it = [device.beside.get(dtype, NOTHING_BESIDE) for device in devices]
        bandwidths = [one.activation_bandwidth for one in all_of_it if one.activation_bandwidth is not None]
        found[dtype] = Beside(
            max(one.operation_s for one in all_of_it),
            max(one.weight_reads for one in all_of_it),
            min(bandwidths, default=None),
            BesideSpread(*map(max, zip(*(one.spread for one in all_of_it), strict=True))),
        )
    return found


def _weakest_wire(links: Sequence[Link], sharing: int) -> Wire | None:
    if not links:
        return None
    return Wire(max(link.latency_s for link in links), min(link.bandwidth for link in links) / sharing)
