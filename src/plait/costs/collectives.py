"""Seconds of collectives by latency and bandwidth, and the bytes that every rank sends for them.

The model is that of Hockney: a message of n bytes takes latency + n / bandwidth. The algorithms and their costs are
those of Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH" (2005), section
4, without the cost of adding; n is always the whole vector, as it is before an all-reduce and after an all-gather. The
bytes on the wire agree with the bus bandwidth of nccl-tests (doc/PERFORMANCE.md): 2 (p - 1) / p of n for an all-reduce,
(p - 1) / p for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log2, sqrt
from typing import Literal

from plait.costs.curves import Curve
from plait.costs.protocol import LinkCost

Collective = Literal["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast"]


@dataclass(frozen=True, slots=True)
class Channel:
    """What a rank sends through. `measured`: seconds over the bytes of a message, where one latency and one bandwidth
    do not say it: straight lines between measured sizes, each with a bandwidth of its own.
    """

    link: LinkCost
    measured: Curve | None = None

    def message_s(self, message_bytes: float) -> float:
        """Seconds until a message of this size is there."""
        if self.measured is None:
            return self.link.transfer_s(message_bytes)
        return self.measured.value(message_bytes)


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks of a collective: `hosts` × `inside`, joined by `inner` within a host and by `outer` between hosts.

    `outer` is what one rank has of its host's way out while all ranks of the host send. A group within one host has no
    use for `outer`. `size`: of a group that does not fill its hosts evenly; its seconds are those of one that does.
    """

    inside: int
    inner: Channel
    hosts: int = 1
    outer: Channel | None = None
    size: int | None = None

    @property
    def ranks(self) -> int:
        """All ranks."""
        return self.inside * self.hosts if self.size is None else self.size


def sent_bytes(collective: Collective, vector_bytes: float, ranks: int) -> float:
    """Bytes that every rank sends, on average over the ranks, by the ring or by direct messages.

    All-to-all: `vector_bytes` is what one rank has for all ranks, itself included. Broadcast: every rank but the last
    of the chain sends the vector once.
    """
    others = (ranks - 1) / ranks
    return vector_bytes * others * (2 if collective == "all_reduce" else 1)


def point_to_point_s(message_bytes: float, channel: Channel) -> float:
    """Latency + bytes / bandwidth."""
    return channel.message_s(message_bytes)


def ring_s(vector_bytes: float, ranks: int, channel: Channel, rounds: int = 1) -> float:
    """`rounds` times around a ring: (p - 1) messages of n / p each. An all-reduce goes around twice.

    Source: Thakur et al. (2005), sections 4.1 (all-gather) and 4.5 (all-reduce: 2 (p - 1) α + 2 (p - 1) / p n β).
    """
    if ranks < 2:
        return 0.0
    return rounds * (ranks - 1) * channel.message_s(vector_bytes / ranks)


def tree_all_reduce_s(vector_bytes: float, ranks: int, channel: Channel, chunks: int = 1) -> float:
    """Up a binary tree and down again, 2 ⌈log2 p⌉ messages; cut into `chunks` that follow each other through it.

    Source: Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009): a
    pipelined tree takes (depth + chunks) messages of n / chunks each way.
    """
    if ranks < 2:
        return 0.0
    depth = ceil(log2(ranks))
    return 2 * (depth + chunks - 1) * channel.message_s(vector_bytes / chunks)


def ring_channel(points: Sequence[tuple[float, float]], ranks: int) -> Channel:
    """The channel with which a ring all-reduce of `ranks` takes what was measured: (bytes of the vector, seconds).

    Between the points it is a straight line, as it is beyond the last; below the first it is flat. Two points give one
    latency and one bandwidth, more a bandwidth by size. Each message is n / p bytes, and 2 (p - 1) follow each other.
    """
    messages = 2 * (ranks - 1)
    ordered = sorted(points)
    curve = Curve(tuple(size / ranks for size, _ in ordered), tuple(seconds / messages for _, seconds in ordered))
    return Channel(LinkCost(*_line(curve)), curve)


def _line(curve: Curve) -> tuple[float, float]:
    """Latency and bandwidth of the straight line through a curve's ends; no bandwidth limit where it does not rise."""
    if curve.values[-1] <= curve.values[0]:
        return curve.values[0], float("inf")
    slope = (curve.values[-1] - curve.values[0]) / (curve.at[-1] - curve.at[0])
    return max(0.0, curve.values[0] - slope * curve.at[0]), 1 / slope


