from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.errors import PlanError
from plait.plans.file import PlanFile, dump_plan, load_plan, load_plan_file, plan_from_text, save_plan
from plait.plans.layout import Layout, Stage
from plait.plans.plan import Plan, check_plan, check_runnable
from plait.plans.rules import DTYPE_BYTES
from plait.spec.cluster import Cluster, Device, Host, Network, Wire
from plait.spec.job import Job
from plait.spec.model import ModelSpec, Rope

SPEC = ModelSpec(
    "tiny", "llama", 8, 64, 4, 2, 16, 128, 100, 512, 1e-5, Rope(10_000.0, 16), (None,) * 8
)  # 8 layers, 512 positions


def plan(**changes: object) -> Plan:
    stages = (Stage((0, 5), (0,), "float32", "float32", 2), Stage((5, 8), (1,), "bfloat16", "bfloat16", 1))
    whole = Plan("demo", Layout({"pp": 2}, stages, 3, 7), "pipelined", 2, 128, 256, 4, 'a "reason" with µ')
    return replace(whole, **changes)  # type: ignore[arg-type]


cuts = st.lists(st.integers(1, 9), min_size=1, max_size=6)


@given(cuts, st.integers(1, 8), st.sampled_from(["float32", "bfloat16"]), st.text(max_size=20))
def test_round_trip(counts: list[int], threads: int, dtype: str, reason: str) -> None:
    ends = [sum(counts[: i + 1]) for i in range(len(counts))]
    stages = tuple(
        Stage(cut, (rank,), dtype, dtype, threads) for rank, cut in enumerate(zip([0, *ends[:-1]], ends, strict=True))
    )
    made = Plan("a/b", Layout({"pp": len(counts)}, stages, 2), "layerwise", 1, 64, 64, 1, reason)
    assert plan_from_text(dump_plan(made)) == made


def test_a_file(tmp_path: Path) -> None:
    save_plan(plan(), tmp_path / "plan.toml")
    assert load_plan(tmp_path / "plan.toml") == plan()
    check_plan(plan(), SPEC)


def test_the_job_that_a_plan_was_made_for(tmp_path: Path) -> None:
    """Its context is the plan's; a job that the context has no room for is refused."""
    made = Job(200, 56, 9)
    save_plan(plan(), tmp_path / "plan.toml", job=made)
    assert load_plan_file(tmp_path / "plan.toml") == PlanFile(plan(), None, replace(made, context=256))
    assert refusal(dump_plan(plan(), job=Job(200, 57))) == (
        "the plan: job: context is 256 positions, and a prompt of 200 and an answer of 57 tokens need 257: 1 more"
    )
    assert refusal(dump_plan(plan(), job=made).replace("users = 9", "user = 9")) == (
        "the plan has a fault:\n  unknown key 'job.user': did you mean 'users'?"
    )


def refusal(text: str) -> str:
    with pytest.raises(PlanError) as error:
        plan_from_text(text)
    return str(error.value)


def test_unknown_keys_name_the_nearest() -> None:
    text = dump_plan(plan()).replace("micro_batches", "microbatches").replace("threads = 2", "thread = 2")
    assert refusal(text).splitlines() == [
        "the plan has 3 faults:",
        "  key 'micro_batches' is missing",
        "  unknown key 'stages.0.thread': did you mean 'threads'?",
        "  unknown key 'microbatches': did you mean 'micro_batches'?",
    ]


def test_wrong_types_and_versions() -> None:
    assert refusal(dump_plan(plan()).replace("chunk = 128", 'chunk = "128"')) == (
        "the plan has a fault:\n  chunk is '128': input should be a valid integer"
    )
    assert refusal(dump_plan(plan()).replace("plait = 1", "plait = 2")) == (
        "the plan has format 2, but this version reads plait = 1"
    )


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(PlanError) as error:
        load_plan(tmp_path / "none.toml")
    assert str(error.value) == f"plan file {tmp_path / 'none.toml'}: no such file"
    (tmp_path / "bad.toml").write_text("a = ")
    with pytest.raises(PlanError) as error:
        load_plan(tmp_path / "bad.toml")
    assert str(error.value) == f"plan file {tmp_path / 'bad.toml'} is not TOML: Invalid value (at end of document)"


