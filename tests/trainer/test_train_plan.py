"""What is planned where nobody says, what a plan file decides, and what is refused."""

from __future__ import annotations

import platform
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest

from plait.errors import CapacityError, PlanError
from plait.plans.file import save_plan
from plait.plans.hosts import on_hosts
from plait.plans.split import Split
from plait.plans.training import TrainingPlan
from plait.spec.inline import inline_spec
from plait.spec.tensors import model_tensors
from plait.trainer import train_memory
from plait.trainer.settings import Rate, Settings
from plait.trainer.train_memory import require_memory, states_bytes
from plait.trainer.train_options import TrainOptions, parse_steps
from plait.trainer.train_plan import Started, make_plan, make_settings, read_given, require_this_host, require_trainable

SPEC = inline_spec("llama:layers=8,hidden=64,heads=4")


def plan(cores: int = 4, ranks: int | None = None, here: int | None = None, **asked: Any) -> TrainingPlan:
    options = TrainOptions(**asked)
    return make_plan(options, SPEC, read_given(options), Started(cores, ranks, here)).plan


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, ("1f1b", 1, 8, 8, 1)),
        ({"dp": 2}, ("1f1b", 1, 8, 16, 1)),
        ({"pp": 2}, ("1f1b", 4, 2, 8, 1)),
        ({"pp": 8}, ("1f1b", 16, 1, 16, 1)),
        ({"dp": 2, "pp": 2, "batch": 12}, ("1f1b", 3, 2, 12, 1)),
        ({"pp": 2, "batch": 7}, ("1f1b", 7, 1, 7, 1)),
        ({"pp": 2, "virtual": 2}, ("interleaved", 4, 2, 8, 2)),
        ({"pp": 4, "micro_batches": 3}, ("1f1b", 3, 2, 6, 1)),
        ({"batch": 6, "micro_batches": 3}, ("1f1b", 3, 2, 6, 1)),
    ],
)
def test_what_nobody_asked_for(asked: dict[str, Any], expected: tuple[Any, ...]) -> None:
    made = plan(**asked)
    setup = made.setup
    assert (setup.schedule, setup.micro_batches, setup.micro_batch, made.batch, setup.virtual) == expected
    assert made.sequence == 128
    assert made.layout.stages[0].dtype == "float32"


@pytest.mark.parametrize(
    ("asked", "threads"),
    [
        ({}, 4),
        ({"dp": 2}, 2),
        ({"dp": 2, "pp": 2}, 1),
        ({"pp": 2, "schedule": "layerwise"}, 4),
        ({"dp": 8}, 1),
        ({"dp": 2, "threads": 3}, 3),
    ],
)
def test_threads_are_cores_for_each_rank_that_computes_at_once(asked: dict[str, Any], threads: int) -> None:
    assert {stage.threads for stage in plan(**asked).layout.stages} == {threads}


def test_a_launchers_ranks_make_the_replicas_and_share_their_own_hosts_cores() -> None:
    made = plan(ranks=8, here=2, pp=2)
    assert (made.setup.split, made.layout.stages[0].threads) == (Split(dp=4, pp=2), 2)


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        (
            2,
            "the mesh has 4 ranks (dp × pp × tp = 2 × 2 × 1), but 2 were started: 2 too few; start as many "
            "(torchrun --nproc-per-node), or give another mesh",
        ),
        (
            5,
            "the mesh has 4 ranks (dp × pp × tp = 2 × 2 × 1), but 5 were started: 1 too many; start as many "
            "(torchrun --nproc-per-node), or give another mesh",
        ),
    ],
)
def test_a_mesh_of_another_size_than_the_launchers(ranks: int, message: str) -> None:
    with pytest.raises(PlanError) as error:
        plan(ranks=ranks, here=ranks, dp=2, pp=2)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"dp": 0}, "--dp 0 was given, but must be at least 1"),
        ({"sequence_length": 0}, "--sequence-length 0 was given, but must be at least 1"),
        ({"micro_batches": 0}, "--micro-batches 0 was given, but must be at least 1"),
        ({"dtype": "float16"}, "unknown --dtype 'float16': did you mean 'bfloat16'?"),
        ({"recompute": "half"}, "unknown --recompute 'half': known: full, none, selective"),
        (
            {"dp": 3, "batch": 16, "micro_batches": 2},
            "a batch of 16 sequences cannot be divided into dp 3 × 2 micro-batches: type --batch 12 or 18, or --dp 1, "
            "2, 4 or 8",
        ),
    ],
)
def test_refusals(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError) as error:
        plan(**asked)
    assert str(error.value) == message


