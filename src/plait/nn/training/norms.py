"""Normalisations that learn. Statistics are taken in max(float32, dtype)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function

from plait.nn.group import TensorGroup
from plait.nn.training.functions import applied
from plait.nn.training.parameters import Weight
from plait.spec.model import ModelSpec
from plait.spec.shards import Shard

Norm = Callable[[Tensor], Tensor]


def make_norm(spec: ModelSpec, weight: Weight, bias: Weight | None) -> Norm:
    """The model's norm over the hidden dimension, [tokens, hidden] to the same."""

    def layer(x: Tensor) -> Tensor:
        return applied(_LayerNorm, x, weight, bias, spec.norm_eps)

    def root(x: Tensor) -> Tensor:
        return applied(_RMSNorm, x, weight, spec.norm_eps)

    return layer if spec.norm == "layer" else root


class _RMSNorm(Function):
    """``x / sqrt(mean(x²) + eps) · weight``. Torch's own takes three times as long, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Weight, eps: float) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        mean = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_().div_(x.shape[-1])
        inverse = mean.add_(eps).rsqrt_()  # [tokens, 1]
        ctx.save_for_backward(x, inverse)
        ctx.weight = weight
        return torch.mul(wide, inverse).mul_(weight.weight).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, inverse = ctx.saved_tensors
        weight: Weight = ctx.weight
        wide, gradient, scale = x.to(inverse.dtype), gradient.to(inverse.dtype), weight.weight.to(inverse.dtype)
        products = gradient * wide
        if weight.learns:
            weight.add(torch.mv(products.t(), inverse[:, 0]))
        along = torch.mv(products, scale).unsqueeze_(1)  # of the gradient before the weight, along x
        along.mul_(inverse.pow(3)).div_(-x.shape[-1])
        return torch.mul(gradient, scale).mul_(inverse).addcmul_(wide, along).to(x.dtype), None, None


class _LayerNorm(Function):
    """Mean 0 and variance 1, then weight and bias."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Weight, bias: Weight | None, eps: float) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        offset = None if bias is None else bias.weight.to(wide)
        out, mean, inverse = torch.native_layer_norm(x.to(wide), x.shape[-1:], weight.weight.to(wide), offset, eps)
        ctx.save_for_backward(x, mean, inverse)
        ctx.weight, ctx.bias = weight, bias
        return out.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, mean, inverse = ctx.saved_tensors
        weight, bias, wide = ctx.weight, ctx.bias, inverse.dtype
        offset = None if bias is None else bias.weight.to(wide)
        wanted = [True, weight.learns, bias is not None and bias.learns]
        inputs, scale, shift = torch.ops.aten.native_layer_norm_backward(
            gradient.to(wide), x.to(wide), x.shape[-1:], mean, inverse, weight.weight.to(wide), offset, wanted
        )
        if weight.learns:
            weight.add(scale)
        if bias is not None and bias.learns:
            bias.add(shift)
        return inputs.to(x.dtype), None, None, None


class HeadNorm:
    """RMSNorm of queries and keys, of each head or of the whole projection, whose squares the group then adds up.

    A KV head that several ranks hold counts once: on the rank that has the first of its query heads.
    """

    def __init__(self, spec: ModelSpec, query: Weight, key: Weight, shard: Shard, group: TensorGroup) -> None:
        self.query, self.key, self.group, self.eps = query, key, group, spec.norm_eps
        self.full = spec.qk_norm == "full"
        self.head_dim = spec.head_dim
        self.heads, self.both = shard.heads.size, shard.heads.size + shard.kv_heads.size
        self.shape = (self.both + shard.kv_heads.size, spec.head_dim)
        self.dims = (spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim)
        each = spec.heads // spec.kv_heads
        owned = [shard.heads.first <= head * each < shard.heads.end for head in range(*shard.kv_heads)]
        self._owned = torch.tensor([True] * self.heads + owned, device=query.weight.device)

    def __call__(self, qkv: Tensor) -> Tensor:
        """[tokens, (heads + 2 kv_heads) × head_dim], in place; values stay as they are."""
        return applied(_HeadNorm, qkv, self)

    def weights(self, dtype: torch.dtype) -> Tensor:
        """Of all queries' and keys' dimensions, [heads + kv_heads, head_dim]."""
        count = (1, 1) if self.full else (self.heads, self.both - self.heads)
        parts = [one.weight.repeat(times) for one, times in zip((self.query, self.key), count, strict=True)]
        return torch.cat(parts).view(-1, self.head_dim).to(dtype)

    def shared(self, sums: Tensor, *, once: bool) -> Tensor:
        """Means over what is normalised together of sums over heads [tokens, heads + kv_heads, 1], in the same shape.

        `once`: every rank that holds a KV head has the same sum of it; otherwise each has a part of it.
        """
        if not self.full:
            return sums / self.head_dim
        counted = sums[..., 0] * self._owned if once else sums[..., 0]
        queries, keys = counted[:, : self.heads].sum(1), counted[:, self.heads :].sum(1)
        both = self.group.all_reduce(torch.stack([queries, keys], dim=1))  # [tokens, 2]
        means = both / torch.tensor(self.dims, dtype=both.dtype, device=both.device)
        parts = [means[:, :1].expand(-1, self.heads), means[:, 1:].expand(-1, self.both - self.heads)]
        return torch.cat(parts, dim=1).unsqueeze(2)

    def once(self, along: Tensor) -> Tensor:
        """Of what every holder of a KV head has whole, the part that one of them counts."""
        return along * self._owned.view(-1, 1) if self.full else along

    def add_gradients(self, weights: Tensor) -> None:
        """Gradients of all weights, [heads + kv_heads, head_dim]."""
        for parameter, part in ((self.query, weights[: self.heads]), (self.key, weights[self.heads :])):
            if parameter.learns:
                parameter.add(part.flatten() if self.full else part.sum(0))


class _HeadNorm(Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, norm: HeadNorm) -> Tensor:
        heads = qkv.view(len(qkv), *norm.shape)
        x = heads[:, : norm.both].to(torch.promote_types(qkv.dtype, torch.float32))
        inverse = norm.shared(x.square().sum(-1, keepdim=True), once=True).add_(norm.eps).rsqrt_()
        ctx.save_for_backward(heads[:, : norm.both].clone(), inverse)
        ctx.norm = norm
        ctx.mark_dirty(qkv)  # nobody else keeps it: values need no second copy
        heads[:, : norm.both] = x * inverse * norm.weights(x.dtype)
        return qkv

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, inverse = ctx.saved_tensors
        norm: HeadNorm = ctx.norm
        shape = (len(x), *norm.shape)
        unit = x * inverse  # normalised, before the weight
        given = gradient.view(shape)[:, : norm.both].to(inverse.dtype)
        norm.add_gradients((given * unit).sum(0))
        given = given * norm.weights(inverse.dtype)
        along = norm.shared((given * unit).sum(-1, keepdim=True), once=False)
        inputs = gradient.clone()
        inputs.view(shape)[:, : norm.both] = (given - unit * norm.once(along)) * inverse
        return inputs, None
