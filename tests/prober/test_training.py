"""Training measured on this host: what is measured for a plan, and that every figure is there. No time is asserted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import platformdirs
import pytest

from plait.costs.measured_training import StageTimes, TrainingKernel
from plait.errors import PlanError
from plait.planner.training_local import local_training_plan
from plait.plans.split import Split, TrainingSetup
from plait.plans.training import TrainingPlan
from plait.prober.training import job_of, measured_training_costs
from plait.schedules.step import executed_round
from plait.simulator.simulate import simulate
from plait.spec.model import ModelSpec, Rope
from plait.timeline.training_metrics import training_metrics

SPEC = ModelSpec("tiny", "llama", 3, 24, 4, 2, 6, 40, 97, 64, 1e-5, Rope(1e4, 6), (None, 4, None))


@pytest.fixture(autouse=True)
def kept_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda name: str(tmp_path / name))


def planned(split: Split, schedule: str = "1f1b", threads: int = 1) -> TrainingPlan:
    setup = TrainingSetup(split, schedule, 2, 2, sequence_split=split.tp > 1)
    return local_training_plan(SPEC, setup, 4 * split.dp, 8, "float32", threads=threads)


def test_what_is_measured() -> None:
    """As many at once as there are cores for, in whole tensor groups, at most four; layer-wise one position."""
    for split, schedule, cores, threads, active in (
        (Split(dp=2, pp=3), "1f1b", 8, 1, 4),
        (Split(dp=2, pp=3), "1f1b", 2, 1, 2),
        (Split(pp=3), "layerwise", 8, 1, 1),
        (Split(dp=2), "1f1b", 8, 4, 2),
        (Split(tp=4), "1f1b", 2, 1, 4),
        (Split(tp=3, dp=2), "1f1b", 8, 1, 3),
        (Split(), "1f1b", 8, 1, 1),
    ):
        job = job_of(planned(split, schedule, threads=threads), SPEC, TrainingKernel("float32", threads), cores)
        assert (job.active, job.tp, job.linked) == (active, split.tp, split.ranks > 1)
    assert (job.rows, job.length, job.spec.layers, len(job.spec.windows)) == (2, 8, 4, 4)
    assert job_of(planned(Split(pp=2), "zb-h1"), SPEC, TrainingKernel("float32", 1), 2).split
    assert not job.split


def passes(times: StageTimes) -> list[float]:
    found = (times.layer, times.embedding, times.head)
    return [seconds for one in found for seconds in (one.forward_s, one.backward_s, one.input_s, one.weight_s)]


def test_a_tensor_group_with_a_split_backward() -> None:
    """Everything is there, and a step can be predicted from it; measured once, then kept."""
    plan = planned(Split(pp=2, tp=2), "zb-h1")
    said: list[str] = []
    costs = measured_training_costs(plan, SPEC, say=said.append, pass_s=0.01)
    ((kernel, times),) = costs.times.items()
    assert kernel == TrainingKernel("float32", 1)
    assert min(passes(times.computing)) >= 0
    assert min(times.computing.layer.forward_s, times.computing.layer.input_s, times.computing.layer.weight_s) > 0
    assert times.exchanging.layer.forward_s > 0
    assert times.exchanging.layer.weight_s == 0
    assert min(times.update_s, times.norm_s) > 0
    assert times.link is not None
    assert times.link.bandwidth_bytes_per_s > 0
    timeline = simulate(plan.layout, [executed_round(0, plan, SPEC)], costs, SPEC, replicas=False)
    found = training_metrics(timeline, plan.layout)
    assert 0 < found["compute_s"] < 4 * found["step_s"]
    again = measured_training_costs(plan, SPEC, say=said.append, pass_s=0.01)
    assert again.times == costs.times
    assert said == ["measuring training in float32 on this machine, once"]


def test_one_rank_alone() -> None:
    costs = measured_training_costs(planned(Split()), SPEC, pass_s=0.01)
    (times,) = costs.times.values()
    assert times.link is None
    assert passes(times.exchanging) == [0.0] * 12
    # where the schedule never splits the backward, its halves are not measured
    assert times.computing.layer.input_s == times.computing.layer.backward_s / 2


def test_other_hosts_cannot_be_measured_here() -> None:
    plan = planned(Split(pp=2))
    far = tuple(replace(stage, host=f"host-{at}") for at, stage in enumerate(plan.layout.stages))
    with pytest.raises(PlanError) as error:
        measured_training_costs(replace(plan, layout=replace(plan.layout, stages=far)), SPEC)
    assert str(error.value) == ("only the CPU of one host can be measured here, but the plan names ['host-1'] too")
