"""A training setup's seconds and bytes, action by action, as the simulator asks for them (`costs.protocol`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from plait.costs.protocol import Exchange, Held, LinkCost, Load, Running
from plait.costs.reductions import StageTail
from plait.costs.topology import stage_link
from plait.plans.action import Kind
from plait.plans.layout import Layout
from plait.plans.round import MicroBatch
from plait.plans.split import TrainingSetup
from plait.schedules.training import SPLIT_BACKWARD

if TYPE_CHECKING:
    from plait.costs.layer_times import Times
    from plait.costs.training import Cut, TrainingModel


class TrainingCosts:
    """`Costs` and `Memory` of one setup and cut. Stages are told apart by their layers, positions by their ranks."""

    def __init__(self, model: TrainingModel, setup: TrainingSetup, cut: Cut) -> None:
        self.model, self.setup, self.cut = model, setup, cut
        self._times = model.times(setup)
        self._kept = model.layer_bytes(setup)
        self._stages: dict[tuple[int, int], Times] = {}
        self._tails: dict[int, StageTail] = {}
        self._links: dict[tuple[int, int], LinkCost] = {}

    # Costs

    def compute_s(self, layout: Layout, stage: int, micro_batch: MicroBatch, kind: Kind = Kind.FORWARD) -> float:
        """Seconds of F, B (I and W), I, W or O of a stage."""
        times = self._of(layout, stage)
        match kind:
            case Kind.FORWARD:
                return times.forward_s
            case Kind.BACKWARD:
                return times.input_s + times.weight_s
            case Kind.BACKWARD_INPUT:
                return times.input_s
            case Kind.BACKWARD_WEIGHT:
                return times.weight_s
            case Kind.OPTIMIZER:
                return self._tail(layout, stage).optimizer_s
            case _:
                raise AssertionError(f"{kind} is no computation of training")

    def exchange(self, layout: Layout, stage: int, micro_batch: MicroBatch, kind: Kind) -> Exchange:
        """What F, B and I exchange over tp, ep and cp."""
        times = self._of(layout, stage)
        if kind is Kind.FORWARD:
            return Exchange(times.forward_exchange_s, round(times.forward_sent_bytes))
        if kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT):
            return Exchange(times.input_exchange_s, round(times.input_sent_bytes))
        return Exchange()

    def reduce_s(self, layout: Layout, stage: int, kind: Kind, parts: int = 1) -> float:
        """Seconds of the whole reduction or gathering: what of it is hidden is seen in the timeline."""
        tail = self._tail(layout, stage)
        return (tail.reduce_s if kind is Kind.REDUCE_GRADIENTS else tail.gather_s) / parts

    def reduce_bytes(self, layout: Layout, stage: int, kind: Kind, parts: int = 1) -> int:
        """Bytes that a rank sends for it."""
        tail = self._tail(layout, stage)
        return round(tail.reduced_bytes if kind is Kind.REDUCE_GRADIENTS else tail.gathered_bytes) // parts

    def load(self, layout: Layout, stage: int, micro_batch: MicroBatch) -> Load:
        """Always the same: every rank has a device of its own."""
        return 0

    def speeds(self, layout: Layout, running: Sequence[Running]) -> tuple[float, ...]:
        """1 for all."""
        return (1.0,) * len(running)

    def link(self, layout: Layout, source: int, to: int) -> LinkCost:
        """The link from one stage's position to another's, for whole messages.

        Where a tensor group's ranks each send a part, together they are so many times as wide, and gathering takes a
        while longer (`TrainingModel.hand_over_s`).
        """
        found = self._links.get((source, to))
        if found is None:
            of_ranks = {layout.stages[held[0]].ranks: position for position, held in enumerate(layout.positions)}
            ends = (of_ranks[layout.stages[stage].ranks] for stage in (source, to))
            found = self._links[source, to] = self._link(*ends)
        return found

    def _link(self, source: int, to: int) -> LinkCost:
        model, setup = self.model, self.setup
        if source == to:
            return LinkCost(0.0, float("inf"))
        channel = stage_link(model.fabric, setup.split, source, to)
        parts = setup.split.tp if model.profile.parted else 1
        return LinkCost(channel.link.latency_s + model.gathered_s(setup), channel.link.bandwidth_bytes_per_s * parts)

    # Memory

    def static_bytes(self, layout: Layout, stage: int) -> int:
        """Weights, gradients and optimizer states of the stage."""
        return self.model.stage_state_bytes(self.setup, self.cut, stage)

    def held(self, layout: Layout, stage: int, micro_batch: MicroBatch) -> Held:
        """What the stage's forward leaves."""
        return self._kept.held(layout.stages[stage].layers, split=self.setup.schedule in SPLIT_BACKWARD)

    def working_bytes(self, layout: Layout, stage: int, micro_batch: MicroBatch, kind: Kind) -> int:
        """What an action works in."""
        return self._kept.working_bytes(kind)

    def _of(self, layout: Layout, stage: int) -> Times:
        layers = layout.stages[stage].layers
        found = self._stages.get(layers)
        if found is None:
            found = self._stages[layers] = self._times.stage(layers)
        return found

    def _tail(self, layout: Layout, stage: int) -> StageTail:
        found = self._tails.get(stage)
        if found is None:
            found = self._tails[stage] = self.model.stage_tail(self.setup, self.cut, stage)
        return found
