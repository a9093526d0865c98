"""The global batch of a step, which every rank has, and the part of it that one micro-batch of one replica is."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from plait.errors import RunError, UsageError
from plait.nn.training.loss import IGNORED
from plait.plans.training import TrainingPlan


class Batch(NamedTuple):
    """int64 [plan.batch, plan.sequence], both; a token whose target is `IGNORED` does not count."""

    tokens: Tensor
    targets: Tensor

    @property
    def valid(self) -> int:
        """Tokens that count, over the whole mesh: every rank has all targets, so nobody needs to ask."""
        return int((self.targets != IGNORED).sum())

    @property
    def checksum(self) -> int:
        """Of all ids."""
        return zlib.crc32(torch.cat(self).cpu().numpy().data)

    def rows(self, first: int, count: int) -> Batch:
        """Sequences [first, first + count)."""
        return Batch(self.tokens[first : first + count], self.targets[first : first + count])


def first_sequence(plan: TrainingPlan, replica: int, micro_batch: int) -> int:
    """The number in the global batch of the first sequence of a replica's micro-batch."""
    setup = plan.setup
    return (replica * setup.micro_batches + micro_batch) * setup.micro_batch


def check_batch(batch: Batch, plan: TrainingPlan, vocab: int) -> None:
    """The batch is what the plan takes, and its tokens are the model's. Errors: UsageError."""
    wanted = (plan.batch, plan.sequence)
    for name, tensor in zip(Batch._fields, batch, strict=True):
        if tuple(tensor.shape) != wanted or tensor.dtype != torch.int64:
            raise UsageError(
                f"{name} are {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}, but a step of this plan "
                f"takes {plan.batch} sequences of {plan.sequence} tokens: int64 {list(wanted)}"
            )
        known = (tensor >= 0) & (tensor < vocab)
        if name == "targets":
            known |= tensor == IGNORED
        if not known.all():
            ids = f"0 to {vocab - 1}" + (f", or {IGNORED} where a token does not count" if name == "targets" else "")
            raise UsageError(
                f"{name} hold {int(tensor[~known][0])}, but the model's vocabulary is {ids}: "
                "tokenize with its own tokenizer"
            )


def require_same_batch(checksums: Sequence[int], step: int) -> None:
    """Of what each rank was given. Errors: RunError, the same on all ranks."""
    other = next((rank for rank, found in enumerate(checksums) if found != checksums[0]), None)
    if other is not None:
        raise RunError(
            f"step {step}: rank {other} was given another batch than rank 0: checksums {checksums[other]:08x} and "
            f"{checksums[0]:08x}. Every rank must be given the whole batch of the mesh, of the same step"
        )
