"""Costs of the round that the trainer runs: with T and N, and with the bytes that its ranks really send.

What a search compares (`training_costs`) has a tied embedding's exchange in the ends' reductions, and no norm; its
bytes are those of the formulas. Here T and N are actions, G leaves out what T sums, and all bytes are those of the
rules (`plans.training_exchanges`).
"""

from __future__ import annotations

from plait.costs.collectives import all_gather_s, all_reduce_s
from plait.costs.protocol import Exchange, LinkCost
from plait.costs.reductions import StageTail
from plait.costs.states import RankParameters
from plait.costs.topology import group_on, reach, stage_link
from plait.costs.training import TrainingModel
from plait.costs.training_costs import TrainingCosts
from plait.plans.action import Kind
from plait.plans.layout import Layout
from plait.plans.round import MicroBatch
from plait.plans.training import TrainingPlan
from plait.plans.training_exchanges import (
    NORM_BYTES,
    action_exchanges,
    exchanged_bytes,
    gathered_bytes,
    reduced_bytes,
    tied_bytes,
)


class ExecutedCosts(TrainingCosts):
    """`Costs` and `Memory` of one plan. Messages are those of each rank: its rows, not all of its tensor group's."""

    def __init__(self, model: TrainingModel, plan: TrainingPlan) -> None:
        super().__init__(model, plan.setup, plan.layout.cut)
        self.plan = plan

    def compute_s(self, layout: Layout, stage: int, micro_batch: MicroBatch, kind: Kind = Kind.FORWARD) -> float:
        """As a search has it; and N: a look at the position's gradients, and the exchange of a few numbers with all."""
        if kind is not Kind.NORM:
            return super().compute_s(layout, stage, micro_batch, kind)
        held = next(stages for stages in layout.positions if stage in stages)
        parameters = sum(self.model.own_parameters(self.setup, self.cut, one).total for one in held)
        return self.model.rates.moved_s(parameters * self.model.profile.reduced_bytes) + self._norm_s(layout)

    def exchange(self, layout: Layout, stage: int, micro_batch: MicroBatch, kind: Kind) -> Exchange:
        """Seconds as a search has them; the bytes of each rank by the rule where it has one."""
        if kind is Kind.NORM:
            return Exchange(self._norm_s(layout), (layout.ranks - 1) * NORM_BYTES)
        found, split = super().exchange(layout, stage, micro_batch, kind), self.setup.split
        if split.tp == 1 or split.ep * split.cp > 1 or self.model.spec.experts is not None:
            return found
        exchanges = action_exchanges(self.model.spec, layout, self.setup, stage, kind, micro_batch)
        return Exchange.of(found.seconds, exchanged_bytes(exchanges, split.tp))

    def reduce_s(self, layout: Layout, stage: int, kind: Kind, parts: int = 1) -> float:
        """Of T: the sum over the replicas of each end, and the message between the ends; once for both."""
        if kind is not Kind.REDUCE_TIED:
            return super().reduce_s(layout, stage, kind, parts)
        model, split = self.model, self.setup.split
        if not self._exchanges(layout, stage):
            return 0.0
        gradient = model.spec.vocab * model.spec.hidden / split.tp * model.profile.reduced_bytes
        seconds = all_reduce_s(gradient, model.reductions.groups(split)[0])
        if _apart(layout):
            seconds += stage_link(model.fabric, split, 0, split.pp - 1).message_s(gradient)
        return seconds

    def reduce_bytes(self, layout: Layout, stage: int, kind: Kind, parts: int = 1) -> int:
        """By the rule: of each rank, the mean over those of the stage."""
        spec, ranks = self.model.spec, len(layout.stages[stage].ranks)
        if kind is Kind.REDUCE_TIED:
            ends = 2 if _apart(layout) else 1
            return tied_bytes(spec, layout) // (ends * ranks) if self._exchanges(layout, stage) else 0
        total = (reduced_bytes if kind is Kind.REDUCE_GRADIENTS else gathered_bytes)(spec, layout, self.setup, stage)
        return total // ranks // parts

    def _exchanges(self, layout: Layout, stage: int) -> bool:
        """Where one position holds both ends, the first stage's T is the exchange, and the other's does nothing."""
        return _apart(layout) or stage == 0

    def _norm_s(self, layout: Layout) -> float:
        fabric, ranks = self.model.fabric, layout.ranks
        return all_gather_s(ranks * NORM_BYTES, group_on(fabric, reach(ranks, 1, fabric.devices_per_host), ranks))

    def _link(self, source: int, to: int) -> LinkCost:
        """A rank's own link: it sends its rows."""
        model, setup = self.model, self.setup
        if source == to:
            return LinkCost(0.0, float("inf"))
        channel = stage_link(model.fabric, setup.split, source, to)
        return LinkCost(channel.link.latency_s + model.gathered_s(setup), channel.link.bandwidth_bytes_per_s)

    def _tail(self, layout: Layout, stage: int) -> StageTail:
        """Of all but a tied embedding, whose gradient T sums; every end updates the whole of it."""
        found = self._tails.get(stage)
        if found is None:
            found = self._tails[stage] = self._made_tail(layout, stage)
        return found

    def _made_tail(self, layout: Layout, stage: int) -> StageTail:
        model, layers = self.model, layout.stages[stage].layers
        own, embedding = model.own_parameters(self.setup, self.cut, stage), 0
        if model.spec.tied and len(self.cut) > 1 and (stage == 0 or (stage == len(self.cut) - 1 and _apart(layout))):
            embedding = model.spec.vocab * model.spec.hidden // self.setup.split.tp
        rest = RankParameters(own.dense - embedding, own.experts)
        tail = model.reductions.tail(self.setup, rest, model.count((layers,)))
        updated_s = model.rates.moved_s(embedding * model.profile.stepped_bytes)
        return tail._replace(optimizer_s=tail.optimizer_s + updated_s)


def _apart(layout: Layout) -> bool:
    """The first and the last stage stand on different positions."""
    return layout.stages[0].ranks != layout.stages[-1].ranks
