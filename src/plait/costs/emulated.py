"""Costs of a plan whose ranks are processes of one host that talk as if over a network.

Layers compute as measured on this host, whose cores all ranks share. Messages between emulated hosts take what the
wire says. The exchanges of a tensor group that crosses hosts take the wire's time and, beside it, what ranks were
measured to take over a wire that is known: the wait for each other, and the copies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from plait.costs.exchange_times import ExchangeTimes
from plait.costs.framed import crosses, framed_s
from plait.costs.inside import InsideCosts
from plait.costs.measured import Kernel
from plait.costs.protocol import Costs, Exchange, LinkCost
from plait.plans.action import Kind
from plait.plans.exchanges import Collective, forward_exchanges
from plait.plans.layout import Layout
from plait.plans.round import MicroBatch
from plait.spec.cluster import Wire
from plait.spec.emulation import EmulatedLinks, Emulation
from plait.spec.model import ModelSpec

BASE = EmulatedLinks(Wire(500e-6, 1.25e8))
"""The links over which exchanges are measured: 500 µs and 1 Gb/s, of which every machine is capable."""


@dataclass(frozen=True, slots=True)
class FramedTimes:
    """What exchanges over frames take: `measured` over links like `BASE`, a rank on each host."""

    measured: ExchangeTimes

    def seconds(self, one: Collective, ranks: Sequence[int], emulation: Emulation) -> float:
        """The wires' time, and what is not theirs."""
        size = len(ranks)
        known_s = framed_s(one, range(size), BASE.among(size))
        return framed_s(one, ranks, emulation) + max(0.0, self.measured.seconds([one]) - known_s)


@dataclass(frozen=True, slots=True)
class EmulatedCosts(InsideCosts):
    """`Costs`. `inside` knows layers and links of this host; `framed`: of each kernel whose group crosses hosts."""

    spec: ModelSpec
    inside: Costs
    emulation: Emulation
    framed: Mapping[Kernel, FramedTimes] = field(default_factory=dict)

    def compute_s(self, layout: Layout, stage: int, micro_batch: MicroBatch, kind: Kind = Kind.FORWARD) -> float:
        """As measured, with exchanges over the wires."""
        seconds = self.inside.compute_s(layout, stage, micro_batch, kind)
        if not crosses(layout.stages[stage].ranks, self.emulation):
            return seconds
        within_s = self.inside.exchange(layout, stage, micro_batch, kind).seconds
        return seconds - within_s + self.exchange(layout, stage, micro_batch, kind).seconds

    def exchange(self, layout: Layout, stage: int, micro_batch: MicroBatch, kind: Kind) -> Exchange:
        """The bytes of the rule; seconds of the wires where the group crosses hosts."""
        within = self.inside.exchange(layout, stage, micro_batch, kind)
        ranks = layout.stages[stage].ranks
        if not crosses(ranks, self.emulation):
            return within
        times = self.framed[Kernel.of(layout, stage)]
        exchanges = forward_exchanges(self.spec, layout, stage, micro_batch)
        return within._replace(seconds=sum(times.seconds(one, ranks, self.emulation) for one in exchanges))

    def link(self, layout: Layout, source: int, to: int) -> LinkCost:
        """The wire between the hosts, or shared memory."""
        near = self.inside.link(layout, source, to)
        return wire_link(near, layout, source, to, self.emulation)


def wire_link(near: LinkCost, layout: Layout, source: int, to: int, emulation: Emulation) -> LinkCost:
    """The link between two stages: `near` where every rank's partner is on its host, else the slowest of the wires.

    Ranks whose partners are beyond the same wire share its bandwidth. A rank goes on while the wire sends.
    """
    pairs = list(zip(layout.stages[source].ranks, layout.stages[to].ranks, strict=True))
    hosts = Counter((emulation.hosts[one], emulation.hosts[other]) for one, other in pairs)
    far = [(emulation.wires[pair], sharing) for pair, sharing in hosts.items() if pair in emulation.wires]
    if not far:
        return near
    latency_s = max(wire.latency_s for wire, _ in far)
    bandwidth = min(wire.bandwidth / sharing for wire, sharing in far)
    return replace(near, latency_s=latency_s, bandwidth_bytes_per_s=bandwidth, buffered=True)
