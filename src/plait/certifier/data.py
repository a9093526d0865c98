"""Batches that put unequal numbers of valid tokens on replicas and micro-batches.

Of every four sequences the second has no token that counts and the third has one: where sums are divided too early, by
a replica's or a micro-batch's own tokens (case T5 of the public faults), the loss and every gradient are off.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from plait.nn.training.loss import IGNORED

LENGTH = 5
"""Tokens of a sequence: more than the smallest window, and no multiple of any tensor group but 1."""

_VALID_SHARE = 0.7


class Sequences(NamedTuple):
    """A global batch, int64 [batch, LENGTH]."""

    tokens: Tensor
    targets: Tensor
    valid: int


@lru_cache(maxsize=256)
def sequences(vocab: int, batch: int, step: int, seed: int) -> Sequences:
    """What all ranks learn from in a step. The first sequences of a larger batch are those of a smaller one."""
    rows = [_sequence(vocab, number, step, seed) for number in range(batch)]
    tokens, targets = (torch.stack(columns) for columns in zip(*rows, strict=True))
    return Sequences(tokens, targets, int((targets != IGNORED).sum()))


def _sequence(vocab: int, number: int, step: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(((seed * 1009 + step) * 1009 + number) * 7 + 1)
    tokens, targets = torch.randint(0, vocab, (2, LENGTH), generator=generator)
    ignored = torch.rand(LENGTH, generator=generator) > _VALID_SHARE
    if number % 4 == 1:
        ignored[:] = True
    elif number % 4 == 2:
        ignored[:] = True
        ignored[number // 4 % LENGTH] = False
    else:
        ignored[number % LENGTH] = False
    return tokens, targets.masked_fill(ignored, IGNORED)
