"""What goes wrong in a run is named: where numbers end to be numbers, and which copies went apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch

from plait.comm.contract import Endpoint
from plait.errors import PlanError, RunError, UsageError
from plait.plans.split import Split
from plait.plans.training import TrainingPlan
from plait.trainer.checks import check_buckets, check_mesh
from plait.trainer.held import HeldStage
from plait.trainer.norm import square_sum
from plait.trainer.rank import TrainingRank
from plait.trainer.settings import Rate, Settings
from tests.comm.ranks import ThreadRanks

from .meshes import SGD, Mesh, batch_of, tensors_of, tiny

Fault = Callable[[TrainingRank, int], None]
"""Done to a rank before step 2 of three."""

CALM = (
    "All ranks stopped, and no weight was updated in this step: a lower learning rate, a longer warm-up or a clip of "
)
CALM += "the gradients may help"


def broken(mesh: Mesh, fault: Fault, spec_changes: dict[str, object] | None = None, told: Settings = SGD) -> str:
    """What every rank says in the step of the fault; nothing was updated in it."""
    spec = tiny(4, **(spec_changes or {}))
    plan, tensors = mesh.plan(spec), tensors_of(spec)

    def program(endpoint: Endpoint) -> str:
        rank = TrainingRank(plan, spec, told, endpoint, lambda name, _: tensors[name], buckets=mesh.buckets)
        for number in range(2):
            rank.step(number, batch_of(mesh.sequences, number))
        fault(rank, endpoint.rank)
        before = {number: stage.flat.masters.clone() for number, stage in rank.stages.items()}
        with pytest.raises(RunError) as error:
            rank.step(2, batch_of(mesh.sequences, 2))
        for number, stage in rank.stages.items():
            assert torch.equal(stage.flat.masters, before[number]) or stage.flat.masters.isnan().any()
        return str(error.value)

    said = ThreadRanks().run(program, plan.layout.ranks)
    assert len(set(said)) == 1, said
    return str(said[0])


def poison(where: int, stage: int, name: str, value: float, at: int = 3) -> Fault:
    """Put a value into a weight of one rank."""

    def fault(rank: TrainingRank, number: int) -> None:
        if number == where:
            rank.stages[stage].weights[name].flatten()[at] = value

    return fault


def patched(where: int, stage: int, what: str, change: Callable[[object], object]) -> Fault:
    """Change what a method of one rank's stage gives back."""

    def fault(rank: TrainingRank, number: int) -> None:
        if number == where:
            real = getattr(rank.stages[stage], what)
            mock.patch.object(rank.stages[stage], what, lambda *args, **named: change(real(*args, **named))).start()

    return fault


# --- where numbers end -------------------------------------------------------------------------------------


def test_a_weight_that_is_not_a_number_is_named() -> None:
    mesh = Mesh(dp=2, pp=2, micro_batches=3)
    said = broken(mesh, poison(1, 1, "layers.3.up.weight", float("nan")), told=QUIET)
    assert said == f"step 2: the weight layers.3.up.weight of stage 1 (rank 1) holds nan from before. {CALM}"


QUIET = Settings(Rate(0.05), optimizer="sgd", check_every=0)


def test_a_loss_that_is_not_a_number_is_named_with_its_micro_batch() -> None:
    def fault(rank: TrainingRank, number: int) -> None:
        if number == 3:
            stage, calls = rank.stages[1], []
            real = stage.forward

            def forward(*args: object, **named: object) -> object:
                passed = real(*args, **named)  # type: ignore[arg-type]
                calls.append(passed)
                if len(calls) > 1:
                    passed.loss = passed.loss * float("nan")
                return passed

            mock.patch.object(stage, "forward", forward).start()

    said = broken(Mesh(dp=2, pp=2, micro_batches=3), fault)
    assert said == f"step 2: the loss of micro-batch 1 on stage 1 (rank 3) is nan. {CALM}"


def test_t22_infinite_activations_on_one_stage_stop_all_ranks_alike() -> None:
    def spoil(passed: object) -> object:
        passed.hidden[0, 0] = float("inf")  # type: ignore[attr-defined]
        return passed

    said = broken(Mesh(dp=2, pp=3, tp=2, micro_batches=2), patched(2, 1, "forward", spoil))
    assert said == f"step 2: what stage 1 (rank 2) made of micro-batch 0 holds inf. {CALM}"


