"""Costs of training on this host, from what was measured of one layer, the ends, the update and the norm.

A stage's pass takes as many layers as it has, the embedding on the first and the head with its loss on the last. All
was measured while as many ranks computed as the plan has at once, or as there are cores for, with the exchanges of
their tensor groups. Bytes are those of the rules (`plans.training_exchanges`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from plait.costs.protocol import FREE, Exchange, LinkCost, Load, Running, core_shares
from plait.plans.action import Kind
from plait.plans.layout import Layout
from plait.plans.round import MicroBatch
from plait.plans.training import TrainingPlan
from plait.plans.training_exchanges import (
    NORM_BYTES,
    action_exchanges,
    exchanged_bytes,
    gathered_bytes,
    learned_items,
    reduced_bytes,
    tied_bytes,
)
from plait.spec.model import ModelSpec


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Seconds of a micro-batch's passes: forward, whole backward, and its halves for inputs and for weights."""

    forward_s: float
    backward_s: float
    input_s: float
    weight_s: float

    def of(self, kind: Kind) -> float:
        """Of one kind."""
        return {
            Kind.FORWARD: self.forward_s,
            Kind.BACKWARD: self.backward_s,
            Kind.BACKWARD_INPUT: self.input_s,
            Kind.BACKWARD_WEIGHT: self.weight_s,
        }[kind]


@dataclass(frozen=True, slots=True)
class StageTimes:
    """What a layer takes, and what an end adds to its stage's layers."""

    layer: PassTimes
    embedding: PassTimes
    head: PassTimes

    def of(self, kind: Kind, layers: int, *, first: bool, last: bool) -> float:
        """A stage's pass."""
        ends = ([self.embedding] if first else []) + ([self.head] if last else [])
        return layers * self.layer.of(kind) + sum(one.of(kind) for one in ends)


@dataclass(frozen=True, slots=True)
class TrainingTimes:
    """What a rank takes while `together` ranks compute: its passes, and what of them it exchanges with its group.

    `update_s`, `norm_s`: the update by AdamW, and the norm, of one number. `product_flops`: FLOP/s of a rank in a large
    square matrix product, which nothing that it computes exceeds by much. `link`: between two ranks, if there are two.
    """

    together: int
    computing: StageTimes
    exchanging: StageTimes
    update_s: float
    norm_s: float
    product_flops: float
    link: LinkCost | None = None


class TrainingKernel(NamedTuple):
    """What decides how fast a stage computes: measured once each."""

    dtype: str
    threads: int
    shares: tuple[int, ...] = ()

    @classmethod
    def of(cls, layout: Layout, stage: int) -> TrainingKernel:
        """The stage's."""
        where = layout.stages[stage]
        return cls(where.dtype, where.threads, where.shares if layout.tp > 1 else ())


