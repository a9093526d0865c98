"""The plan of a mesh that was asked for: where its ranks lie, its cut, and every refusal in full."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.errors import PlanError, SpecError
from plait.planner.training_local import local_training_plan
from plait.plans.check_step import check_training_round
from plait.plans.split import Split, TrainingSetup
from plait.plans.training import TrainingPlan
from plait.schedules.prove import prove_training_plan
from plait.schedules.step import executed_round
from plait.schedules.training import ONE_STAGE, TRAINING_SCHEDULES, V_SHAPED
from plait.spec.model import Experts, LatentAttention, ModelSpec, Rope

TINY = ModelSpec("tiny", "llama", 7, 64, 4, 2, 16, 128, 256, 512, 1e-5, Rope(1e4, 16), (None,) * 7)
AXES = ("dp", "pp", "tp", "ep", "cp")
OF_SETUP = ("virtual", "zero", "sequence_split", "recompute")


def planned(spec: ModelSpec = TINY, schedule: str = "1f1b", batch: int = 8, **given: Any) -> TrainingPlan:
    """Four micro-batches, unless it says otherwise."""
    axes = {name: given.pop(name) for name in AXES if name in given}
    more = {name: given.pop(name) for name in OF_SETUP if name in given}
    sizes = given.pop("micro_batch", 0), given.pop("micro_batches", 4)
    setup = TrainingSetup(Split(**axes), schedule, *sizes, **more)
    return local_training_plan(spec, setup, batch, given.pop("sequence", 32), given.pop("dtype", "float32"), **given)


def with_layers(layers: int, **more: Any) -> ModelSpec:
    return replace(TINY, layers=layers, windows=(None,) * layers, **more)


def test_dp_is_outermost_and_tensor_groups_are_neighbours() -> None:
    plan = planned(dp=2, pp=2, tp=2, threads=3, capacity=4, dtype="bfloat16")
    assert dict(plan.layout.axes) == {"dp": 2, "pp": 2, "tp": 2}
    assert [stage.ranks for stage in plan.layout.stages] == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert {(stage.dtype, stage.weights, stage.threads) for stage in plan.layout.stages} == {
        ("bfloat16", "bfloat16", 3)
    }
    assert (plan.layout.link_capacity, plan.model, plan.batch, plan.sequence) == (4, "tiny", 8, 32)
    assert (plan.setup.micro_batch, plan.setup.micro_batches) == (1, 4)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(1, 2))
def test_where_every_rank_lies(dp: int, pp: int, tp: int, virtual: int) -> None:
    """Place d · tp + t of a stage's ranks is replica d, tensor index t: rank (d · pp + p) · tp + t."""
    schedule = "1f1b" if virtual == 1 else "interleaved"
    plan = planned(with_layers(8), schedule, dp * 4, dp=dp, pp=pp, tp=tp, virtual=virtual)
    for index, stage in enumerate(plan.layout.stages):
        for d in range(dp):
            for t in range(tp):
                assert stage.ranks[d * tp + t] == (d * pp + index % pp) * tp + t
    assert len(plan.layout.positions) == pp


def test_stages_of_a_loop_and_of_a_v() -> None:
    loop = planned(schedule="interleaved", pp=2, virtual=2).layout
    assert [stage.ranks for stage in loop.stages] == [(0,), (1,), (0,), (1,)]
    v = planned(schedule="zb-v", pp=2, virtual=2).layout
    assert [stage.ranks for stage in v.stages] == [(0,), (1,), (1,), (0,)]
    assert v.positions == ((0, 3), (1, 2))


@pytest.mark.parametrize(
    ("pp", "virtual", "schedule"),
    [(2, 1, "1f1b"), (3, 1, "gpipe"), (4, 1, "zb-h1"), (2, 2, "interleaved"), (2, 2, "zb-v"), (3, 2, "layerwise")],
)
def test_t14_every_layer_once(pp: int, virtual: int, schedule: str) -> None:
    """7 layers over 2, 3, 4 stages, and with 2 virtual stages."""
    cut = planned(schedule=schedule, pp=pp, virtual=virtual).layout.cut
    assert [layer for first, end in cut for layer in range(first, end)] == list(range(7))
    assert len(cut) == pp * virtual
    assert min(end - first for first, end in cut) >= 1


