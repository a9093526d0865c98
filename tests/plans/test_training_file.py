"""Plans of training: their files, and what is said of those that contradict themselves."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.errors import PlanError
from plait.plans.check_training import check_training_plan
from plait.plans.file import PlanFile, dump_any_plan, load_any_plan, load_plan, load_plan_file, save_plan
from plait.plans.layout import Layout, Stage
from plait.plans.split import Recompute, Split, TrainingSetup
from plait.plans.training import TrainingPlan
from plait.spec.cluster import Cluster, Device, Host, Network, Wire
from plait.spec.model import Experts, ModelSpec, Rope

SPEC = ModelSpec("tiny", "llama", 8, 64, 4, 2, 16, 128, 100, 512, 1e-5, Rope(10_000.0, 16), (None,) * 8)
GPT = replace(SPEC, name="tiny-gpt", rope=None)
MOE = replace(SPEC, name="tiny-moe", experts=Experts(4, 2, 32))


CUBE = Split(dp=2, pp=2, tp=2)


def made(split: Split = CUBE, virtual: int = 2, micro_batches: int = 4, **changes: Any) -> TrainingPlan:
    """A plan over the model's 8 layers, stage s on position s mod pp."""
    width = split.ranks // split.pp
    count = split.pp * virtual
    ends = [8 * index // count for index in range(count + 1)]
    stages = tuple(
        Stage(cut, tuple(range(index % split.pp * width, (index % split.pp + 1) * width)), "bfloat16", "bfloat16")
        for index, cut in enumerate(pairwise(ends))
    )
    axes = {"dp": split.dp, "pp": split.pp, "tp": split.tp, "ep": split.ep}
    setup = TrainingSetup(split, "interleaved" if virtual > 1 else "1f1b", 2, micro_batches, virtual, "selective", 1)
    plan = TrainingPlan("tiny", Layout(axes, stages, 4), setup, 2 * micro_batches * split.dp * split.ep, 128, "why")
    return replace(plan, **changes)


def cluster(devices: int) -> Cluster:
    """Hosts of 4 equal devices."""
    hosts = tuple(Host(f"node-{index}") for index in range(devices // 4))
    each = tuple(
        Device(f"{host.name}.{index}", host.name, 2**30, {"bfloat16": 1e12}, 1e11, "a100", "cuda")
        for host in hosts
        for index in range(4)
    )
    return Cluster(hosts, each, network=Network(Wire(1e-6, 1e10), Wire(1e-6, 1e10, 1e10)))


sizes = st.sampled_from([1, 2, 3])


@given(
    sizes,
    st.sampled_from([1, 2]),
    sizes,
    st.sampled_from([1, 2]),
    st.sampled_from(["none", "selective", "full"]),
    st.integers(0, 3),
    st.booleans(),
)
def test_round_trip(dp: int, pp: int, tp: int, virtual: int, recompute: Recompute, zero: int, flag: bool) -> None:
    import tomllib

    from plait.plans.file import plan_file_from_table

    plan = made(Split(dp, pp, tp), virtual)
    setup = replace(plan.setup, recompute=recompute, zero=zero, sequence_split=flag, fused_attention=not flag)
    plan = replace(plan, setup=setup)
    check_training_plan(plan, SPEC)
    assert plan_file_from_table(tomllib.loads(dump_any_plan(plan))).plan == plan


def test_many_ranks_and_their_cluster(tmp_path: Path) -> None:
    """Ranks in a row are a range, and devices in the cluster's order are not listed: the file stays short."""
    plan = made(Split(dp=512, pp=2, tp=4))
    machines = cluster(4096)
    names = tuple(device.name for device in machines.devices)
    stages = tuple(replace(stage, devices=tuple(names[rank] for rank in stage.ranks)) for stage in plan.layout.stages)
    plan = replace(plan, layout=replace(plan.layout, stages=stages))
    save_plan(plan, tmp_path / "plan.toml", machines)
    assert (tmp_path / "plan.toml").stat().st_size < 3000
    assert load_plan_file(tmp_path / "plan.toml") == PlanFile(plan, machines)
    assert load_any_plan(tmp_path / "plan.toml") == plan


def test_generation_refuses_it(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    save_plan(made(), path)
    with pytest.raises(PlanError) as caught:
        load_plan(path)
    assert str(caught.value) == (
        f"plan file {path} is of training, and one of generation is needed (plait plan … --task generate)"
    )


def with_setup(**changes: Any) -> TrainingPlan:
    plan = made()
    return replace(plan, setup=replace(plan.setup, **changes))


def with_stages(
    *, ranks: dict[int, tuple[int, ...]] | None = None, layers: tuple[int, int] | None = None
) -> TrainingPlan:
    plan = made()
    stages = list(plan.layout.stages)
    for index, of_stage in (ranks or {}).items():
        stages[index] = replace(stages[index], ranks=of_stage)
    if layers:
        stages[-1] = replace(stages[-1], layers=layers)
    return replace(plan, layout=replace(plan.layout, stages=tuple(stages)))


@pytest.mark.parametrize(
    ("plan", "spec", "message"),
    [
        (
            made(batch=33),
            SPEC,
            "batch is 33 sequences, but 4 micro-batches of 2 over dp × ep = 2 make 16",
        ),
        (with_setup(zero=4), SPEC, "zero is 4, but must be 0, 1, 2 or 3"),
        (with_setup(recompute="some"), SPEC, "recompute is 'some', but must be one of none, selective, full"),
        (with_setup(micro_batch=0), SPEC, "micro_batch is 0, but must be at least 1"),
        (with_setup(virtual=1), SPEC, "there are 4 stages, but 2 positions of 1 make 2"),
        (with_setup(split=Split(dp=2, pp=2, tp=4)), SPEC, "axis tp is 2 in the layout, but 4 in the split"),
        (
            with_stages(ranks={1: (0, 1, 2, 3)}),
            SPEC,
            "positions hold [3, 1] stages, but each of 2 must hold 2",
        ),
        (
            with_stages(ranks={1: (4, 5, 6, 8), 3: (4, 5, 6, 8)}),
            SPEC,
            "the positions name 8 ranks, but must name each of 0 to 7 once",
        ),
        (
            with_stages(layers=(6, 7)),
            SPEC,
            "the cut covers 7 layers, but the model has 8: 1 layer too few",
        ),
        (made(Split(tp=5)), SPEC, "tp is 5, but tiny has 4 heads: 1 rank would have none"),
        (made(Split(ep=2)), SPEC, "ep is 2, but tiny has no experts"),
        (made(Split(ep=5)), MOE, "ep is 5, but tiny-moe has 4 experts: 1 rank would have none"),
        (made(sequence=1024), GPT, "sequence is 1024 tokens, but tiny-gpt has positions for 512: 512 too many"),
    ],
)
def test_plans_that_cannot_be(plan: TrainingPlan, spec: ModelSpec, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        check_training_plan(plan, spec)
    assert str(caught.value) == message


def test_rotary_positions_have_no_end() -> None:
    check_training_plan(made(sequence=1024), SPEC)
    check_training_plan(made(Split(ep=4)), MOE)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("micro_batches = 4", "microbatches = 4", None),
        ("zero = 1", "zero = 5", "setup.zero is 5: input should be less than or equal to 3"),
        (
            'recompute = "selective"',
            'recompute = "fool"',
            "setup.recompute is 'fool': input should be 'none', 'selective' or 'full'",
        ),
        ("dp = 2", "dp = 0", "setup.split.dp is 0: input should be greater than or equal to 1"),
    ],
)
def test_faults_of_the_file(tmp_path: Path, old: str, new: str, problem: str | None) -> None:
    text = dump_any_plan(made())
    head, tail = text.split("[setup]")
    assert old in tail
    (tmp_path / "plan.toml").write_text(f"{head}[setup]{tail.replace(old, new, 1)}")
    with pytest.raises(PlanError) as caught:
        load_any_plan(tmp_path / "plan.toml")
    what = f"plan file {tmp_path / 'plan.toml'}"
    if problem is None:
        assert str(caught.value) == (
            f"{what} has 2 faults:\n  key 'setup.micro_batches' is missing\n"
            "  unknown key 'setup.microbatches': did you mean 'micro_batches'?"
        )
    else:
        assert str(caught.value) == f"{what} has a fault:\n  {problem}"
