"""Plan files of training.

plait = 1
task = "train"
model = "gpt-1t"
batch = 3072                       # sequences of a step, over the whole mesh
sequence = 2048                    # tokens of each

[setup]
schedule = "interleaved"
micro_batch = 1
micro_batches = 512
virtual = 2
recompute = "full"
zero = 1

[setup.split]
dp = 6
pp = 64
tp = 8

[[stages]] …                       # as in a plan of generation
[cluster] …                        # as a cluster file
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import Field

from plait.errors import PlanError
from plait.plans.layout import Layout
from plait.plans.split import Recompute, Split, TrainingSetup
from plait.plans.stage_file import StageTable, cluster_in_file, device_names, stage_values
from plait.plans.training import TrainingPlan
from plait.spec.cluster import Cluster
from plait.spec.tables import Table, validated

_Count = Annotated[int, Field(ge=1)]


class _SplitTable(Table):
    dp: _Count = 1
    pp: _Count = 1
    tp: _Count = 1
    ep: _Count = 1
    cp: _Count = 1


class _SetupTable(Table):
    split: _SplitTable = Field(default=_SplitTable())
    schedule: str
    micro_batch: _Count
    micro_batches: _Count
    virtual: _Count = 1
    recompute: Recompute = "none"
    zero: Annotated[int, Field(ge=0, le=3)] = 0
    sequence_split: bool = False
    fused_attention: bool = True

    def setup(self) -> TrainingSetup:
        """The setup."""
        return TrainingSetup(split=Split(**self.split.model_dump()), **self.model_dump(exclude={"split"}))


class _TrainingTable(Table):
    plait: int
    task: Literal["train"]
    model: str
    batch: _Count
    sequence: _Count
    link_capacity: int = 2
    epoch: int = 0
    reason: str = ""
    setup: _SetupTable
    axes: dict[str, int]
    stages: list[StageTable] = Field(min_length=1)
    cluster: dict[str, Any] | None = None


def training_values(plan: TrainingPlan, names: Sequence[str] = ()) -> dict[str, Any]:
    """The plan as plain values, without format and task. `names`: the devices of the cluster written beside it."""
    layout = plan.layout
    return {
        "model": plan.model,
        "batch": plan.batch,
        "sequence": plan.sequence,
        "link_capacity": layout.link_capacity,
        "epoch": layout.epoch,
        "reason": plan.reason,
        "setup": asdict(plan.setup),
        "axes": dict(layout.axes),
        "stages": [stage_values(stage, names) for stage in layout.stages],
    }


def training_plan_from_table(values: dict[str, Any], what: str) -> tuple[TrainingPlan, Cluster | None]:
    """The plan that plain values describe, and its cluster. Errors: PlanError, naming every fault."""
    table = validated(_TrainingTable, values, what, PlanError)
    cluster = cluster_in_file(table.cluster, what)
    names = device_names(cluster)
    stages = tuple(stage.stage(names) for stage in table.stages)
    layout = Layout(table.axes, stages, table.link_capacity, table.epoch)
    plan = TrainingPlan(table.model, layout, table.setup.setup(), table.batch, table.sequence, table.reason)
    return plan, cluster
