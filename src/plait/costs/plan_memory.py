"""Memory of a plan of training, whatever it runs on: what its ranks hold, and what their forwards leave."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from plait.costs.layer_times import Inside, layer_work
from plait.costs.operations import Work
from plait.costs.protocol import Held
from plait.costs.shares import largest_share
from plait.costs.training_memory import LayerBytes
from plait.plans.action import Kind
from plait.plans.layout import Layout
from plait.plans.round import MicroBatch
from plait.plans.training import TrainingPlan
from plait.schedules.training import SPLIT_BACKWARD
from plait.spec.model import ModelSpec


class PlanMemory:
    """`Memory` of a plan. `states`: bytes of weights, gradients and optimizer states on the fullest rank of each stage.

    `dropout`: masks are kept. Activations are counted as `costs.activations` does, of the largest share of a group.
    """

    def __init__(self, spec: ModelSpec, plan: TrainingPlan, states: Mapping[int, int], *, dropout: bool) -> None:
        self._spec, self._plan, self._states, self._dropout = spec, plan, states, dropout

    def static_bytes(self, layout: Layout, stage: int) -> int:
        """The states."""
        return self._states[stage]

    def held(self, layout: Layout, stage: int, micro_batch: MicroBatch) -> Held:
        """What the stage's forward leaves."""
        return self._kept.held(layout.stages[stage].layers, split=self._plan.schedule in SPLIT_BACKWARD)

    def working_bytes(self, layout: Layout, stage: int, micro_batch: MicroBatch, kind: Kind) -> int:
        """What an action works in."""
        return self._kept.working_bytes(kind)

    @cached_property
    def _kept(self) -> LayerBytes:
        return LayerBytes(self._spec, self._work, self._plan.setup.recompute)

    def _work(self, layer: int) -> Work:
        stage = self._plan.layout.stages[0]
        inside = Inside.of(self._plan.setup)
        share = largest_share(self._spec, inside.tp, stage.shares)
        item_bytes = 4 if stage.dtype == "float32" else 2
        return layer_work(self._spec, layer, self._plan.sequence, inside, share, item_bytes, dropout=self._dropout)
