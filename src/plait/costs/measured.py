"""Costs of a layout on this host, from its calibrations: what the simulator asks, answered by measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from plait.costs.calibration import Calibration
from plait.costs.exchange_times import ExchangeTimes
from plait.costs.protocol import Exchange, LinkCost, Load, Running
from plait.errors import PlanError
from plait.plans.action import Kind
from plait.plans.exchanges import forward_bytes, forward_exchanges
from plait.plans.layout import Layout
from plait.plans.round import MicroBatch
from plait.spec.model import ModelSpec


class Kernel(NamedTuple):
    """What decides how fast a stage computes a layer: one calibration each."""

    dtype: str
    weights: str
    threads: int
    tp: int = 1
    shares: tuple[int, ...] = ()
    sequence: bool = False

    @classmethod
    def of(cls, layout: Layout, stage: int) -> Kernel:
        """The stage's."""
        one = layout.stages[stage]
        if layout.tp == 1:
            return cls(one.dtype, one.weights, one.threads)
        return cls(one.dtype, one.weights, one.threads, layout.tp, one.shares, layout.sequence)


@dataclass(frozen=True, slots=True)
class MeasuredCosts:
    """`Costs` of stages that all run on the calibrated host. `any_link` joins any two of them.

    `exchanges`: of each kernel that is a tensor group's, what its ranks exchange.
    """

    spec: ModelSpec
    calibrations: Mapping[Kernel, Calibration]
    any_link: LinkCost
    exchanges: Mapping[Kernel, ExchangeTimes] = field(default_factory=dict)

    def compute_s(self, layout: Layout, stage: int, micro_batch: MicroBatch, kind: Kind = Kind.FORWARD) -> float:
        """The calibration's forward of the stage's layers. Errors: PlanError for any other kind.

        The ranks of a tensor group compute at the same time, which slows them down, and exchange in between.
        """
        if kind is not Kind.FORWARD:
            raise _never_measured(kind)
        where = layout.stages[stage]
        calibration = self.calibrations[Kernel.of(layout, stage)]
        alone_s = calibration.forward_s(micro_batch, where.layer_count, is_last=where.layers[1] == self.spec.layers)
        if len(where.ranks) == 1:
            return alone_s
        slowdown = calibration.slowdown(len(where.ranks), self.load(layout, stage, micro_batch))
        return alone_s * slowdown + self._exchange_s(layout, stage, micro_batch)

    def _exchange_s(self, layout: Layout, stage: int, micro_batch: MicroBatch) -> float:
        times = self.exchanges[Kernel.of(layout, stage)]
        return times.seconds(forward_exchanges(self.spec, layout, stage, micro_batch))

    def exchange(self, layout: Layout, stage: int, micro_batch: MicroBatch, kind: Kind) -> Exchange:
        """By the rule of `plans.exchanges`: measured seconds, and the bytes that each rank sends.

        Errors: PlanError for anything but a forward.
        """
        if kind is not Kind.FORWARD:
            raise _never_measured(kind)
        sent = forward_bytes(self.spec, layout, stage, micro_batch)
        return Exchange.of(self._exchange_s(layout, stage, micro_batch), sent)

    def reduce_s(self, layout: Layout, stage: int, kind: Kind, parts: int = 1) -> float:
        """Not measured. Errors: PlanError."""
        raise _never_measured(kind)

    def reduce_bytes(self, layout: Layout, stage: int, kind: Kind, parts: int = 1) -> int:
        """Not measured. Errors: PlanError."""
        raise _never_measured(kind)

    def load(self, layout: Layout, stage: int, micro_batch: MicroBatch) -> Load:
        """Its positions, up to the next power of two."""
        return 1 << (micro_batch.tokens - 1).bit_length()

    def speeds(self, layout: Layout, running: Sequence[Running]) -> tuple[float, ...]:
        """1 ÷ measured slowdown, where stages of other threads count as so many ranks of the stage's own threads.

        By how much the ranks of a stage slow each other down is in `compute_s` already.
        """
        threads = sum(layout.stages[one.stage].threads * len(layout.stages[one.stage].ranks) for one in running)
        return tuple(self._speed(layout, one, threads) for one in running)

    def _speed(self, layout: Layout, one: Running, threads: int) -> float:
        where = layout.stages[one.stage]
        calibration = self.calibrations[Kernel.of(layout, one.stage)]
        itself = calibration.slowdown(len(where.ranks), one.load)
        return min(1.0, itself / calibration.slowdown(threads / where.threads, one.load))

    def link(self, layout: Layout, source: int, to: int) -> LinkCost:
        """The measured link of the host."""
        return self.any_link


def _never_measured(kind: Kind) -> PlanError:
    return PlanError(
        f"the calibration of this host measured forward passes, and never {kind.name.lower()} ({kind.value}): "
        "predict training from a device's figures instead, with a cluster file"
    )