@pytest.mark.parametrize("zero", [0, 1])
def test_a_gradient_that_is_infinite_is_named_by_its_last_stage(zero: int) -> None:
    def fault(rank: TrainingRank, number: int) -> None:
        stage = next(iter(rank.stages.values()))
        name = {0: "layers.0.q.weight", 1: "layers.2.k.weight"}[next(iter(rank.stages))]
        real = stage.complete

        def complete(part: int | None = None) -> None:
            real(part)
            stage.gradients[name].flatten()[7] = float("-inf")

        mock.patch.object(stage, "complete", complete).start()

    said = broken(Mesh(dp=2, pp=2, zero=zero, buckets=1), fault)
    assert said == f"step 2: the gradient of layers.2.k.weight on stage 1 (rank 1) holds -inf. {CALM}"


def test_squares_that_overflow_are_told_apart() -> None:
    def fault(rank: TrainingRank, number: int) -> None:
        stage = next(iter(rank.stages.values()))
        real = stage.complete

        def complete(part: int | None = None) -> None:
            real(part)
            stage.gradients["layers.0.q.weight"].fill_(1e200)

        mock.patch.object(stage, "complete", complete).start()

    said = broken(Mesh(), fault)
    words = "the squares of the gradients on stage 0 (rank 0) add up to inf, though each of them is finite"
    assert said == f"step 2: {words}. {CALM}"


def test_large_gradients_in_float32_are_no_trouble() -> None:
    """Their squares overflow in float32, and the norm has them in float64."""
    gradients = torch.full((2048,), 1e30)
    assert square_sum(gradients, [(0, 2048)]) == pytest.approx(2048 * 1e60, rel=1e-6)


# --- copies ------------------------------------------------------------------------------------------------


AGAIN = "Updates went apart, or memory is faulty: start again from the last good weights"


def nudge(where: int, stage: int, name: str, at: int = 0) -> Fault:
    """Change the last bit of one weight of one rank."""

    def fault(rank: TrainingRank, number: int) -> None:
        if number == where:
            flat = rank.stages[stage].weights[name].view(-1)
            flat[at] = torch.nextafter(flat[at], torch.tensor(100.0, dtype=flat.dtype))

    return fault