# --- plan files ---------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    place = tmp_path / "plan.toml"
    save_plan(plan(dp=2, pp=2, zero=1, recompute="full"), place)
    return place


def test_a_plan_file_decides(file: Path) -> None:
    asked = {"dp": 2, "pp": 2, "tp": 1, "zero": 1, "recompute": "full", "batch": 16, "sequence": False}
    assert plan(plan=file) == plan(plan=file, **asked) == plan(dp=2, pp=2, zero=1, recompute="full")
    assert plan(plan=file, threads=3).layout.stages[0].threads == 3


@pytest.mark.parametrize(
    ("asked", "flag", "given", "planned"),
    [
        ({"dp": 1}, "dp", "1", "2"),
        ({"batch": 32}, "batch", "32", "16"),
        ({"schedule": "gpipe"}, "schedule", "gpipe", "1f1b"),
        ({"sequence": True}, "sequence", "yes", "no"),
        ({"sequence_length": 64}, "sequence-length", "64", "128"),
        ({"micro_batches": 2}, "micro-batches", "2", "4"),
        ({"dtype": "bfloat16"}, "dtype", "bfloat16", "float32"),
    ],
)
def test_flags_that_contradict_the_plan_file(
    file: Path, asked: dict[str, Any], flag: str, given: str, planned: str
) -> None:
    with pytest.raises(PlanError) as error:
        plan(plan=file, **asked)
    assert str(error.value) == (
        f"--{flag} {given} was given, but plan file {file} says {planned}: leave --{flag} out, or plan again with it"
    )


def test_a_plan_of_generation(tmp_path: Path) -> None:
    place = tmp_path / "plan.toml"
    place.write_text(
        'plait = 1\nmodel = "demo"\nschedule = "layerwise"\nmicro_batches = 1\nchunk = 64\ncontext = 64\nslots = 1\n'
        "axes = { pp = 1 }\n[[stages]]\nlayers = [0, 30]\nranks = [0]\n"
    )
    with pytest.raises(PlanError) as error:
        read_given(TrainOptions(plan=place))
    assert str(error.value) == (
        f"plan file {place} is of generation, and one of training is needed "
        "(plait plan MODEL --task train -o FILE writes one)"
    )


def test_what_can_be_planned_but_not_trained(tmp_path: Path) -> None:
    place = tmp_path / "plan.toml"
    made = plan()
    save_plan(replace(made, setup=replace(made.setup, zero=2)), place)
    with pytest.raises(PlanError) as error:
        plan(plan=place)
    assert str(error.value) == "the plan has zero = 2, but only 0 and 1 can be trained yet: plan again"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"device": "cuda"},
            "stage 0 is on device 'cuda', but only 'cpu' can be trained on yet: write device = 'cpu', or look at "
            "this plan with plait simulate",
        ),
        (
            {"dtype": "float16", "weights": "float16"},
            "stage 0 computes in float16, but only float32 and bfloat16 can be trained yet",
        ),
        (
            {"weights": "int8"},
            "stage 0 stores weights as int8 but computes in float32: to train, write weights = 'float32'",
        ),
    ],
)
def test_stages_that_cannot_be_trained(changes: dict[str, Any], message: str) -> None:
    made = plan()
    stages = tuple(replace(stage, **changes) for stage in made.layout.stages)
    with pytest.raises(PlanError) as error:
        require_trainable(replace(made, layout=replace(made.layout, stages=stages)))
    assert str(error.value) == message


def test_a_plan_of_another_host() -> None:
    made = plan()
    require_this_host(made)
    stages = tuple(replace(stage, host="elsewhere") for stage in made.layout.stages)
    with pytest.raises(PlanError) as error:
        require_this_host(replace(made, layout=replace(made.layout, stages=stages)))
    assert str(error.value) == (
        f"the plan is for host 'elsewhere', and this machine is {platform.node()!r}: start its ranks there with "
        "torchrun, or write host = 'localhost' in its stages to try it here"
    )


