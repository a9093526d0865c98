"""A plan of training: a layout, and the name and parameters of the schedule that makes a step's round."""

from __future__ import annotations

from dataclasses import dataclass

from plait.plans.layout import Layout
from plait.plans.split import TrainingSetup

BUCKETS = 4
"""Parts in which the trainer does the last backward of a stage: all but the last of their reductions can be hidden."""


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

    def parts(self, buckets: int = BUCKETS) -> tuple[int, ...]:
        """Parts of each stage's last backward as the trainer does it: at most one a layer, one without replicas."""
        split = self.setup.split
        most = buckets if split.dp * split.ep * split.cp > 1 else 1
        return tuple(min(most, stage.layer_count) for stage in self.layout.stages)