CASES = {
    "replica": (
        Mesh(dp=3, pp=2),
        {},
        nudge(3, 1, "layers.2.q.weight", 5),
        "layers.2.q.weight of stage 1 is not the same on its replicas",
        {(1, 5), (3,)},
    ),
    "tensor group": (
        Mesh(tp=3),
        {},
        nudge(1, 0, "layers.1.mlp_norm.weight"),
        "layers.1.mlp_norm.weight of stage 0 is not the same on the ranks of its stage",
        {(0, 2), (1,)},
    ),
    "KV head": (
        Mesh(tp=3),
        {},
        nudge(2, 0, "layers.1.v.weight"),
        "layers.1.v.weight, KV head 1, of stage 0 is not the same on the ranks that share it",
        {(1,), (2,)},
    ),
    "tied": (
        Mesh(pp=2, tp=2),
        {"tied": True},
        nudge(3, 1, "embed.weight", 9),
        "embed.weight of stage 0 is not the same on the first and the last stage",
        {(1,), (3,)},
    ),
    "tied on one rank": (
        Mesh(pp=2, schedule="zb-v", virtual=2),
        {"tied": True},
        nudge(0, 3, "embed.weight", 9),
        "embed.weight of stage 0 is not the same on the first and the last stage",
        {(0,), (0,)},
    ),
    "master": (
        Mesh(dp=2, dtype="bfloat16"),
        {},
        lambda rank, number: rank.stages[0].flat.masters[: number * 8 : 8].mul_(1.0001),
        "layers.2.attn_norm.weight of stage 0 is not the same on its replicas",
        {(0,), (1,)},
    ),
    "frozen": (
        Mesh(dp=2),
        {},
        nudge(1, 0, "norm.weight"),
        "norm.weight of stage 0 is not the same on its replicas",
        {(0,), (1,)},
    ),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_copies_that_went_apart_are_named(name: str) -> None:
    mesh, changes, fault, words, holders = CASES[name]
    frozen = ("norm.*",) if name == "frozen" else ()
    said = broken(mesh, fault, changes, Settings(Rate(0.05), optimizer="sgd", frozen=frozen, check_every=2))
    start = f"step 2: {words}, as it must be to the bit. Checksums: "
    assert said.startswith(start)
    assert said.endswith(f". {AGAIN}")
    groups = said[len(start) : -len(AGAIN) - 2].split("; ")
    found = [group.rsplit(" ", 1) for group in groups]
    assert len({checksum for _, checksum in found}) == 2
    assert all(len(checksum) == 8 and int(checksum, 16) >= 0 for _, checksum in found)
    ranks = {tuple(map(int, who.removeprefix("ranks ").removeprefix("rank ").split(", "))) for who, _ in found}
    assert ranks == holders


def test_copies_are_compared_at_their_steps_only() -> None:
    """One that went apart before step 2 is found at step 4, where every 4 steps are."""
    mesh, spec = Mesh(dp=2), tiny(2)
    plan, tensors = mesh.plan(spec), tensors_of(spec)
    told = Settings(Rate(0.05), optimizer="sgd", check_every=4)

    def program(endpoint: Endpoint) -> list[int]:
        rank, done = TrainingRank(plan, spec, told, endpoint, lambda name, _: tensors[name]), []
        for number in range(6):
            if number == 2:
                nudge(1, 0, "head.weight")(rank, endpoint.rank)
            try:
                rank.step(number, batch_of(mesh.sequences, number))
            except RunError:
                return done
            done.append(number)
        return done

    assert ThreadRanks().run(program, 2) == [[0, 1, 2, 3]] * 2


def test_ranks_that_were_given_different_batches_are_named() -> None:
    mesh, spec = Mesh(dp=2, pp=2), tiny(2)
    plan, tensors = mesh.plan(spec), tensors_of(spec)

    def program(endpoint: Endpoint) -> str:
        rank = TrainingRank(plan, spec, SGD, endpoint, lambda name, _: tensors[name])
        with pytest.raises(RunError) as error:
            rank.step(0, batch_of(mesh.sequences, 1 if endpoint.rank == 2 else 0))
        return str(error.value)

    said = ThreadRanks().run(program, 4)
    ours, theirs = (batch_of(mesh.sequences, step).checksum for step in (0, 1))
    expected = f"step 0: rank 2 was given another batch than rank 0: checksums {theirs:08x} and {ours:08x}. "
    assert said == [expected + "Every rank must be given the whole batch of the mesh, of the same step"] * 4


# --- before anything runs ----------------------------------------------------------------------------------


def refused(mesh: Mesh, ranks: int, told: Settings = SGD, **changes: object) -> str:
    spec = tiny(4, **changes)
    plan, tensors = mesh.plan(spec), tensors_of(spec)

    def program(endpoint: Endpoint) -> str:
        with pytest.raises((UsageError, RunError)) as error:
            TrainingRank(plan, spec, told, endpoint, lambda name, _: tensors[name])
        return str(error.value)

    said = ThreadRanks().run(program, ranks)
    assert len(set(said)) == 1, said
    return str(said[0])


def test_a_mesh_larger_than_the_ranks_is_refused() -> None:
    assert refused(Mesh(dp=2, pp=2), 3) == (
        "the mesh dp 2 × pp 2 × tp 1 takes 4 ranks, but 3 were started: 1 more than there are. Start 4, or change the "
        "axes"
    )
    assert refused(Mesh(pp=2), 3) == (
        "the mesh dp 1 × pp 2 × tp 1 takes 2 ranks, but 3 were started: 1 and the others would do nothing. Start 2, or "
        "change the axes"
    )


def test_the_norm_counts_every_parameter_once() -> None:
    real = HeldStage.counted.fget
    assert real is not None
    with mock.patch.object(HeldStage, "counted", property(lambda self: real(self)[1 if self.number else 0 :])):
        said = refused(Mesh(pp=2), 2)
    learning = sum(tensor.numel() for tensor in tensors_of(tiny(4)).values())
    assert said.startswith("the ranks would count ")
    assert f" parameters in the gradient norm, but {learning} of tiny learn: " in said
    assert said.endswith(" not at all. Do all ranks run the same version with the same plan?")
    with mock.patch.object(HeldStage, "counted", property(lambda self: real(self) * 2)):
        said = refused(Mesh(dp=2, pp=2, tp=2), 8, Settings(Rate(0.1), frozen=("head.weight",)))
    learning -= 97 * 24
    assert said == (
        f"the ranks would count {2 * learning} parameters in the gradient norm, but {learning} of tiny learn: "
        f"{learning} twice. Do all ranks run the same version with the same plan?"
    )


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (
            "layer.0.q.weight",
            "no tensor of tiny is called 'layer.0.q.weight', which was to be frozen: did you mean 'layers.0.q.weight'?",
        ),
        (
            "*.bias",
            "no tensor of tiny is called '*.bias', which was to be frozen: names are such as 'embed.weight' and "
            "'layers.2.attn_norm.weight'",
        ),
        ("*", "all 39 tensors of tiny are frozen: leave at least one to learn"),
    ],
)
def test_patterns_that_freeze_nothing_or_everything(pattern: str, message: str) -> None:
    assert refused(Mesh(), 1, Settings(Rate(0.1), frozen=(pattern,))) == message


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (Settings(Rate(0.1), beta1=1.0), "beta1 is 1, but must be from 0 to below 1"),
        (Settings(Rate(0.1), dropout=-0.5), "dropout is -0.5, but must be from 0 to below 1"),
        (Settings(Rate(0.1), momentum=1.5), "momentum is 1.5, but must be from 0 to below 1"),
        (Settings(Rate(0.1), optimizer="adam"), "unknown optimizer 'adam': did you mean 'adamw'?"),  # type: ignore[arg-type]
        (
            Settings(Rate(0.1), eps=0.0),
            "weight_decay is 0 and eps 0, but must be 0 or more, and above 0",
        ),
        (Settings(Rate(0.1), clip=0.0), "clip is 0, but must be above 0: leave it out to clip nothing"),
        (Settings(Rate(0.1), check_every=-1), "check_every is -1, but must be 0 (never) or a number of steps"),
        (Settings(Rate(-1.0)), "the learning rate is -1, but must be a number from 0 on"),
    ],
)
def test_settings_that_cannot_be(told: Settings, message: str) -> None:
    assert refused(Mesh(), 1, told) == message


