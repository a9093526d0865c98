"""A plan of training: a layout, and the name and parameters of the schedule that makes a step's round."""

from __future__ import annotations

from dataclasses import dataclass

from plait.plans.layout import Layout
from plait.plans.split import TrainingSetup


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """How one model is split for training. It holds no time.

    `setup` holds axes, schedule and what is recomputed and sharded; `layout` the devices, stages and ranks that follow
    from it and from the cut. `batch`: sequences of one step over the whole mesh; `sequence`: tokens of each.
    """

    model: str
    layout: Layout
    setup: TrainingSetup
    batch: int
    sequence: int
    reason: str = ""

    @property
    def schedule(self) -> str:
        """The schedule's name."""
        return self.setup.schedule

    @property
    def micro_batches(self) -> int:
        """Micro-batches that go through each pipeline in a step."""
        return self.setup.micro_batches
