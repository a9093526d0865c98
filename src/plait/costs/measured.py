"""Costs of a layout on this host, from its calibrations: what the simulator asks, answered by measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from plait.costs.calibration import Calibration
from plait.costs.protocol import Exchange, LinkCost, Load, Running
from plait.errors import PlanError
from plait.plans.action import Kind
from plait.plans.layout import Layout, Stage
from plait.plans.round import MicroBatch


class Kernel(NamedTuple):
    """What decides how fast a stage computes a layer: one calibration each."""

    dtype: str
    weights: str
    threads: int

    @classmethod
    def of(cls, stage: Stage) -> Kernel:
        """The stage's."""
        return cls(stage.dtype, stage.weights, stage.threads)


@dataclass(frozen=True, slots=True)
class MeasuredCosts:
    """`Costs` of stages that all run on the calibrated host. `any_link` joins any two of them."""

    layers: int
    calibrations: Mapping[Kernel, Calibration]
    any_link: LinkCost

    def compute_s(self, layout: Layout, stage: int, micro_batch: MicroBatch, kind: Kind = Kind.FORWARD) -> float:
        """The calibration's forward of the stage's layers. Errors: PlanError for any other kind."""
        if kind is not Kind.FORWARD:
            raise _never_measured(kind)
        where = layout.stages[stage]
        calibration = self.calibrations[Kernel.of(where)]
        return calibration.forward_s(micro_batch, where.layer_count, is_last=where.layers[1] == self.layers)

    def exchange(self, layout: Layout, stage: int, micro_batch: MicroBatch, kind: Kind) -> Exchange:
        """Nothing: a stage of this host is one rank."""
        return Exchange()

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
        """1 ÷ measured slowdown, where stages of other threads count as so many ranks of the stage's own threads."""
        threads = [layout.stages[one.stage].threads * len(layout.stages[one.stage].ranks) for one in running]
        return tuple(
            1 / self.calibrations[Kernel.of(layout.stages[one.stage])].slowdown(sum(threads) / own, one.load)
            for one, own in zip(running, threads, strict=True)
        )

    def link(self, layout: Layout, source: int, to: int) -> LinkCost:
        """The measured link of the host."""
        return self.any_link


def _never_measured(kind: Kind) -> PlanError:
    return PlanError(
        f"the calibration of this host measured forward passes, and never {kind.name.lower()} ({kind.value}): "
        "predict training from a device's figures instead, with a cluster file"
    )