def test_a_plan_of_several_hosts() -> None:
    made = plan(pp=2)
    there = replace(made, layout=on_hosts(made.layout, {0: "left", 1: "right"}))
    with pytest.raises(PlanError) as error:
        require_this_host(there)
    assert str(error.value) == (
        f"the plan is for host 'left', and this machine is {platform.node()!r}: start its ranks there with torchrun, "
        "or give --emulate 1gbit,200us to try it here"
    )


# --- settings and steps -------------------------------------------------------------------------------------


def test_settings_follow_the_options() -> None:
    assert make_settings(TrainOptions(), fresh=True) == Settings(Rate(1e-3, "constant", 0, 100), clip=1.0)
    asked = TrainOptions(
        lr=0.1,
        lr_schedule="cosine",
        warmup=3,
        steps=9,
        optimizer="sgd",
        clip=0,
        freeze=("embed.*",),
        dropout=0.1,
        seed=7,
    )
    assert make_settings(asked, fresh=False) == Settings(
        Rate(0.1, "cosine", 3, 9), "sgd", frozen=("embed.*",), dropout=0.1, seed=7
    )
    assert make_settings(TrainOptions(), fresh=False).rate.peak == 2e-5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (TrainOptions(steps=0), "--steps 0 was given, but must be at least 1"),
        (TrainOptions(lr_schedule="cosin"), "unknown --lr-schedule 'cosin': did you mean 'cosine'?"),
        (TrainOptions(optimizer="adam"), "unknown --optimizer 'adam': did you mean 'adamw'?"),
    ],
)
def test_settings_that_cannot_be(options: TrainOptions, message: str) -> None:
    with pytest.raises(PlanError) as error:
        make_settings(options, fresh=True)
    assert str(error.value) == message


def test_steps_by_number() -> None:
    assert parse_steps("5") == (5,)
    assert parse_steps("3,10-12") == (3, 10, 11, 12)
    assert TrainOptions(steps=20).kept_steps == (19,)
    assert TrainOptions(steps=20, timeline=(4, 2, 4)).kept_steps == (2, 4)
    for text in ("", "x", "3-", "5-3", "-1", "1,,2"):
        with pytest.raises(PlanError) as error:
            parse_steps(text)
        assert str(error.value) == f"--timeline {text!r} names no steps: write them as in 5, or 3,10-12"
    with pytest.raises(PlanError) as error:
        TrainOptions(steps=5, timeline=(4, 5)).kept_steps  # noqa: B018
    assert str(error.value) == (
        "--timeline names step 5, but 5 steps, 0 to 4, are trained: name others, or train --steps 6"
    )


# --- memory -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "settings", "bytes_an_item"),
    [
        ({}, Settings(Rate(1.0)), 16),
        ({}, Settings(Rate(1.0), "sgd"), 8),
        ({"dtype": "bfloat16"}, Settings(Rate(1.0)), 18),
        ({"dtype": "bfloat16"}, Settings(Rate(1.0), "sgd"), 10),
        ({"dp": 2, "zero": 1}, Settings(Rate(1.0)), 24),  # of both replicas
        ({"pp": 2, "tp": 2}, Settings(Rate(1.0)), 16),
    ],
)
def test_what_a_run_holds(asked: dict[str, Any], settings: Settings, bytes_an_item: float) -> None:
    made = plan(**asked)
    items = sum(prod(shape) for shape in model_tensors(SPEC).values())
    held = sum(states_bytes(made, SPEC, settings, rank) for rank in range(made.layout.ranks))
    # norms are on every rank of a tensor group
    assert items * bytes_an_item <= held <= items * bytes_an_item * (1.01 if "tp" in asked else 1)


def test_a_model_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_memory, "free_memory_here", lambda: 1 << 20)
    made = plan(dp=2)
    require_memory(made, SPEC, Settings(Rate(1.0)), range(0))
    with pytest.raises(CapacityError) as error:
        require_memory(made, SPEC, Settings(Rate(1.0)), range(2))
    assert str(error.value) == (
        f"weights, gradients and optimizer states of {SPEC.name} take 14.0 MiB on this host, and 1.0 MiB are free: "
        "13.0 MiB too little; take a smaller model, fewer replicas or --zero 1, or more hosts (torchrun)"
    )


def test_a_launcher_numbers_ranks_host_by_host() -> None:
    assert Started(4).held(6) == range(6)
    assert Started(4, 6, 2, 4).held(6) == range(4, 6)
