"""Plan files: layout, schedule name and parameters as TOML. Actions are not stored: the schedule makes them again.

A file of generation says ``task = "generate"`` or nothing, one of training ``task = "train"`` (`plans.training_file`).
A plan for other machines than this one holds them in a ``[cluster]`` table, written as a cluster file is: the file can
be simulated alone, wherever it is. ``[job]`` says what a plan of generation was made for, so that it is simulated so.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import tomli_w
from pydantic import Field

from plait.errors import PlanError, SpecError, nearest
from plait.plans.layout import Layout
from plait.plans.plan import Plan
from plait.plans.stage_file import (
    StageTable,
    cluster_in_file,
    device_names,
    require_devices,
    stage_values,
)
from plait.plans.training import TrainingPlan
from plait.plans.training_file import training_plan_from_table, training_values
from plait.spec.cluster import Cluster
from plait.spec.cluster_file import cluster_table
from plait.spec.job import Job
from plait.spec.tables import Table, read_toml, validated

FORMAT = 1
"""The version of the format; a file of another one is refused."""

TASKS = ("generate", "train")


_Count = Annotated[int, Field(ge=1)]


class PlanFile(NamedTuple):
    """What a plan file holds. `cluster` None: the plan is for this machine.

    `job`: what a plan of generation was made for, its users those of all replicas; None where nobody said.
    """

    plan: Plan | TrainingPlan
    cluster: Cluster | None = None
    job: Job | None = None


class _JobTable(Table):
    prompt_tokens: _Count
    max_tokens: _Count
    users: _Count = 1


class _PlanTable(Table):
    plait: int
    task: Literal["generate"] = "generate"
    model: str
    schedule: str
    micro_batches: int
    chunk: int
    context: int
    slots: int
    link_capacity: int = 2
    epoch: int = 0
    sequence: bool = False
    reason: str = ""
    axes: dict[str, int]
    stages: list[StageTable] = Field(min_length=1)
    job: _JobTable | None = None
    cluster: dict[str, Any] | None = None


def dump_plan(plan: Plan, cluster: Cluster | None = None, job: Job | None = None) -> str:
    """The plan as the text of a plan file, with its cluster, and the job that it was made for."""
    layout, names = plan.layout, device_names(cluster)
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
        **({"sequence": True} if layout.sequence else {}),
        "reason": plan.reason,
        "axes": dict(layout.axes),
        "stages": [stage_values(stage, names) for stage in layout.stages],
    }
    return tomli_w.dumps(values | _job_values(job) | _cluster_values(cluster))


def dump_any_plan(plan: Plan | TrainingPlan, cluster: Cluster | None = None, job: Job | None = None) -> str:
    """A plan of either task as the text of a plan file; `job` is of generation."""
    if isinstance(plan, Plan):
        return dump_plan(plan, cluster, job)
    values = {"plait": FORMAT, "task": "train", **training_values(plan, device_names(cluster))}
    return tomli_w.dumps(values | _cluster_values(cluster))


def _job_values(job: Job | None) -> dict[str, Any]:
    """Its context is the plan's."""
    return {} if job is None else {"job": {name: getattr(job, name) for name in _JobTable.model_fields}}


def _cluster_values(cluster: Cluster | None) -> dict[str, Any]:
    return {} if cluster is None else {"cluster": cluster_table(cluster)}


def plan_from_table(values: dict[str, Any], what: str = "the plan") -> Plan:
    """The plan of generation that plain values describe. Errors: PlanError: every fault, and the nearest known key."""
    plan = plan_file_from_table(values, what).plan
    if not isinstance(plan, Plan):
        raise PlanError(f"{what} is of training, and one of generation is needed (plait plan … --task generate)")
    return plan


def plan_file_from_table(values: dict[str, Any], what: str = "the plan") -> PlanFile:
    """The plan of either task that plain values describe. Errors: PlanError."""
    if values.get("plait") != FORMAT:
        raise PlanError(f"{what} has format {values.get('plait')!r}, but this version reads plait = {FORMAT}")
    task = values.get("task", "generate")
    if task not in TASKS:
        raise PlanError(f"{what} has the unknown task {task!r}: {nearest(str(task), TASKS)}")
    if task == "train":
        plan, cluster = training_plan_from_table(values, what)
        return _fitting(PlanFile(plan, cluster))
    table = validated(_PlanTable, values, what, PlanError)
    cluster = cluster_in_file(table.cluster, what)
    return _fitting(PlanFile(_plan(table, cluster), cluster, _job(table, what)))


def _job(table: _PlanTable, what: str) -> Job | None:
    if table.job is None:
        return None
    try:
        return Job(**table.job.model_dump(), context=table.context)
    except SpecError as error:
        raise PlanError(f"{what}: {error}") from None


def _plan(table: _PlanTable, cluster: Cluster | None) -> Plan:
    names = device_names(cluster)
    stages = tuple(stage.stage(names) for stage in table.stages)
    return Plan(
        table.model,
        Layout(table.axes, stages, table.link_capacity, table.epoch, table.sequence),
        table.schedule,
        table.micro_batches,
        table.chunk,
        table.context,
        table.slots,
        table.reason,
    )


def _fitting(file: PlanFile) -> PlanFile:
    require_devices(file.plan.layout, file.cluster)
    return file


def plan_from_text(text: str) -> Plan:
    """The plan that `dump_plan` wrote. Errors: PlanError."""
    return plan_from_table(tomllib.loads(text))


def load_plan(path: Path) -> Plan:
    """Read a plan file of generation. Errors: PlanError."""
    return plan_from_table(read_toml(path, "plan file", PlanError), f"plan file {path}")


def load_plan_file(path: Path) -> PlanFile:
    """Read a plan file of either task, and its cluster. Errors: PlanError."""
    return plan_file_from_table(read_toml(path, "plan file", PlanError), f"plan file {path}")


def load_any_plan(path: Path) -> Plan | TrainingPlan:
    """Read a plan file of either task. Errors: PlanError."""
    return load_plan_file(path).plan


def save_plan(plan: Plan | TrainingPlan, path: Path, cluster: Cluster | None = None, job: Job | None = None) -> None:
    """Write a plan file, with the cluster that it is for, and the job that a plan of generation was made for."""
    path.write_text(dump_any_plan(plan, cluster, job), encoding="utf-8")