def with_stage(**changes: object) -> Plan:
    made = plan()
    first = replace(made.layout.stages[0], **changes)  # type: ignore[arg-type]
    return replace(made, layout=replace(made.layout, stages=(first, *made.layout.stages[1:])))


def swapped() -> Plan:
    made = plan()
    first, second = made.layout.stages
    stages = (replace(first, ranks=(1,)), replace(second, ranks=(0,)))
    return replace(made, layout=replace(made.layout, stages=stages))


def elsewhere(host: str) -> Plan:
    made = plan()
    stages = tuple(replace(stage, host=host, dtype="float32", weights="float32") for stage in made.layout.stages)
    return replace(made, layout=replace(made.layout, stages=stages))


def tensor_split(first_ranks: tuple[int, ...] = (0, 1), shares: tuple[int, ...] = ()) -> Plan:
    made = elsewhere("localhost")
    first, second = made.layout.stages
    last_ranks = tuple(rank for rank in range(4) if rank not in first_ranks)
    stages = (replace(first, ranks=first_ranks, shares=shares), replace(second, ranks=last_ranks))
    return replace(made, layout=replace(made.layout, axes={"pp": 2, "tp": 2}, stages=stages))


def sequence_split(made: Plan) -> Plan:
    return replace(made, layout=replace(made.layout, sequence=True))


def replicas() -> Plan:
    made = tensor_split()
    return replace(made, layout=replace(made.layout, axes={"pp": 2, "dp": 2}))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (plan(chunk=100), "chunk is 100, but must be a multiple of 64 positions"),
        (plan(micro_batches=0), "micro_batches is 0, but must be at least 1"),
        (plan(context=513), "context is 513 positions, but tiny was made for at most 512: 1 too many"),
        (with_stage(dtype="int7"), f"stage 0: unknown dtype 'int7' (known: {', '.join(sorted(DTYPE_BYTES))})"),
        (with_stage(threads=0), "stage 0 has 0 threads, but needs at least 1"),
        (with_stage(devices=("a", "b")), "stage 0 has 1 ranks, but names 2 devices"),
        (
            with_stage(shares=(3, 2)),
            "stage 0 has shares 3, 2, but its tensor group has 1 rank: write 1 number above 0, "
            "in proportion to the devices' speed",
        ),
        (
            tensor_split(shares=(2, 1, 1)),
            "stage 0 has shares 2, 1, 1, but its tensor group has 2 ranks: write 2 numbers above 0, "
            "in proportion to the devices' speed",
        ),
        (
            tensor_split(shares=(2, 0)),
            "stage 0 has shares 2, 0, but its tensor group has 2 ranks: write 2 numbers above 0, "
            "in proportion to the devices' speed",
        ),
        (
            sequence_split(plan()),
            "the plan splits activations along the sequence over a tensor group, but tp is 1: "
            "write sequence = false, or plan with --tp 2",
        ),
    ],
)
def test_plans_that_cannot_be(made: Plan, message: str) -> None:
    with pytest.raises(PlanError) as error:
        check_plan(made, SPEC)
    assert str(error.value) == message


