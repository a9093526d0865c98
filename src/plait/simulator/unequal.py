"""A training step on unequal machines, action by action: every stage by its own device, messages by their own links.

For data and pipeline axes alone: a stage's ranks are the replicas of one device each, and the slowest of them counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from plait.costs.collectives import Channel, Group, all_reduce_s, sent_bytes
from plait.costs.protocol import Exchange, Held, LinkCost, Load, Running
from plait.costs.states import rank_parameters, state_bytes
from plait.costs.training import TrainingModel
from plait.costs.training_costs import TrainingCosts
from plait.errors import PlanError
from plait.plans.action import Kind
from plait.plans.layout import Layout
from plait.plans.round import MicroBatch
from plait.plans.split import Split
from plait.plans.training import TrainingPlan
from plait.plans.training_exchanges import NORM_BYTES
from plait.spec.cluster import Cluster, Device, EqualMachine, Network, Wire
from plait.spec.job import TrainingJob
from plait.spec.model import ModelSpec


class UnequalCosts:
    """`Costs` and `Memory` of a plan over unequal devices. Errors: PlanError for tensor, expert and context axes.

    `executed`: of the round that the trainer runs, in which a tied embedding has a T of its own.
    """

    def __init__(
        self, plan: TrainingPlan, spec: ModelSpec, job: TrainingJob, cluster: Cluster, *, executed: bool = False
    ) -> None:
        split = plan.setup.split
        if split.tp * split.ep * split.cp * plan.setup.virtual > 1:
            raise PlanError(
                "the plan's machines are not equal, and where they have no profile or no dtype in common only data and "
                "pipeline axes can be simulated yet"
            )
        self._plan, self._spec, self._cluster, self._executed = plan, spec, cluster, executed
        self._members = [tuple(map(cluster.device, stage.devices)) for stage in plan.layout.stages]
        alone = replace(plan.setup, split=Split())
        free = Network(Wire(0.0, float("inf")), Wire(0.0, float("inf")))
        self._models = [
            tuple(TrainingModel(spec, job, EqualMachine(device, 1, 1, free)) for device in members)
            for members in self._members
        ]
        self._stages = [
            tuple(TrainingCosts(model, alone, plan.layout.cut) for model in models) for models in self._models
        ]

    @property
    def models(self) -> list[TrainingModel]:
        """The model of every rank, stage by stage."""
        return [model for models in self._models for model in models]

    def compute_s(self, layout: Layout, stage: int, micro_batch: MicroBatch, kind: Kind = Kind.FORWARD) -> float:
        """Of the slowest replica; an optimizer step is of what ZeRO leaves it. N: a message over the slowest link."""
        if kind is Kind.NORM:
            return self._everywhere().transfer_s((layout.ranks - 1) * NORM_BYTES)
        seconds = max(costs.compute_s(layout, stage, micro_batch, kind) for costs in self._stages[stage])
        shared = kind is Kind.OPTIMIZER and self._plan.setup.zero
        return seconds / len(self._members[stage]) if shared else seconds

    def exchange(self, layout: Layout, stage: int, micro_batch: MicroBatch, kind: Kind) -> Exchange:
        """Nothing is exchanged inside an action but N."""
        if kind is Kind.NORM:
            return Exchange(self.compute_s(layout, stage, micro_batch, kind), (layout.ranks - 1) * NORM_BYTES)
        return Exchange()

    def reduce_s(self, layout: Layout, stage: int, kind: Kind, parts: int = 1) -> float:
        """The replicas' all-reduce over the slowest link between two of them; with ZeRO each half of it.

        Of T: that of all that hold the embedding.
        """
        members = self._members[stage]
        if kind is Kind.REDUCE_TIED:
            members = (*self._members[0], *self._members[-1])
        links = [self._between(one, other) for one in members for other in members if one is not other]
        if not links:
            return 0.0
        slowest = LinkCost(max(one.latency_s for one in links), min(one.bandwidth_bytes_per_s for one in links))
        seconds = all_reduce_s(self._gradients(stage, kind), Group(len(members), Channel(slowest)))
        return seconds / (2 if self._halves(kind) else 1) / parts

    def reduce_bytes(self, layout: Layout, stage: int, kind: Kind, parts: int = 1) -> int:
        """What a rank sends for it."""
        ranks = len(self._members[stage])
        if kind is Kind.REDUCE_TIED:
            ranks = len(self._members[0]) + len(self._members[-1])
        sent = sent_bytes("all_reduce", self._gradients(stage, kind), ranks)
        return round(sent / (2 if self._halves(kind) else 1)) // parts

    def load(self, layout: Layout, stage: int, micro_batch: MicroBatch) -> Load:
        """Always the same: every rank has a device of its own."""
        return 0

    def speeds(self, layout: Layout, running: Sequence[Running]) -> tuple[float, ...]:
        """1 for all."""
        return (1.0,) * len(running)

    def link(self, layout: Layout, source: int, to: int) -> LinkCost:
        """The slowest of the replicas' links."""
        links = [self._between(one, two) for one, two in zip(self._members[source], self._members[to], strict=True)]
        return LinkCost(max(one.latency_s for one in links), min(one.bandwidth_bytes_per_s for one in links))

    def static_bytes(self, layout: Layout, stage: int) -> int:
        """Weights, gradients and optimizer states of the stage."""
        parameters = rank_parameters(self._spec, [layout.stages[stage].layers])
        setup = self._plan.setup
        return round(state_bytes(parameters, self._models[stage][0].recipe, setup.zero, setup.split).total_bytes)

    def held(self, layout: Layout, stage: int, micro_batch: MicroBatch) -> Held:
        """What the stage's forward leaves."""
        return self._stages[stage][0].held(layout, stage, micro_batch)

    def working_bytes(self, layout: Layout, stage: int, micro_batch: MicroBatch, kind: Kind) -> int:
        """What an action works in."""
        return self._stages[stage][0].working_bytes(layout, stage, micro_batch, kind)

    def _between(self, one: Device, other: Device) -> LinkCost:
        found = self._cluster.link(one.name, other.name)
        return LinkCost(found.latency_s, found.bandwidth)

    def _everywhere(self) -> LinkCost:
        """The slowest link between any two members."""
        members = [one for stage in self._members for one in stage]
        links = [self._between(one, other) for one in members for other in members if one is not other]
        latency_s = max((one.latency_s for one in links), default=0.0)
        return LinkCost(latency_s, min((one.bandwidth_bytes_per_s for one in links), default=float("inf")))

    def _halves(self, kind: Kind) -> bool:
        """With ZeRO a reduction is half an all-reduce, and so is the gather."""
        return self._plan.setup.zero > 0 and kind is not Kind.REDUCE_TIED

    def _gradients(self, stage: int, kind: Kind) -> float:
        """Bytes of the stage's gradients in the reduction; where a tied embedding has its T, in G without it."""
        spec, cut = self._spec, self._plan.layout.cut
        embedding = spec.vocab * spec.hidden if spec.tied and len(cut) > 1 else 0
        parameters = rank_parameters(spec, [cut[stage]]).total
        if kind is Kind.REDUCE_TIED:
            parameters = embedding
        elif self._executed and stage in (0, len(cut) - 1):
            parameters -= embedding
        return parameters * self._models[stage][0].profile.reduced_bytes