@dataclass(frozen=True, slots=True)
class MeasuredTrainingCosts:
    """`Costs` of a plan all of whose ranks run on the measured host, which has `cores`.

    Reductions and messages are taken to move beside computing. Over shared memory a rank's own core moves them, so a
    step takes longer by what is hidden here: of n buckets all but the last.
    """

    spec: ModelSpec
    plan: TrainingPlan
    times: Mapping[TrainingKernel, TrainingTimes]
    cores: int

    def compute_s(self, layout: Layout, stage: int, micro_batch: MicroBatch, kind: Kind = Kind.FORWARD) -> float:
        """Seconds of F, B, I, W, O or N. Where a stage's ranks are more than the cores, they take turns."""
        where, times = layout.stages[stage], self._times(layout, stage)
        crowd = self._crowd(len(where.ranks) * where.threads) / self._crowd(times.together * where.threads)
        computing_s = max(1.0, crowd) * self._computing_s(layout, stage, kind)
        return computing_s + self.exchange(layout, stage, micro_batch, kind).seconds

    @property
    def peak_flops(self) -> float:
        """FLOP/s of the plan's devices together: of all ranks, or of as many as there are cores for."""
        layout, free, total = self.plan.layout, self.cores, 0.0
        for stages in layout.positions:
            where = layout.stages[stages[0]]
            for _ in where.ranks:
                if free <= 0:
                    break
                total += self._times(layout, stages[0]).product_flops * min(1.0, free / where.threads)
                free -= where.threads
        return total

    def _crowd(self, threads: int) -> float:
        """Threads a core, at least one."""
        return max(1.0, threads / self.cores)

    def _times(self, layout: Layout, stage: int) -> TrainingTimes:
        return self.times[TrainingKernel.of(layout, stage)]

    def _computing_s(self, layout: Layout, stage: int, kind: Kind) -> float:
        times = self._times(layout, stage)
        if kind is Kind.NORM:
            held = next(stages for stages in layout.positions if stage in stages)
            replicas = len(layout.stages[stage].ranks) // layout.tp
            return times.norm_s * sum(self._items(layout, one) for one in held) / replicas
        if kind is Kind.OPTIMIZER:
            replicas = len(layout.stages[stage].ranks) // layout.tp if self.plan.setup.zero else 1
            return times.update_s * self._items(layout, stage) / replicas
        return self._pass_s(times.computing, layout, stage, kind)

    def _pass_s(self, times: StageTimes, layout: Layout, stage: int, kind: Kind) -> float:
        first, end = layout.stages[stage].layers
        return times.of(kind, end - first, first=first == 0, last=end == self.spec.layers)

    def exchange(self, layout: Layout, stage: int, micro_batch: MicroBatch, kind: Kind) -> Exchange:
        """By the rule: measured seconds, and the bytes that each rank sends."""
        if kind is Kind.NORM:
            others = layout.ranks - 1
            seconds = self.link(layout, stage, stage).transfer_s(others * NORM_BYTES) if others else 0.0
            return Exchange(seconds, others * NORM_BYTES)
        if layout.tp == 1 or kind is Kind.OPTIMIZER:
            return Exchange()
        inside = action_exchanges(self.spec, layout, self.plan.setup, stage, kind, micro_batch)
        seconds = self._pass_s(self._times(layout, stage).exchanging, layout, stage, kind)
        return Exchange.of(seconds, exchanged_bytes(inside, layout.tp))

    def reduce_s(self, layout: Layout, stage: int, kind: Kind, parts: int = 1) -> float:
        """Seconds in which a rank's link carries what it sends, and two turns of messages; T's once for both ends."""
        sent, link = self.reduce_bytes(layout, stage, kind, parts), self.link(layout, stage, stage)
        return 2 * link.latency_s + link.occupied_s(sent) if sent else 0.0

    def reduce_bytes(self, layout: Layout, stage: int, kind: Kind, parts: int = 1) -> int:
        """By the rule: of each rank, the mean over those of the stage."""
        ranks, setup = len(layout.stages[stage].ranks), self.plan.setup
        if kind is Kind.REDUCE_TIED:
            apart = layout.stages[0].ranks != layout.stages[-1].ranks
            total = tied_bytes(self.spec, layout) if apart or stage == 0 else 0
            return total // (ranks * (2 if apart else 1))
        if kind is Kind.GATHER_PARAMETERS:
            return gathered_bytes(self.spec, layout, setup, stage) // ranks // parts
        return reduced_bytes(self.spec, layout, setup, stage) // ranks // parts

    def load(self, layout: Layout, stage: int, micro_batch: MicroBatch) -> Load:
        """Always the same: all ask for the cores alike."""
        return 0

    def speeds(self, layout: Layout, running: Sequence[Running]) -> tuple[float, ...]:
        """Cores ÷ threads where the threads of all that compute are more than the cores."""
        return core_shares(layout, running, self.cores)

    def link(self, layout: Layout, source: int, to: int) -> LinkCost:
        """The measured link of the host."""
        return self._times(layout, source).link or FREE

    def _items(self, layout: Layout, stage: int) -> float:
        """Numbers that a rank's stage holds, the mean over its tensor group."""
        spec = self.spec
        tied = spec.tied and len(layout.stages) > 1 and stage in (0, len(layout.stages) - 1)
        embedding = spec.vocab * spec.hidden if tied else 0
        return (learned_items(spec, layout, stage) + embedding) / layout.tp
