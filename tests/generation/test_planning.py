"""The plan of a generation, and what lost against it: told by the run, and by its report without a search."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plait.generation.machine import ThisMachine
from plait.generation.planning import Options, Planned, make_plan
from plait.generation.reporting import look_at
from plait.planner.capacity import need_by_host
from plait.planner.local_words import ONE_PROCESS
from plait.plans.file import dump_plan
from plait.plans.layout import Layout
from plait.reports.view import Lost
from plait.timeline.record import RunRecord
from tests.planner.test_local import SPEC, Weighing

MIB = 1 << 20


class Small(ThisMachine):
    """Two threads, and so much memory that is free; of one process alone so much."""

    threads = 2

    def __init__(self, free_bytes: int = 1 << 40, alone_bytes: int | None = None) -> None:
        self.free, self.alone = free_bytes, free_bytes if alone_bytes is None else alone_bytes

    def free_bytes(self, layout: Layout) -> Mapping[str, int]:
        return {"localhost": self.alone if layout.ranks == 1 else self.free}


def planned(machine: ThisMachine, **asked: Any) -> Planned:
    opened = SimpleNamespace(spec=SPEC, name="tiny")
    options = Options(max_tokens=20, context=128, **asked)
    return make_plan(opened, [range(40)] * 4, options, lambda plan, spec: Weighing(), None, machine)  # type: ignore[arg-type]


def test_what_lost_comes_with_the_plan() -> None:
    plan, others = planned(Small(), stages=2)
    assert (plan.schedule, len(plan.layout.stages)) == ("layerwise", 2)
    names = ["pipelined with 1 micro-batch", "pipelined with 2 micro-batches", ONE_PROCESS]
    assert [one.name for one in others] == names
    assert planned(Small()).others == ()  # one process: there was nothing to choose


def test_one_process_that_does_not_fit_is_told_so() -> None:
    others = planned(Small(alone_bytes=10 * MIB), stages=2).others
    assert [one.name for one in others][2:] == [ONE_PROCESS]
    assert others[2].predicted == {}
    assert others[2].loses.startswith("tiny does not fit on localhost: it needs ")
    assert " 10.0 MiB are free, " in others[2].loses


def test_float32_that_does_not_fit_is_told_so() -> None:
    """A byte less is free than two processes need for it."""
    (need,) = need_by_host(planned(Small(), stages=2).plan, SPEC).values()
    plan, others = planned(Small(need - 1), stages=2)
    assert {stage.dtype for stage in plan.layout.stages} == {"bfloat16"}
    assert plan.reason.endswith("; bfloat16, as float32 does not fit")
    assert [one.name for one in others][-1] == "float32"
    assert others[-1].loses.startswith("tiny does not fit on localhost: it needs ")


@pytest.mark.parametrize("search", [True, False])
def test_a_report_tells_what_the_run_kept(search: bool, tmp_path: Path) -> None:
    plan, others = planned(Small(), stages=2)
    told = [{"name": one.name, "predicted": dict(one.predicted), "loses": one.loses} for one in others[:1]]
    odd = [{"name": "float32", "predicted": {}, "loses": "too large"}, {"name": 3}, "x", {"predicted": {"job_s": 1}}]
    RunRecord(dump_plan(plan), (), {}, (), None, None, {"others": told + odd}).save(tmp_path / "run")
    view = look_at(tmp_path / "run", search=search).view
    assert view.reasons == (plan.reason,)
    assert view.lost == (
        Lost("pipelined with 1 micro-batch", "258 ms for the job", others[0].loses),
        Lost("float32", "cannot be", "too large"),
    )
    RunRecord(dump_plan(plan), result={"others": 3}, stages=()).save(tmp_path / "run")
    assert look_at(tmp_path / "run").view.lost == ()
