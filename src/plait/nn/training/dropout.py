"""Dropout whose masks are a counter hash: the same for every mesh, cut, micro-batch size and recompute.

A value's bits hang on (seed, step, name of the place in the model) and on its sequence's number in the global batch,
its position and its channel; a rank makes the mask of its own rows. One hash gives the bits of two channels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function

from plait.nn.hashing import fold, mix
from plait.nn.training.functions import applied
from plait.nn.training.linear import Pass

_SEQUENCE = 1 << 40
"""Counters of a sequence: position × pairs of channels stays below it."""


def kept_mask(key: int, sequences: Tensor, positions: Tensor, channels: int, rate: float) -> Tensor:
    """Which values stay, bool [rows, channels], of rows with these `sequences` and `positions`, int64 [rows]."""
    pairs = -(-channels // 2)
    counters = (sequences * _SEQUENCE + positions * pairs).unsqueeze(1) + torch.arange(pairs, device=positions.device)
    words = mix(key, counters).view(torch.int32)  # [rows, 2 × pairs], even over all of int32
    return (words >= round(rate * (1 << 32)) - (1 << 31))[:, :channels]


class Dropout:
    """At the place `name` of the model. `rate`: the share of values that are dropped, in [0, 1)."""

    def __init__(self, rate: float, seed: int, name: str) -> None:
        self.rate, self._seed, self._name = rate, seed, name.encode()

    def mask(self, rows: Tensor, at: Pass) -> Tensor:
        """Of `rows` [tokens or this rank's rows, hidden], bool: which values stay."""
        first, end = at.exchange.rows
        places = torch.arange(first, end, device=rows.device)
        sequences = places // at.length
        key = fold(self._seed, at.place.step, *self._name)
        return kept_mask(key, sequences + at.place.sequence, places - sequences * at.length, rows.shape[1], self.rate)

    def scaled(self, rows: Tensor, mask: Tensor) -> Tensor:
        """What stays of `rows`, times 1 ÷ (1 - rate). Their gradient goes the same way."""
        scaled: Tensor = torch.ops.aten.native_dropout_backward(rows, mask, 1 / (1 - self.rate))
        return scaled

    def added(self, x: Tensor, residual: Tensor, at: Pass) -> Tensor:
        """`residual` plus what stays of `x`."""
        return applied(_Added, x, residual, self, at) if self.rate else x + residual


class _Added(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor, dropout: Dropout, at: Pass) -> Tensor:
        mask = dropout.mask(x, at)
        ctx.save_for_backward(mask)
        ctx.dropout = dropout
        return dropout.scaled(x, mask).add_(residual)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return ctx.dropout.scaled(gradient, ctx.saved_tensors[0]), gradient, None, None