@given(st.data())
def test_any_default_cut(data: st.DataObject) -> None:
    """All layers once, at least one a stage, and no position has more than one layer more than another but the last."""
    schedule = data.draw(st.sampled_from(TRAINING_SCHEDULES))
    virtual = 1 if schedule in ONE_STAGE else 2 if schedule in V_SHAPED else data.draw(st.integers(1, 3))
    pp = data.draw(st.integers(1, 5))
    spec = with_layers(data.draw(st.integers(pp * virtual, 24)), vocab=data.draw(st.sampled_from([16, 256, 50000])))
    plan = planned(spec, schedule, pp=pp, virtual=virtual)
    cut = plan.layout.cut
    assert [layer for first, end in cut for layer in range(first, end)] == list(range(spec.layers))
    assert min(end - first for first, end in cut) >= 1
    held = [sum(cut[stage][1] - cut[stage][0] for stage in stages) for stages in plan.layout.positions]
    with_head = 0 if schedule in V_SHAPED else pp - 1
    others = [count for position, count in enumerate(held) if position != with_head]
    assert max(others, default=0) - min(others, default=0) <= 1
    assert held[with_head] <= min(others, default=spec.layers) + 1
    check_training_round(executed_round(0, plan, spec), plan.layout)


def test_a_heavy_head_makes_the_last_stage_lighter() -> None:
    """A layer multiplies 36,864 + 2,048, the head 64 × 3,000 = 192,000: as much as five layers."""
    plain, heavy = planned(with_layers(12), pp=2), planned(with_layers(12, vocab=3000), pp=2)
    assert plain.layout.cut == ((0, 6), (6, 12))
    assert heavy.layout.cut == ((0, 8), (8, 12))


def test_a_cut_by_hand_is_kept() -> None:
    assert planned(pp=3, cut=(1, 5, 1)).layout.cut == ((0, 1), (1, 6), (6, 7))


def test_dtypes_of_training() -> None:
    """float64 is for proofs."""
    for dtype in ("float64", "float32", "bfloat16"):
        assert planned(dtype=dtype).layout.stages[0].dtype == dtype


def test_sizes_that_follow_from_the_batch() -> None:
    one = planned(batch=24, dp=2, micro_batch=3, micro_batches=0).setup
    assert (one.micro_batch, one.micro_batches) == (3, 4)
    two = planned(batch=24, dp=2, micro_batches=6).setup
    assert (two.micro_batch, two.micro_batches) == (2, 6)
    both = planned(batch=24, dp=2, micro_batch=4, micro_batches=3).setup
    assert (both.micro_batch, both.micro_batches) == (4, 3)


def test_zero_over_one_replica_has_nothing_to_shard() -> None:
    plan = planned(zero=1)
    kinds = {action.kind.value for actions in executed_round(0, plan, TINY).actions for action in actions}
    assert kinds == {"F", "B", "N", "O"}


def test_t18_a_plan_is_proved_before_it_runs() -> None:
    """Whatever its links hold; and stages that stand where their schedule does not want them are refused."""
    for capacity in (1, 2, 3):
        plan = planned(schedule="zb-v", pp=3, virtual=2, dp=2, capacity=capacity)
        prove_training_plan(plan, TINY)
    looped = planned(schedule="interleaved", pp=3, virtual=2, dp=2)
    with pytest.raises(PlanError) as error:
        prove_training_plan(replace(looped, setup=replace(looped.setup, schedule="zb-v")), TINY)
    assert str(error.value) == (
        "schedule zb-v wants stages 0 5 | 1 4 | 2 3 on its positions, but the layout has 0 3 | 1 4 | 2 5"
    )


