from __future__ import annotations

import pytest

from plait.errors import PlanError
from plait.planner.plan import Limits, plan
from plait.planner.training import plan_training
from plait.planner.training_limits import nearest_divisors
from plait.spec.job import Job, TrainingJob

from .training_clusters import cluster, model, unequal

JOB = TrainingJob(64, 512)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (Limits(dp=4, pp=4), "--dp 4 --pp 4 needs 16 devices, but there are 8: 8 too few"),
        (
            Limits(dp=8, schedule="gpipe"),
            "--dp 8 --schedule gpipe needs at least 16 devices, but there are 8: 8 too few",
        ),
        (
            Limits(virtual=2, schedule="1f1b"),
            "--virtual 2 needs --schedule interleaved, zb-v or dualpipe-v, but --schedule 1f1b was asked for, which "
            "has one stage a position",
        ),
        (
            Limits(virtual=1, schedule="interleaved"),
            "--schedule interleaved needs --virtual 2 or more, but --virtual 1 was asked for",
        ),
        (Limits(virtual=1, schedule="zb-v"), "--schedule zb-v needs --virtual 2, but --virtual 1 was asked for"),
        (
            Limits(virtual=3, schedule="zb-v"),
            "--schedule zb-v has two stages a position, but --virtual 3 was asked for: --virtual 2",
        ),
        (
            Limits(virtual=4, pp=4),
            "--virtual 4 with --pp 4 makes 16 stages, but tiny has 8 layers and every stage needs at least one",
        ),
        (Limits(virtual=2, pp=1), "--virtual 2 needs a pipeline, but --pp 1 was asked for: --pp 2 or more"),
        (
            Limits(pp=1, schedule="layerwise"),
            "--schedule layerwise needs a pipeline, but --pp 1 was asked for: --pp 2 or more",
        ),
        (Limits(micro_batch=5), "--micro-batch 5 does not divide the batch of 64: --micro-batch 4 or 8 would"),
        (
            Limits(dp=4, micro_batch=32),
            "--micro-batch 32 does not divide the 16 sequences of a replica: --micro-batch 16 would",
        ),
        (Limits(dp=3), "--dp 3 does not divide the batch of 64: --dp 2 or 4 would"),
        (Limits(ep=2), "--ep 2 was asked for, but tiny has no experts: --ep 1"),
        (
            Limits(pp=9),
            "--pp 9 was asked for, but tiny has 8 layers and every stage needs at least one: --pp 8 is the most",
        ),
        (Limits(tp=32), "--tp 32 was asked for, but tiny has 16 heads: --tp 16 is the most"),
    ],
)
def test_limits_that_cannot_be_met(limits: Limits, words: str) -> None:
    with pytest.raises(PlanError) as error:
        plan(model(), cluster(), JOB, limits=limits)
    assert str(error.value) == words


@pytest.mark.parametrize(
    ("limits", "batch", "words"),
    [
        (Limits(ep=3), 64, "--ep 3 does not divide the 4 experts of tiny: --ep 2 or 4 would"),
        (Limits(ep=4), 6, "--ep 4 does not divide the batch of 6: --ep 3 or 6 would"),
        (Limits(dp=2, ep=2), 6, "--dp 2 --ep 2 divides the batch 4 ways, but 4 does not divide the batch of 6"),
    ],
)
def test_limits_of_experts(limits: Limits, batch: int, words: str) -> None:
    with pytest.raises(PlanError) as error:
        plan(model(experts=4), cluster(), TrainingJob(batch, 512), limits=limits)
    assert str(error.value) == words


def test_a_sequence_longer_than_the_model_was_made_for() -> None:
    with pytest.raises(PlanError) as error:
        plan_training(model(), cluster(), TrainingJob(16, 5000))
    assert str(error.value) == (
        "a sequence has 5000 tokens, but tiny was made for at most 4096: 904 too many (--seq 4096 is the most)"
    )


@pytest.mark.parametrize("schedule", ["layerwise", "gpipe", "zb-h1", "interleaved", "dualpipe-v", "1f1b"])
def test_a_schedule_that_is_asked_for_is_planned(schedule: str) -> None:
    choice = plan(model(), cluster(), JOB, limits=Limits(schedule=schedule))
    assert {one.schedule for one in choice.candidates} == {schedule}
    assert schedule == "1f1b" or all(one.split.pp > 1 for one in choice.candidates)


@pytest.mark.parametrize("schedule", ["layerwise", "gpipe", "zb-h1", "1f1b"])
def test_a_schedule_on_unequal_machines_too(schedule: str) -> None:
    choice = plan(model(), unequal((300, 80), (200, 80)), JOB, limits=Limits(schedule=schedule))
    assert {one.schedule for one in choice.candidates} == {schedule}
    assert schedule == "1f1b" or all(one.split.pp > 1 for one in choice.candidates)


@pytest.mark.parametrize("schedule", ["1f1b", "foo"])
def test_a_schedule_of_training_for_generation(schedule: str) -> None:
    with pytest.raises(PlanError) as error:
        plan(model(), cluster(), Job(64, 64, 1), limits=Limits(schedule=schedule))
    assert str(error.value) == f"unknown schedule {schedule!r} for generation: known: layerwise, pipelined"


def test_nearest_divisors() -> None:
    assert nearest_divisors(64, 5) == "4 or 8"
    assert nearest_divisors(7, 9) == "7"