def unfit(mesh: Mesh, change: Callable[[TrainingPlan], TrainingPlan], **changes: object) -> str:
    spec = tiny(4, **changes)
    plan = change(mesh.plan(spec))
    with pytest.raises(PlanError) as error:
        check_mesh(plan, spec, plan.layout.ranks)
    return str(error.value)


def with_last_stage(plan: TrainingPlan, **changes: Any) -> TrainingPlan:
    *others, last = plan.layout.stages
    return replace(plan, layout=replace(plan.layout, stages=(*others, replace(last, **changes))))


def test_tied_ends_that_differ_are_refused() -> None:
    said = unfit(Mesh(pp=2, tp=2, shares=(1, 2)), lambda plan: with_last_stage(plan, shares=(2, 1)), tied=True)
    assert said == (
        "tiny ties its embedding to its LM head, and ranks of the first and the last stage hold the same rows of it: "
        "their shares must be the same, not [1, 2] and [2, 1]"
    )
    said = unfit(Mesh(pp=2), lambda plan: with_last_stage(plan, dtype="float32", weights="float32"), tied=True)
    assert said == (
        "tiny ties its embedding to its LM head: the first and the last stage must have the same dtype, not float64 "
        "and float32"
    )


def test_what_can_only_be_planned_is_refused() -> None:
    said = unfit(Mesh(dp=2), lambda plan: replace(plan, setup=replace(plan.setup, zero=2)))
    assert said == "zero is 2, but only 0 and 1 can run so far: set it to 1"

    def with_context(plan: TrainingPlan) -> TrainingPlan:
        layout = replace(plan.layout, axes={"cp": 2})
        return replace(plan, layout=layout, batch=2, setup=replace(plan.setup, split=Split(cp=2)))

    said = unfit(Mesh(dp=2), with_context)
    assert said == "axis cp is 2, but it can be planned only so far: set it to 1"


def test_no_buckets_at_all_are_refused() -> None:
    with pytest.raises(UsageError) as error:
        check_buckets(0)
    assert str(error.value) == "gradients are to be reduced in 0 buckets, but it must be at least 1"
