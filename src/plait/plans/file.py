"""Plan files: layout, schedule name and parameters as TOML. Actions are not stored: the schedule makes them again."""

from __future__ import annotations

import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import Field

from plait.errors import PlanError
from plait.plans.layout import Layout, Stage
from plait.plans.plan import Plan
from plait.spec.tables import Table, read_toml, validated

FORMAT = 1
"""The version of the format; a file of another one is refused."""


class _StageTable(Table):
    layers: list[int] = Field(min_length=2, max_length=2)
    ranks: list[int] = Field(min_length=1)
    dtype: str = "float32"
    weights: str = "float32"
    threads: int = 1
    device: str = "cpu"
    host: str = "localhost"
    devices: list[str] = Field(default=[])
    shares: list[int] = Field(default=[])

    def stage(self) -> Stage:
        first, end = self.layers
        return Stage(
            (first, end),
            tuple(self.ranks),
            self.dtype,
            self.weights,
            self.threads,
            self.device,
            self.host,
            tuple(self.devices),
            tuple(self.shares),
        )


class _PlanTable(Table):
    plait: int
    model: str
    schedule: str
    micro_batches: int
    chunk: int
    context: int
    slots: int
    link_capacity: int = 2
    epoch: int = 0
    reason: str = ""
    axes: dict[str, int]
    stages: list[_StageTable] = Field(min_length=1)


def dump_plan(plan: Plan) -> str:
    """The plan as the text of a plan file."""
    layout = plan.layout
    values: dict[str, Any] = {
        "plait": FORMAT,
        "model": plan.model,
        "schedule": plan.schedule,
        "micro_batches": plan.micro_batches,
        "chunk": plan.chunk,
        "context": plan.context,
        "slots": plan.slots,
        "link_capacity": layout.link_capacity,
        "epoch": layout.epoch,
        "reason": plan.reason,
        "axes": dict(layout.axes),
        "stages": [_stage_values(stage) for stage in layout.stages],
    }
    return tomli_w.dumps(values)


def _stage_values(stage: Stage) -> dict[str, Any]:
    """The stage's table, without the lists that are empty."""
    return {key: value for key, value in asdict(stage).items() if value != ()}


def plan_from_table(values: dict[str, Any], what: str = "the plan") -> Plan:
    """The plan that plain values describe. Errors: PlanError, naming every fault and the nearest known key."""
    if values.get("plait") != FORMAT:
        raise PlanError(f"{what} has format {values.get('plait')!r}, but this version reads plait = {FORMAT}")
    table = validated(_PlanTable, values, what, PlanError)
    layout = Layout(table.axes, tuple(stage.stage() for stage in table.stages), table.link_capacity, table.epoch)
    return Plan(
        table.model,
        layout,
        table.schedule,
        table.micro_batches,
        table.chunk,
        table.context,
        table.slots,
        table.reason,
    )


def plan_from_text(text: str) -> Plan:
    """The plan that `dump_plan` wrote. Errors: PlanError."""
    return plan_from_table(tomllib.loads(text))


def load_plan(path: Path) -> Plan:
    """Read a plan file. Errors: PlanError."""
    return plan_from_table(read_toml(path, "plan file", PlanError), f"plan file {path}")


def save_plan(plan: Plan, path: Path) -> None:
    """Write a plan file."""
    path.write_text(dump_plan(plan), encoding="utf-8")
