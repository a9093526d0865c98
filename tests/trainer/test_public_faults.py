"""Faults that shipped in widely used trainers (the project's list of them, T1 to T23), each with its right value."""

from __future__ import annotations

import pytest
import torch

from plait.errors import PlanError
from plait.nn.training.loss import IGNORED
from plait.planner.training_local import local_training_plan
from plait.plans.split import Split, TrainingSetup
from plait.schedules.training import ONE_STAGE, SPLIT_BACKWARD, TRAINING_SCHEDULES, V_SHAPED
from plait.trainer.batch import Batch
from plait.trainer.settings import Rate, Settings

from . import scalars
from .meshes import SGD, Mesh, alone, batch_of, error_of, tiny, train, worst

BOUND = 1e-10


def virtual_of(schedule: str) -> int:
    return 2 if schedule in (*V_SHAPED, "interleaved") else 1


def test_t1_the_scale_is_applied_once_not_at_every_stage() -> None:
    """Two products with one weight of 1 each, input 1, wanted 0, squared error, two micro-batches, rate 0.1."""
    for schedule in ONE_STAGE:
        assert scalars.weights(schedule, micro_batches=2, rate=0.1) == pytest.approx([0.8, 0.8], abs=1e-15)


def test_t2_gradients_are_a_mean_over_micro_batches() -> None:
    spec, batch = tiny(2), batch_of(32, 0)
    norms = [
        train(Mesh(micro_batches=count, micro_batch=size), spec, SGD, [batch])[0][0].result.grad_norm
        for count, size in ((4, 8), (16, 2), (1, 32))
    ]
    assert norms == pytest.approx([norms[0]] * 3, rel=1e-12)


def test_t3_earlier_micro_batches_count_as_much_as_later_ones() -> None:
    """Three times four micro-batches, accumulated: the mean over all twelve."""
    assert error_of(Mesh(pp=2, micro_batches=12), tiny(2)) < BOUND


def test_t4_a_pipeline_divides_by_its_micro_batches() -> None:
    spec, batches = tiny(2), [batch_of(8, 0)]
    one = train(Mesh(micro_batches=8), spec, SGD, batches)
    expected = alone(spec, SGD, batches)
    mesh = Mesh(pp=2, micro_batches=8)
    two = train(mesh, spec, SGD, batches)
    assert worst(Mesh(micro_batches=8), spec, one, expected) < BOUND
    assert worst(mesh, spec, two, expected) < BOUND
    assert two[1][0].result.grad_norm == pytest.approx(one[0][0].result.grad_norm, rel=1e-14)


@pytest.mark.parametrize("zero", [0, 1])
def test_t5_tokens_count_alike_wherever_they_are(zero: int) -> None:
    """Five valid tokens on one rank and one on the other; micro-batches with none."""
    tokens = batch_of(4, 0).tokens
    targets = torch.full_like(tokens, IGNORED)
    targets[0, :5] = torch.tensor([1, 2, 3, 4, 5])
    targets[2, 3] = 6
    batch = Batch(tokens, targets)
    assert error_of(Mesh(dp=2, pp=2, zero=zero), tiny(2), SGD, [batch]) < BOUND
    kept = train(Mesh(dp=2, pp=2, zero=zero), tiny(2), SGD, [batch])
    assert kept[0][0].result[3:] == (24, 6)


def test_t5_a_batch_without_a_valid_token_teaches_nothing() -> None:
    batch = batch_of(4, 0, ignored=1.1)
    kept = train(Mesh(dp=2, pp=2), tiny(2), SGD, [batch])
    assert kept[0][0].result == (0.0, 0.0, 0.05, 24, 0)
    assert error_of(Mesh(dp=2, pp=2), tiny(2), SGD, [batch]) == 0


@pytest.mark.parametrize(
    "mesh", [Mesh(pp=2), Mesh(dp=2, pp=2, tp=2, zero=1), Mesh(dp=2, pp=2, schedule="zb-v", virtual=2)]
)
def test_t6_tied_copies_stay_equal_to_the_bit(mesh: Mesh) -> None:
    spec = tiny(4, tied=True)
    told = Settings(Rate(0.01), weight_decay=0.1, clip=0.5, check_every=1)
    ranks = train(mesh, spec, told, [batch_of(mesh.sequences, step) for step in range(3)])
    last = mesh.pp * mesh.virtual - 1
    layout = mesh.plan(spec).layout
    for step in range(3):
        for first, other in zip(layout.stages[0].ranks, layout.stages[last].ranks, strict=True):
            ours = ranks[first][step].weights[0, "embed.weight"]
            assert torch.equal(ours, ranks[other][step].weights[last, "embed.weight"])
            gradient = ranks[first][step].gradients[0, "embed.weight"]
            assert torch.equal(gradient, ranks[other][step].gradients[last, "embed.weight"])
    assert error_of(mesh, spec) < BOUND  # the gradient is the sum of both uses


