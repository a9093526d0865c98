"""Axes laid on links: which ranks of a group share a host, how many hosts it spans, and what bandwidth each rank has.

Ranks are numbered with tp fastest, then cp, ep, dp, and pp slowest; ranks of one host follow each other. Tensor groups
then lie on the fastest links and stages on the slowest: an exchange inside a layer is needed for every layer and waits,
a stage's message is needed once a stage (Narayanan et al., "Efficient Large-Scale Language Model Training on GPU
Clusters Using Megatron-LM" (2021), section 3.2, takeaway 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import lcm
from typing import NamedTuple

from plait.costs.collectives import Channel, Group
from plait.costs.curves import Curve
from plait.costs.protocol import LinkCost
from plait.plans.split import Split
from plait.spec.cluster import Network

AXES = ("tp", "cp", "ep", "dp", "pp")
"""The fastest changing first."""


class Reach(NamedTuple):
    """Where the groups of an axis lie: `size` ranks, `stride` apart. Of those groups that fare worst:

    `inside`: ranks of a group in one host, at most. `hosts`: hosts that it spans.
    """

    size: int
    stride: int
    inside: int
    hosts: int

    @property
    def crosses_hosts(self) -> bool:
        """True where a group has ranks on more than one host."""
        return self.hosts > 1


@dataclass(frozen=True, slots=True)
class Fabric:
    """Equal hosts of `devices_per_host` devices, and the wires within and between them.

    `within_measured`, `between_measured`: seconds of a message over its bytes where they were measured (`Channel`).
    """

    devices_per_host: int
    network: Network
    within_measured: Curve | None = None
    between_measured: Curve | None = None

    @property
    def within(self) -> Channel:
        """A device's way to another of its host."""
        wire = self.network.within_host
        return Channel(LinkCost(wire.latency_s, wire.bandwidth), self.within_measured)

    def between(self, senders: int | None = None) -> Channel:
        """A device's way to another host while `senders` devices of its host send (None: all of them)."""
        wire = self.network.between_hosts
        bandwidth = wire.bandwidth
        if wire.host_bandwidth is not None:
            bandwidth = min(bandwidth, wire.host_bandwidth / (senders or self.devices_per_host))
        return Channel(LinkCost(wire.latency_s, bandwidth), self.between_measured)


def strides(split: Split) -> Mapping[str, int]:
    """Ranks from one member of each axis's group to the next."""
    found, stride = {}, 1
    for axis in AXES:
        found[axis] = stride
        stride *= getattr(split, axis)
    return found


def reach(size: int, stride: int, devices_per_host: int) -> Reach:
    """Where groups of `size` ranks, `stride` apart, lie; the worst of them where they do not lie alike.

    Groups fill the ranks: one begins at every multiple of size × stride, and at each of the stride - 1 ranks after it.
    """
    block = size * stride
    if devices_per_host % block == 0:
        return Reach(size, stride, size, 1)
    if stride % devices_per_host == 0:
        return Reach(size, stride, 1, size)
    if devices_per_host % stride == 0 and block % devices_per_host == 0:
        return Reach(size, stride, devices_per_host // stride, block // devices_per_host)
    starts = range(0, lcm(block, devices_per_host), block)
    members = range(min(stride, devices_per_host))
    offsets = {(start + member) % devices_per_host for start in starts for member in members}
    hosts, inside = max(_spanned(offset, size, stride, devices_per_host) for offset in offsets)
    return Reach(size, stride, inside, hosts)


def _spanned(offset: int, size: int, stride: int, devices_per_host: int) -> tuple[int, int]:
    """Hosts that a group spans, and its most ranks in one host."""
    counts: dict[int, int] = {}
    for member in range(size):
        host = (offset + member * stride) // devices_per_host
        counts[host] = counts.get(host, 0) + 1
    return len(counts), max(counts.values())


def lay(split: Split, devices_per_host: int) -> Mapping[str, Reach]:
    """The reach of every axis."""
    steps = strides(split)
    return {axis: reach(getattr(split, axis), steps[axis], devices_per_host) for axis in AXES}


def group_on(fabric: Fabric, place: Reach, ranks: int | None = None) -> Group:
    """The group as collectives see it. All devices of a host send at the same time: other groups of the axis do, too.

    `ranks`: of the whole mesh, where it may be less than one host. Groups that do not divide evenly over hosts are
    taken as if each host had the most that one has.
    """
    senders = min(fabric.devices_per_host, ranks or fabric.devices_per_host)
    if not place.crosses_hosts:
        return Group(place.size, fabric.within)
    return Group(place.inside, fabric.within, place.hosts, fabric.between(senders), place.size)


def gradient_reach(split: Split, devices_per_host: int, *, experts: bool = False) -> Reach:
    """The group over which gradients are reduced: dp × ep × cp, of experts dp × cp alone.

    That one leaves out the ranks of ep in its middle, so that its stride is cp's only within a run of cp.
    """
    steps = strides(split)
    if experts and split.ep > 1:
        outer, inner = (reach(getattr(split, axis), steps[axis], devices_per_host) for axis in ("dp", "cp"))
        stride = outer.stride if inner.size == 1 else inner.stride
        return Reach(outer.size * inner.size, stride, outer.inside * inner.inside, outer.hosts * inner.hosts)
    return reach(split.cp * split.ep * split.dp, steps["cp"], devices_per_host)


def stage_link(fabric: Fabric, split: Split, source: int, to: int) -> Channel:
    """The link from pipeline position `source` to `to`: within the host where all their ranks lie there.

    Otherwise each rank has a share of its host's way out, with the position's other ranks on that host.
    """
    stride, host = strides(split)["pp"], fabric.devices_per_host
    if all((source * stride + rank) // host == (to * stride + rank) // host for rank in {0, stride - 1}):
        return fabric.within
    return fabric.between(min(host, stride))