def test_the_round_that_is_run() -> None:
    """A stage has no more buckets than layers; T where the model is tied; and the norm."""
    plan = planned(replace(TINY, tied=True), dp=2, pp=3, cut=(1, 2, 4), zero=1)
    for tied, spec in ((True, replace(TINY, tied=True)), (False, TINY)):
        actions = [action for of_position in executed_round(3, plan, spec).actions for action in of_position]
        count = Counter((action.kind.value, action.stage) for action in actions)
        assert [count["G", stage] for stage in range(3)] == [1, 2, 4]
        assert [count["T", stage] for stage in range(3)] == ([1, 0, 1] if tied else [0, 0, 0])
        assert [count["N", stage] for stage in range(3)] == [1, 1, 1]
        assert {action.round for action in actions} == {3}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"schedule": "1f1"}, "unknown schedule '1f1' for training: did you mean '1f1b'?"),
        ({"pp": 2, "virtual": 2}, "schedule 1f1b has one stage a position, not 2: type --virtual 1"),
        ({"schedule": "zb-v", "pp": 2}, "schedule zb-v has two stages a position, not 1: type --virtual 2"),
        (
            {"pp": 8},
            "--pp 8 makes 8 stages, but tiny has 7 layers and every stage needs at least one: at most 7 stages fit "
            "(--pp 7 is the most)",
        ),
        (
            {"schedule": "zb-v", "pp": 4, "virtual": 2},
            "--pp 4 --virtual 2 makes 8 stages, but tiny has 7 layers and every stage needs at least one: at most 7 "
            "stages fit (--pp 3 --virtual 2 is the most)",
        ),
        (
            {"schedule": "interleaved", "pp": 1, "virtual": 8},
            "--pp 1 --virtual 8 makes 8 stages, but tiny has 7 layers and every stage needs at least one: at most 7 "
            "stages fit",
        ),
        (
            {"tp": 5},
            "--tp 5 was asked for, but tiny has 4 heads, and every rank of a tensor group needs at least one: --tp 4 "
            "is the most",
        ),
        (
            {"sequence_split": True},
            "--sequence splits activations over the ranks of a tensor group, but --tp is 1: --tp 2 makes one",
        ),
        ({"zero": 2}, "ZeRO-2 can be planned, but not run yet: --zero 0 or --zero 1"),
        ({"zero": 3, "dp": 2}, "ZeRO-3 can be planned, but not run yet: --zero 0 or --zero 1"),
        ({"zero": 4}, "ZeRO-4 is not known: --zero 0 or --zero 1"),
        ({"ep": 2}, "ep = 2 can be planned, but not run yet: --ep 1"),
        ({"cp": 2}, "cp = 2 can be planned, but not run yet: --cp 1"),
        ({"dp": 0}, "--dp 0 was asked for, but it must be at least 1"),
        ({"virtual": 0}, "--virtual 0 was asked for, but it must be at least 1"),
        ({"capacity": 0}, "a link that holds 0 messages cannot carry any: it must hold at least 1"),
        ({"threads": 0}, "stage 0 has 0 threads, but needs at least 1"),
        ({"dtype": "float16"}, "stage 0: unknown dtype 'float16' (known: bfloat16, float32, float64)"),
        ({"recompute": "all"}, "recompute is 'all', but must be one of none, selective, full"),
        ({"sequence": 0}, "sequence is 0, but must be at least 1"),
        (
            {"pp": 2, "cut": (3, 3)},
            "--layers 3,3 adds up to 6, but the model has 7 layers: 1 too few (--layers 4,3 would be nearest)",
        ),
        ({"pp": 2, "cut": (3, 2, 2)}, "--layers 3,2,2 makes 3 stages, but --pp asks for 2"),
        (
            {"schedule": "zb-v", "pp": 2, "virtual": 2, "cut": (3, 4)},
            "--layers 3,4 makes 2 stages, but 2 positions of 2 stages are 4",
        ),
        ({"pp": 2, "cut": (7, 0)}, "--layers 7,0 gives a stage no layer, but every stage needs at least one"),
        (
            {"tp": 2, "shares": (1, 2, 3)},
            "stage 0 has shares 1, 2, 3, but its tensor group has 2 ranks: write 2 numbers above 0, in proportion to "
            "the devices' speed",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be(given: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError) as error:
        planned(**given)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("batch", "given", "message"),
    [
        (
            8,
            {"micro_batches": 3},
            "a batch of 8 sequences cannot be divided into 3 micro-batches: type --batch 6 or 9, or --micro-batches "
            "1, 2, 4 or 8",
        ),
        (
            8,
            {"micro_batches": 3, "dp": 2},
            "a batch of 8 sequences cannot be divided into dp 2 × 3 micro-batches: type --batch 6 or 12, or "
            "--micro-batches 1, 2 or 4",
        ),
        (
            9,
            {"micro_batches": 3, "dp": 2},
            "a batch of 9 sequences cannot be divided into dp 2 × 3 micro-batches: type --batch 6 or 12, or --dp 1 "
            "or 3",
        ),
        (
            7,
            {"micro_batches": 2, "dp": 2},
            "a batch of 7 sequences cannot be divided into dp 2 × 2 micro-batches: type --batch 4 or 8",
        ),
        (
            2,
            {"micro_batches": 3},
            "a batch of 2 sequences cannot be divided into 3 micro-batches: type --batch 3, or --micro-batches 1 or 2",
        ),
        (
            3,
            {"micro_batches": 1, "dp": 2},
            "a batch of 3 sequences cannot be divided into dp 2 × 1 micro-batch: type --batch 2 or 4, or --dp 1 or 3",
        ),
        (
            12,
            {"micro_batch": 5, "micro_batches": 0},
            "a batch of 12 sequences cannot be divided into micro-batches of 5: type --batch 10 or 15, or "
            "--micro-batch 1, 2, 3, 4, 6 or 12",
        ),
        (
            8,
            {"micro_batch": 2, "micro_batches": 3, "dp": 2},
            "3 micro-batches of 2 over dp 2 make 12 sequences, but the batch has 8: type --batch 12",
        ),
        (
            8,
            {"micro_batch": 0, "micro_batches": 0},
            "neither the size nor the number of micro-batches is given, and the batch says only one",
        ),
        (0, {}, "--batch 0 was asked for, but it must be at least 1"),
        (8, {"micro_batches": -1}, "--micro-batches -1 was asked for, but it must be at least 1"),
    ],
)  # fmt: skip
def test_t21_a_batch_that_does_not_divide(batch: int, given: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError) as error:
        planned(batch=batch, **given)
    assert str(error.value) == message


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 9))
def test_t21_exact_or_refused_with_what_fits(batch: int, dp: int, micro_batches: int) -> None:
    """Every batch and number that a refusal names is planned."""
    try:
        plan = planned(batch=batch, dp=dp, micro_batches=micro_batches)
    except PlanError as error:
        typed = str(error).split(": type ")[1].split(", or --")
        batches = [int(each) for each in typed[0].removeprefix("--batch ").split(" or ")]
        assert min(batches) > 0
        for each in batches:
            planned(batch=each, dp=dp, micro_batches=micro_batches)
        if len(typed) == 2:
            name, numbers = typed[1].split(" ", 1)
            for number in numbers.replace(" or ", ", ").split(", "):
                sizes = {"dp": dp, "micro_batches": micro_batches} | {name.replace("-", "_"): int(number)}
                planned(TINY, "1f1b", batch, **sizes)
        assert batch % (dp * micro_batches)
    else:
        assert plan.setup.micro_batch * micro_batches * dp == batch


def test_sequences_longer_than_learned_positions() -> None:
    learned = replace(TINY, rope=None, family="gpt2")
    assert planned(learned, sequence=512).sequence == 512
    with pytest.raises(PlanError) as error:
        planned(learned, sequence=520)
    assert str(error.value) == "sequence is 520 tokens, but tiny has positions for 512: 8 too many"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"experts": Experts(4, 2, 32)}, "a mixture of experts"),
        ({"latent": LatentAttention(16, 4, 8, 8)}, "latent attention"),
    ],
)
def test_models_that_can_be_planned_only(more: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError) as error:
        planned(with_layers(7, **more))
    assert str(error.value) == f"tiny has {words}: such a model can be planned but not run yet"