LOOK = "or look at this plan with plait simulate"


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            with_stage(dtype="bfloat16"),
            "stage 0 stores weights as float32 but computes in bfloat16: not supported",
        ),
        (with_stage(weights="q4_0"), "stage 0: weights 'q4_0' cannot be run yet (known: bfloat16, float32)"),
        (
            with_stage(device="cuda"),
            "stage 0 is on device 'cuda', but only 'cpu' can be run yet: plan for the CPU of this machine, " + LOOK,
        ),
        (swapped(), "stage 0 is on ranks [1], but must be on rank 0 alone"),
        (tensor_split((0, 2)), "stage 0 is on ranks [0, 2], but must be on ranks [0, 1], in this order"),
        (tensor_split((1, 0)), "stage 0 is on ranks [1, 0], but must be on ranks [0, 1], in this order"),
        (
            replicas(),
            "the plan splits along dp = 2, but only pp and tp can be run yet: plan again with --dp 1, " + LOOK,
        ),
        (
            with_stage(host="desk"),
            "the plan is for 2 hosts (desk, localhost), but ranks can be started on this machine only: start them "
            "there with torchrun, try it here over emulated links (--emulate 1gbit,200us), " + LOOK,
        ),
        (
            elsewhere("desk"),
            "the plan is for host 'desk', and this machine is 'laptop': run it there, or write host = 'localhost' in "
            "its stages if it is this one",
        ),
    ],
)
def test_plans_that_cannot_be_run_yet_are_plans_all_the_same(made: Plan, message: str) -> None:
    check_plan(made, SPEC)
    with pytest.raises(PlanError) as error:
        check_runnable(made, "laptop")
    assert str(error.value) == message


def test_plans_that_can_be_run() -> None:
    check_runnable(plan(), "laptop")
    check_runnable(elsewhere("laptop"), "laptop")
    for made in (tensor_split(), tensor_split(shares=(9, 1)), sequence_split(tensor_split())):
        check_plan(made, SPEC)
        check_runnable(made, "laptop")
        assert plan_from_text(dump_plan(made)) == made


CLUSTER = Cluster(
    (Host("node-0"),),
    tuple(Device(f"node-0.{index}", "node-0", 2**30, {"float32": 1e12}, 1e11, kind="cuda") for index in range(4)),
    network=Network(Wire(1e-6, 1e10), Wire(1e-6, 1e10)),
)


def on_cluster(names: tuple[str, ...]) -> Plan:
    made = tensor_split()
    halves = (names[:2], names[2:])
    stages = tuple(replace(stage, devices=half) for stage, half in zip(made.layout.stages, halves, strict=True))
    return replace(made, layout=replace(made.layout, stages=stages))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2)])
def test_a_plan_with_its_cluster(tmp_path: Path, order: tuple[int, ...]) -> None:
    """Devices in the cluster's order need not be written; in another they are."""
    made = on_cluster(tuple(f"node-0.{index}" for index in order))
    save_plan(made, tmp_path / "plan.toml", CLUSTER)
    assert load_plan_file(tmp_path / "plan.toml") == PlanFile(made, CLUSTER)
    assert load_plan(tmp_path / "plan.toml") == made
    assert ("devices = [" in (tmp_path / "plan.toml").read_text()) == (order != (0, 1, 2, 3))


def test_a_device_that_the_cluster_lacks() -> None:
    text = dump_plan(on_cluster(("node-0.0", "node-0.1", "node-0.2", "node-1.3")), CLUSTER)
    assert refusal(text) == "stage 1: no device 'node-1.3' in the cluster; did you mean 'node-0.3'?"


def test_a_cluster_with_a_fault() -> None:
    text = dump_plan(on_cluster(tuple(f"node-0.{index}" for index in range(4))), CLUSTER)
    assert refusal(text.replace("latency_s = 1e-06", "latency_s = -1", 1)) == (
        "the cluster of the plan has a fault:\n"
        "  network.within_host.latency_s is -1: input should be greater than or equal to 0"
    )


def test_unknown_tasks_and_ranks() -> None:
    text = dump_plan(plan())
    assert refusal('task = "trane"\n' + text) == "the plan has the unknown task 'trane': did you mean 'train'?"
    assert refusal(text.replace("ranks = [\n    0,\n]\n", "", 1)) == (
        "the plan has a fault:\n  stages.0: it needs either ranks or rank_range"
    )
