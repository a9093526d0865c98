"""Costs of training whose ranks are processes of one host that talk as if over a network.

Passes, updates and norms compute as measured on this host. Messages, reductions and the exchanges of groups that cross
hosts take what the wires say; see `costs.emulated`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from plait.costs.emulated import FramedTimes, wire_link
from plait.costs.framed import crosses, step_s
from plait.costs.inside import InsideCosts
from plait.costs.measured_training import MeasuredTrainingCosts, TrainingKernel
from plait.costs.protocol import Exchange, LinkCost
from plait.plans.action import Kind
from plait.plans.layout import Layout
from plait.plans.round import MicroBatch
from plait.plans.training_exchanges import NORM_BYTES, action_exchanges
from plait.spec.emulation import Emulation


@dataclass(frozen=True, slots=True)
class EmulatedTrainingCosts(InsideCosts):
    """`Costs`. `inside` knows this host; `framed`: of each kernel whose tensor group crosses hosts."""

    inside: MeasuredTrainingCosts
    emulation: Emulation
    framed: Mapping[TrainingKernel, FramedTimes] = field(default_factory=dict)

    @property
    def peak_flops(self) -> float:
        """As on one host, which it is."""
        return self.inside.peak_flops

    def compute_s(self, layout: Layout, stage: int, micro_batch: MicroBatch, kind: Kind = Kind.FORWARD) -> float:
        """As measured, with exchanges over the wires."""
        within_s = self.inside.exchange(layout, stage, micro_batch, kind).seconds
        beside_s = self.exchange(layout, stage, micro_batch, kind).seconds - within_s
        return self.inside.compute_s(layout, stage, micro_batch, kind) + beside_s

    def exchange(self, layout: Layout, stage: int, micro_batch: MicroBatch, kind: Kind) -> Exchange:
        """The bytes of the rule; seconds of the wires where the group crosses hosts."""
        within, emulation = self.inside.exchange(layout, stage, micro_batch, kind), self.emulation
        if kind is Kind.NORM:
            over_s = step_s(range(layout.ranks), emulation, lambda *_: NORM_BYTES)
            return within._replace(seconds=max(over_s, within.seconds))
        group = layout.stages[stage].ranks[: layout.tp]
        if not crosses(group, emulation) or kind is Kind.OPTIMIZER:
            return within
        times = self.framed[TrainingKernel.of(layout, stage)]
        exchanges = action_exchanges(self.inside.spec, layout, self.inside.plan.setup, stage, kind, micro_batch)
        return within._replace(seconds=sum(times.seconds(one, group, emulation) for one in exchanges))

    def reduce_s(self, layout: Layout, stage: int, kind: Kind, parts: int = 1) -> float:
        """Over the wires, where replicas are on several hosts. Two ranks swap in one turn, more take two.

        An all-reduce of more than two and ZeRO's halves: see `executor.reducing`, whose bytes these are.
        """
        groups = _reducing(layout, stage, kind)
        if not any(crosses(group, self.emulation) for group in groups):
            return self.inside.reduce_s(layout, stage, kind, parts)
        sent_bytes = self.reduce_bytes(layout, stage, kind, parts)
        if not sent_bytes:
            return 0.0
        two = len(groups[0]) > 2 and kind is not Kind.GATHER_PARAMETERS and not self.inside.plan.setup.zero
        turns = 2 if two else 1
        return turns * _together_s(groups, self.emulation, sent_bytes / turns)

    def link(self, layout: Layout, source: int, to: int) -> LinkCost:
        """The wire between the hosts, or shared memory."""
        return wire_link(self.inside.link(layout, source, to), layout, source, to, self.emulation)


def _reducing(layout: Layout, stage: int, kind: Kind) -> list[tuple[int, ...]]:
    """The groups that reduce for a stage: for each tensor rank its replicas, of a tied embedding those of both ends."""
    ends = (layout.stages[0], layout.stages[-1]) if kind is Kind.REDUCE_TIED else (layout.stages[stage],)
    tp = layout.tp
    return [tuple(sorted({rank for end in ends for rank in end.ranks[index::tp]})) for index in range(tp)]


def _together_s(groups: Sequence[tuple[int, ...]], emulation: Emulation, sent_bytes: float) -> float:
    """A turn in which each rank sends so many bytes, evenly to all others of its group; groups share wires."""
    members = [(rank, number) for number, group in enumerate(groups) for rank in group]
    ranks = [rank for rank, _ in members]

    def part(i: int, j: int) -> float:
        same = members[i][1] == members[j][1]
        return sent_bytes / (len(groups[members[i][1]]) - 1) if same else 0.0

    return step_s(ranks, emulation, part)