def test_t7_a_tied_weight_counts_once_in_the_norm() -> None:
    """The stages hold only the shared weight, and its squared gradients add up to 800."""
    assert scalars.tied_norm(squares=800.0) == pytest.approx(28.284, abs=5e-4)


def test_t8_clipping_uses_the_norm_of_the_whole_mesh() -> None:
    mesh, spec = Mesh(dp=2, pp=2, tp=2), tiny(4)
    batches = [batch_of(mesh.sequences, 0)]
    whole = alone(spec, SGD, batches)[0]
    told = Settings(Rate(0.05), optimizer="sgd", clip=whole.norm / 3)
    ranks = train(mesh, spec, told, batches)
    assert worst(mesh, spec, ranks, alone(spec, told, batches), told.clip) < BOUND
    assert {kept.result.grad_norm for (kept,) in ranks} == {ranks[0][0].result.grad_norm}
    assert ranks[0][0].result.grad_norm == pytest.approx(whole.norm, rel=1e-12)
    # with one coefficient the gradients of all stages are a third of what they were
    name = (1, "head.weight")
    unclipped = train(mesh, spec, SGD, batches)[2][0].gradients[name]
    assert torch.allclose(ranks[2][0].gradients[name] * 3, unclipped, rtol=1e-12, atol=0)


def test_t9_the_norm_of_bfloat16_does_not_depend_on_the_cut() -> None:
    spec, batches = tiny(4), [batch_of(4, 0)]
    norms = [
        train(Mesh(pp=pp, micro_batches=4, dtype="bfloat16"), spec, SGD, batches)[0][0].result.grad_norm
        for pp in (1, 2, 4)
    ]
    assert norms == pytest.approx([norms[0]] * 3, rel=1e-6)


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_t13_recompute_draws_the_same_dropout_masks(recompute: str) -> None:
    spec, told = tiny(4), Settings(Rate(0.05), optimizer="sgd", dropout=0.1)
    for pp in (1, 2):
        kept, again = train(Mesh(pp=pp), spec, told), train(Mesh(pp=pp, recompute=recompute), spec, told)
        for ours, theirs in zip(kept, again, strict=True):
            for one, other in zip(ours, theirs, strict=True):
                assert one.result == other.result
                assert all(torch.equal(one.gradients[name], other.gradients[name]) for name in one.gradients)


@pytest.mark.parametrize(("pp", "virtual"), [(2, 1), (3, 1), (4, 1), (2, 2), (3, 2)])
def test_t14_seven_layers_over_stages_that_do_not_divide_them(pp: int, virtual: int) -> None:
    mesh = Mesh(pp=pp, virtual=virtual, schedule="interleaved" if virtual > 1 else "1f1b")
    spec = tiny(7)
    layers = [layer for stage in mesh.plan(spec).layout.stages for layer in range(*stage.layers)]
    assert layers == list(range(7))
    assert error_of(mesh, spec) < BOUND


@pytest.mark.parametrize("schedule", SPLIT_BACKWARD)
def test_t20_a_split_backward_is_reduced_over_the_replicas(schedule: str) -> None:
    virtual = virtual_of(schedule)
    mesh = Mesh(dp=2, pp=2, schedule=schedule, virtual=virtual, micro_batches=4)
    assert error_of(mesh, tiny(4)) < BOUND


@pytest.mark.parametrize("micro_batches", [1, 2, 3])
@pytest.mark.parametrize("schedule", TRAINING_SCHEDULES)
def test_t23_fewer_micro_batches_than_stages(schedule: str, micro_batches: int) -> None:
    mesh = Mesh(pp=4, schedule=schedule, virtual=virtual_of(schedule), micro_batches=micro_batches)
    assert error_of(mesh, tiny(4 * mesh.virtual), SGD, [batch_of(micro_batches, 0)]) < BOUND


def test_t21_a_batch_that_does_not_divide_is_refused_before_anything_runs() -> None:
    setup = TrainingSetup(Split(), "1f1b", 0, 3)
    with pytest.raises(PlanError, match="a batch of 8 sequences"):
        local_training_plan(tiny(2), setup, 8, 6, "float64")
