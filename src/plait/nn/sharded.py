"""A decoder layer that the ranks of a tensor group share (the arrangement of `plait.spec.shards`).

Each computes its heads and columns; their products with the weights cut by inputs are parts of a sum over the group,
one after attention and one after the MLP. What is exchanged, in which order, is said in `plait.plans.exchanges`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from plait.nn.attention import Seen, attend, padding
from plait.nn.ends import own_rows
from plait.nn.group import TensorGroup
from plait.nn.layer import Layer, QKNorm, Step, Wanted, Weights
from plait.nn.linear import Linear
from plait.nn.mlp import Part
from plait.spec.model import ModelSpec
from plait.spec.shards import Range, Shard


class ShardedLayer(Layer):
    """A layer between which all ranks have all activations [T, hidden]: sums leave them everywhere.

    The residual, and the biases of what is summed, go into the first rank's part.
    """

    def __init__(
        self, spec: ModelSpec, shard: Shard, weights: Weights, number: int, place: int, packed: bool, group: TensorGroup
    ) -> None:
        self._group = group
        self._pad = padding(spec, shard)
        super().__init__(spec, shard, weights, number, place, packed)

    @override
    def __call__(self, x: Tensor, step: Step, wanted: Wanted | None = None) -> Tensor:
        """[T, hidden] to [T, hidden], or to what is `wanted` alone."""
        queries = self.store(x, step)
        if wanted is not None:
            x, queries = x[wanted.tokens], queries[wanted.tokens]
        mixed = self._attend(queries, step.seen[self._window] if wanted is None else wanted.seen)
        if self._post:
            x = x + self._attn_norm(self._group.all_reduce(self._o(mixed)))
        else:
            x = self._group.all_reduce(self._part(self._o, mixed, x))
        return self._mlp(x)

    def _mlp(self, x: Tensor) -> Tensor:
        """The second half, from all activations to all."""
        if self._post:
            return x + self._mlp_norm(self._group.all_reduce(self._down(self._inner(x))))
        return self._group.all_reduce(self._part(self._down, self._inner(self._mlp_norm(x)), x))

    def _attend(self, queries: Tensor, views: list[Seen]) -> Tensor:
        return attend(queries, views, self._place, self._pad) if queries.shape[1] else queries.flatten(1)

    def _part(self, linear: Linear, x: Tensor, residual: Tensor) -> Tensor:
        return linear(x) if self._group.index else linear.add(x, residual)

    @override
    def _reduced(self, part: Part) -> Part:
        return (part[0], None) if self._group.index else part

    @override
    def _make_qk_norm(self, spec: ModelSpec, shard: Shard, weights: Weights) -> QKNorm | None:
        if spec.qk_norm == "full":
            return _SharedQKNorm(spec, shard, weights, self._group)
        return super()._make_qk_norm(spec, shard, weights)


class SplitLayer(ShardedLayer):
    """A layer between which each rank has its rows of the activations, [sizes[index], hidden]."""

    @override
    def __call__(self, x: Tensor, step: Step, wanted: Wanted | None = None) -> Tensor:
        """A rank's rows to the same rows; where something is `wanted`, see `last`."""
        assert wanted is None, "what is wanted is asked of `last`"
        mixed = self._attend(self.store(x, step), step.seen[self._window])
        attended = self._group.reduce_scatter(self._o(mixed), step.sizes)
        x = x + (self._attn_norm(attended) if self._post else attended)
        read = self._group.all_gather(x if self._post else self._mlp_norm(x), step.sizes)
        added = self._group.reduce_scatter(self._down(self._inner(read)), step.sizes)
        return x + (self._mlp_norm(added) if self._post else added)

    @override
    def store(self, x: Tensor, step: Step) -> Tensor:
        """Keys and values of all tokens go into the cache; queries [T, heads, head_dim] come back."""
        return self._store(self._gathered(x, step), step)

    def _gathered(self, x: Tensor, step: Step) -> Tensor:
        """What attention reads, of all tokens."""
        return self._group.all_gather(x if self._post else self._attn_norm(x), step.sizes)

    def last(self, x: Tensor, step: Step, wanted: Wanted | None) -> Tensor:
        """The model's last layer: a rank's rows to what is wanted (None: all tokens) on every rank."""
        read = self._gathered(x, step)
        queries = self._store(read, step)
        residual = read if self._post else self._own_rows(x, step)
        if wanted is not None:
            residual, queries = residual[wanted.tokens], queries[wanted.tokens]
        mixed = self._attend(queries, step.seen[self._window] if wanted is None else wanted.seen)
        if self._post:
            return self._mlp(residual + self._attn_norm(self._group.all_reduce(self._o(mixed))))
        return self._mlp(self._group.all_reduce(self._o.add(mixed, residual)))

    def _own_rows(self, x: Tensor, step: Step) -> Tensor:
        """This rank's rows at their places among zeros, [T, hidden]: every row is one rank's, so the sum is all."""
        whole = x.new_zeros(sum(step.sizes), x.shape[1])
        own_rows(whole, step.sizes, self._group.index).copy_(x)
        return whole


class _SharedQKNorm(QKNorm):
    """The norm over the whole projections, whose lengths are sums over the group.

    A KV head that lies on several ranks counts where its first query head is.
    """

    def __init__(self, spec: ModelSpec, shard: Shard, weights: Weights, group: TensorGroup) -> None:
        super().__init__(spec, shard, weights)
        self._group, self._owned = group, _owned(spec, shard)

    @override
    def __call__(self, qkv: Tensor) -> None:
        queries, keys = qkv[:, : self.heads], qkv[:, self.heads : self.both]
        owned = keys[:, self._owned.first : self._owned.end]
        squares = [self.query.squares(queries.flatten(1)), self.key.squares(owned.flatten(1))]
        lengths = self._group.all_reduce(torch.stack(squares, dim=1)).sqrt_()  # [T, 2]
        for norm, part, column in ((self.query, queries, 0), (self.key, keys, 1)):
            part.copy_(norm.of_length(part.flatten(1), lengths[:, column, None]).view_as(part))


def _owned(spec: ModelSpec, shard: Shard) -> Range:
    """Which of a rank's KV heads, counted from its first, have their first query head on it."""
    group = spec.heads // spec.kv_heads
    first, end = (-(-head // group) - shard.kv_heads.first for head in shard.heads)
    return Range(first, end) if shard.heads.size else Range(0, 0)