def best_tree_s(vector_bytes: float, ranks: int, channel: Channel) -> float:
    """The tree with as many chunks as serve it best: about √((depth - 1) · seconds of the bytes ÷ latency) of them.

    That number makes (depth + chunks - 1) · (latency + bytes / chunks) least (Sanders et al. 2009, section 2).
    """
    if ranks < 2:
        return 0.0
    latency = channel.message_s(0)
    bytes_s = channel.message_s(vector_bytes) - latency
    most = sqrt((ceil(log2(ranks)) - 1) * bytes_s / latency) if latency > 0 else vector_bytes
    candidates = {1, max(1, floor(min(most, vector_bytes))), max(1, ceil(min(most, vector_bytes)))}
    return min(tree_all_reduce_s(vector_bytes, ranks, channel, chunks) for chunks in candidates)


def all_reduce_s(vector_bytes: float, group: Group) -> float:
    """The faster of ring and tree; over hosts: reduce-scatter inside, all-reduce of the parts beyond, all-gather.

    Source of the two levels: Jia et al., "Highly Scalable Deep Learning Training System with Mixed-Precision" (2018),
    section 4.2; NCCL's trees also go through each host first.
    """
    if group.hosts == 1 or group.outer is None:
        return _flat_all_reduce_s(vector_bytes, group.inside, group.inner)
    within = 2 * ring_s(vector_bytes, group.inside, group.inner)
    return within + _flat_all_reduce_s(vector_bytes / group.inside, group.hosts, group.outer)


def reduce_scatter_s(vector_bytes: float, group: Group) -> float:
    """A ring inside the host, then a ring of each rank's part between hosts (Thakur et al. 2005, section 4.2)."""
    return _one_way_s(vector_bytes, group)


def all_gather_s(vector_bytes: float, group: Group) -> float:
    """The reduce-scatter's way back: as many bytes and messages (Thakur et al. 2005, section 4.1)."""
    return _one_way_s(vector_bytes, group)


def all_to_all_s(vector_bytes: float, group: Group) -> float:
    """A message of n / p to every other rank, one after the other; those within the host and those beyond at once.

    Source: Thakur et al. (2005), section 4.4 (pairwise exchange); NCCL sends to all peers at the same time, so that the
    slower of the two ways decides.
    """
    part = vector_bytes / group.ranks
    within = _pairwise_s(part, group.inside - 1, group.inner)
    if group.hosts == 1 or group.outer is None:
        return within
    return max(within, _pairwise_s(part, group.ranks - group.inside, group.outer))


def broadcast_s(vector_bytes: float, group: Group) -> float:
    """⌈log2 p⌉ messages of the whole vector, or scatter and all-gather if faster (Thakur et al. 2005, section 4.3)."""
    within = _flat_broadcast_s(vector_bytes, group.inside, group.inner)
    if group.hosts == 1 or group.outer is None:
        return within
    return within + _flat_broadcast_s(vector_bytes, group.hosts, group.outer)


def collective_s(collective: Collective, vector_bytes: float, group: Group) -> float:
    """Seconds of any of them."""
    match collective:
        case "all_reduce":
            return all_reduce_s(vector_bytes, group)
        case "reduce_scatter":
            return reduce_scatter_s(vector_bytes, group)
        case "all_gather":
            return all_gather_s(vector_bytes, group)
        case "all_to_all":
            return all_to_all_s(vector_bytes, group)
        case "broadcast":
            return broadcast_s(vector_bytes, group)


def _one_way_s(vector_bytes: float, group: Group) -> float:
    within = ring_s(vector_bytes, group.inside, group.inner)
    if group.hosts == 1 or group.outer is None:
        return within
    return within + ring_s(vector_bytes / group.inside, group.hosts, group.outer)


def _flat_all_reduce_s(vector_bytes: float, ranks: int, channel: Channel) -> float:
    ring = ring_s(vector_bytes, ranks, channel, rounds=2)
    return min(ring, best_tree_s(vector_bytes, ranks, channel))


def _pairwise_s(part_bytes: float, peers: int, channel: Channel) -> float:
    """To all peers at the same time: one latency, and the bytes of all of them through the rank's own link."""
    return channel.message_s(part_bytes * peers) if peers else 0.0


def _flat_broadcast_s(vector_bytes: float, ranks: int, channel: Channel) -> float:
    if ranks < 2:
        return 0.0
    steps = ceil(log2(ranks))
    tree = steps * channel.message_s(vector_bytes)
    part = channel.message_s(vector_bytes / ranks)
    scatter = steps * channel.message_s(0) + (ranks - 1) * (part - channel.message_s(0))
    return min(tree, scatter + (ranks - 1) * part)
