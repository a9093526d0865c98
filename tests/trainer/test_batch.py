"""The global batch: checked, and divided so that every sequence is in one micro-batch of one replica."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plait.errors import UsageError
from plait.nn.training.loss import IGNORED
from plait.trainer.batch import Batch, check_batch, first_sequence

from .meshes import VOCAB, Mesh, batch_of, tiny


@given(dp=st.integers(1, 4), count=st.integers(1, 5), size=st.integers(1, 3))
def test_every_sequence_is_in_one_micro_batch(dp: int, count: int, size: int) -> None:
    plan = Mesh(dp, micro_batches=count, micro_batch=size).plan(tiny())
    batch = batch_of(plan.batch, 0)
    seen = [
        batch.rows(first_sequence(plan, replica, micro_batch), size)
        for replica in range(dp)
        for micro_batch in range(count)
    ]
    assert torch.equal(torch.cat([one.tokens for one in seen]), batch.tokens)
    assert sum(one.valid for one in seen) == batch.valid == int((batch.targets != IGNORED).sum())


def spoiled(**changes: torch.Tensor) -> Batch:
    return batch_of(4, 0)._replace(**changes)


def changed(value: int, which: int) -> torch.Tensor:
    tensor = batch_of(4, 0)[which].clone()
    tensor[2, 3] = value
    return tensor


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (
            spoiled(tokens=batch_of(6, 0).tokens),
            "tokens are int64 [6, 6], but a step of this plan takes 4 sequences of 6 tokens: int64 [4, 6]",
        ),
        (
            spoiled(targets=batch_of(4, 0).targets[:, :5]),
            "targets are int64 [4, 5], but a step of this plan takes 4 sequences of 6 tokens: int64 [4, 6]",
        ),
        (
            spoiled(tokens=batch_of(4, 0).tokens.int()),
            "tokens are int32 [4, 6], but a step of this plan takes 4 sequences of 6 tokens: int64 [4, 6]",
        ),
        (
            spoiled(tokens=changed(VOCAB, 0)),
            "tokens hold 97, but the model's vocabulary is 0 to 96: tokenize with its own tokenizer",
        ),
        (
            spoiled(tokens=changed(-100, 0)),
            "tokens hold -100, but the model's vocabulary is 0 to 96: tokenize with its own tokenizer",
        ),
        (
            spoiled(targets=changed(200, 1)),
            "targets hold 200, but the model's vocabulary is 0 to 96, or -100 where a token does not count: "
            "tokenize with its own tokenizer",
        ),
        (
            spoiled(targets=changed(-1, 1)),
            "targets hold -1, but the model's vocabulary is 0 to 96, or -100 where a token does not count: "
            "tokenize with its own tokenizer",
        ),
        (
            spoiled(targets=changed(-101, 1)),
            "targets hold -101, but the model's vocabulary is 0 to 96, or -100 where a token does not count: "
            "tokenize with its own tokenizer",
        ),
    ],
)
def test_what_is_no_batch_of_a_plan(batch: Batch, message: str) -> None:
    plan = Mesh(2).plan(tiny())
    check_batch(batch_of(4, 0), plan, VOCAB)
    with pytest.raises(UsageError) as error:
        check_batch(batch, plan, VOCAB)
    assert str(error.value) == message
