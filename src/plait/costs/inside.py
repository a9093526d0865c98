"""Costs that stand on others: what is not said anew is as inside."""

from __future__ import annotations

from collections.abc import Sequence

from plait.costs.protocol import Costs, Exchange, LinkCost, Load, Running
from plait.plans.action import Kind
from plait.plans.layout import Layout
from plait.plans.round import MicroBatch


class InsideCosts:
    """`Costs` that are those of `inside` where a subclass says nothing else."""

    __slots__ = ()

    inside: Costs

    def compute_s(self, layout: Layout, stage: int, micro_batch: MicroBatch, kind: Kind = Kind.FORWARD) -> float:
        """As inside."""
        return self.inside.compute_s(layout, stage, micro_batch, kind)

    def exchange(self, layout: Layout, stage: int, micro_batch: MicroBatch, kind: Kind) -> Exchange:
        """As inside."""
        return self.inside.exchange(layout, stage, micro_batch, kind)

    def reduce_s(self, layout: Layout, stage: int, kind: Kind, parts: int = 1) -> float:
        """As inside."""
        return self.inside.reduce_s(layout, stage, kind, parts)

    def reduce_bytes(self, layout: Layout, stage: int, kind: Kind, parts: int = 1) -> int:
        """As inside."""
        return self.inside.reduce_bytes(layout, stage, kind, parts)

    def load(self, layout: Layout, stage: int, micro_batch: MicroBatch) -> Load:
        """As inside."""
        return self.inside.load(layout, stage, micro_batch)

    def speeds(self, layout: Layout, running: Sequence[Running]) -> tuple[float, ...]:
        """As inside."""
        return self.inside.speeds(layout, running)

    def link(self, layout: Layout, source: int, to: int) -> LinkCost:
        """As inside."""
        return self.inside.link(layout, source, to)
