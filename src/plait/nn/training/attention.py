"""Causal attention of whole sequences: between the product that makes queries, keys and values and the one behind."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import Function
from torch.nn.functional import scaled_dot_product_attention

from plait.nn.training.functions import run_again
from plait.spec.model import ModelSpec
from plait.spec.shards import Shard


class Sequences(NamedTuple):
    """What the layers of one forward share: `batch` sequences of `length` tokens, one after another."""

    batch: int
    length: int
    rotation: Tensor | None  # complex [length, 1, rotated dims / 2]
    masks: dict[int | None, Tensor | None]  # by window: added to the scores; None where plain causal is the same


def window_mask(length: int, window: int | None, like: Tensor) -> Tensor | None:
    """[length, length]: a query sees itself and what is before it, `window` positions in all."""
    if window is None or window >= length:
        return None
    places = torch.arange(length, device=like.device)
    ago = places[:, None] - places
    return like.new_zeros(length, length).masked_fill_((ago < 0) | (ago >= window), float("-inf"))


class Attention:
    """A rank's heads, and the KV heads that they read."""

    def __init__(self, spec: ModelSpec, shard: Shard, window: int | None, again: bool = False) -> None:
        """`again`: the backward does it again, from the queries, keys and values that it was given."""
        self.window, self._again = window, again
        self.heads, self.kv_heads, self.head_dim = shard.heads.size, shard.kv_heads.size, spec.head_dim
        each = spec.heads // spec.kv_heads
        readers = [0] * self.kv_heads  # query heads of this rank that read each KV head
        for head in range(*shard.heads):
            readers[head // each - shard.kv_heads.first] += 1
        self.readers = tuple(readers)
        self.even = len(set(readers)) <= 1

    def __call__(self, qkv: Tensor, at: Sequences) -> Tensor:
        """[tokens, (heads + 2 kv_heads) × head_dim] to [tokens, heads × head_dim]."""
        if not self.heads:
            return qkv[:, :0]
        return run_again(partial(self._attend, at=at), qkv) if self._again else self._attend(qkv, at)

    def _attend(self, qkv: Tensor, at: Sequences) -> Tensor:
        queries, keys, values = _Heads.apply(qkv, self, at)  # type: ignore[no-untyped-call]
        mask = at.masks[self.window]
        mixed = scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=mask,
            is_causal=mask is None,
            enable_gqa=self.even and self.heads != self.kv_heads,
        )
        return mixed.transpose(1, 2).reshape(len(qkv), -1)

    def spread(self, heads: Tensor) -> Tensor:
        """KV heads [batch, kv_heads, length, head_dim], where they are read unevenly once for each query head."""
        if self.even:
            return heads
        return heads.repeat_interleave(torch.tensor(self.readers, device=heads.device), dim=1)

    def gathered(self, gradient: Tensor) -> Tensor:
        """The gradient of what `spread` was given."""
        if self.even:
            return gradient
        return torch.stack([part.sum(1) for part in torch.split(gradient, list(self.readers), dim=1)], dim=1)


class _Heads(Function):
    """Queries, keys and values as [batch, heads, length, head_dim], queries and keys rotated.

    Pairs that rotate together lie half a head apart; they come out side by side, in both alike, so that scores are the
    same. Where nothing rotates and KV heads are read evenly, the parts are views; otherwise storages of their own, so
    that what is kept for the backward holds nothing else.
    """

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, attention: Attention, at: Sequences) -> tuple[Tensor, ...]:
        ctx.attention, ctx.at = attention, at
        both = attention.heads + attention.kv_heads
        heads = qkv.view(at.batch, at.length, both + attention.kv_heads, attention.head_dim)
        queries, keys, values = torch.split(heads, [attention.heads, attention.kv_heads, attention.kv_heads], dim=2)
        if at.rotation is not None and attention.even:
            turned = _turned(heads[:, :, :both], at.rotation)
            queries, keys = torch.split(turned, [attention.heads, attention.kv_heads], dim=2)
            values = _own(values)
        elif not attention.even:
            queries = _own(queries) if at.rotation is None else _turned(queries, at.rotation)
            keys = keys if at.rotation is None else _turned(keys, at.rotation)
        queries, keys, values = (part.transpose(1, 2) for part in (queries, keys, values))
        return queries, attention.spread(keys), attention.spread(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        attention, at = ctx.attention, ctx.at
        queries, keys, values = gradients
        both = attention.heads + attention.kv_heads
        inputs = queries.new_empty(at.batch, at.length, both + attention.kv_heads, attention.head_dim)
        inputs[:, :, both:] = attention.gathered(values).transpose(1, 2)
        turned = (queries, attention.gathered(keys))
        for part, gradient in zip(_split(inputs, (attention.heads, attention.kv_heads)), turned, strict=True):
            if at.rotation is None:
                part.copy_(gradient.transpose(1, 2))
            else:
                _turn_back(gradient.transpose(1, 2), at.rotation, part)
        return inputs.view(at.batch * at.length, -1), None, None


def _own(heads: Tensor) -> Tensor:
    """A copy with a storage of its own."""
    return heads.clone(memory_format=torch.contiguous_format)


def _split(heads: Tensor, counts: Sequence[int]) -> tuple[Tensor, ...]:
    """The first heads of [batch, length, heads, head_dim], in parts."""
    return torch.split(heads[:, :, : sum(counts)], list(counts), dim=2)


def _turned(heads: Tensor, rotation: Tensor) -> Tensor:
    """[batch, length, heads, head_dim] rotated, pairs side by side."""
    half = rotation.shape[-1]
    wide = heads.float() if heads.dtype == torch.bfloat16 else heads
    pairs = torch.complex(wide[..., :half], wide[..., half : 2 * half]).mul_(rotation)
    turned = torch.view_as_real(pairs).flatten(-2)
    if 2 * half < heads.shape[-1]:
        turned = torch.cat([turned, wide[..., 2 * half :]], dim=-1)
    return turned.to(heads.dtype)


def _turn_back(gradient: Tensor, rotation: Tensor, inputs: Tensor) -> None:
    """Write the gradient of what `_turned` was given into `inputs`."""
    half = rotation.shape[-1]
    wide = gradient.float() if gradient.dtype == torch.bfloat16 else gradient
    pairs = torch.view_as_complex(wide[..., : 2 * half].contiguous().view(*wide.shape[:-1], half, 2)) * rotation.conj()
    inputs[..., :half], inputs[..., half : 2 * half] = pairs.real, pairs.imag
    inputs[..., 2 * half :] = gradient[..., 2 * half :]
