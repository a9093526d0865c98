"""One decoder layer over packed weights and the cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from plait.nn.attention import Seen, attend
from plait.nn.linear import make_linear
from plait.nn.mlp import Part, make_inner
from plait.nn.norms import Norm, RMSNorm, make_norm
from plait.nn.rope import interleave
from plait.spec.model import ModelSpec
from plait.spec.shards import Shard


class Step(NamedTuple):
    """What the layers of one forward share."""

    rotation: Tensor | None  # complex [T, 1, head_dim / 2]
    seen: Mapping[int | None, list[Seen]]  # by window
    places: Places
    sizes: tuple[int, ...] = ()  # rows of each rank, where activations are split over a tensor group


class Places(NamedTuple):
    """Where keys and values go: by index, or where the batch is one row, to a view of every layer's cache."""

    slots: Tensor  # [T]
    positions: Tensor  # [T]
    caches: tuple[Tensor, ...]  # [slots, 2 × kv_heads, context, head_dim]
    views: tuple[Tensor, ...] | None  # [T, 2 × kv_heads, head_dim]

    def store(self, pairs: Tensor, layer: int) -> None:
        """Keys and values [T, 2 × kv_heads, head_dim] to their places in the cache of a layer."""
        if self.views is None:
            self.caches[layer][self.slots, :, self.positions] = pairs
        else:
            self.views[layer].copy_(pairs)


class Wanted(NamedTuple):
    """The tokens that the last layer of the model must compute: those that are sampled from."""

    tokens: Tensor  # [n]
    seen: list[Seen]  # as if these were all tokens of the batch


class Weights:
    """The tensors of one layer, taken out of `tensors` one by one so that originals do not pile up."""

    def __init__(self, tensors: dict[str, Tensor], layer: int, dtype: torch.dtype) -> None:
        self._tensors, self._prefix, self._dtype = tensors, f"layers.{layer}.", dtype

    def part(self, name: str) -> Part:
        """Weight and bias of `name`."""
        weight = self._tensors.pop(f"{self._prefix}{name}.weight").to(self._dtype)
        bias = self._tensors.pop(f"{self._prefix}{name}.bias", None)
        return weight, None if bias is None else bias.to(self._dtype)

    def has(self, name: str) -> bool:
        """Whether the layer has `name`."""
        return f"{self._prefix}{name}.weight" in self._tensors


class Layer:
    """Layer `number` of the model, at `place` in its stage. It writes keys and values into the cache in place.

    `weights` are those of a `shard`, which is all of the layer here; `plait.nn.sharded` has the layer of several ranks.
    """

    def __init__(self, spec: ModelSpec, shard: Shard, weights: Weights, number: int, place: int, packed: bool) -> None:
        heads, kv_heads = shard.heads.size, shard.kv_heads.size
        self._window, self._place = spec.windows[number], place
        self._turned = heads + kv_heads
        self._parts = [heads, 2 * kv_heads]
        self._shape = (heads + 2 * kv_heads, spec.head_dim)
        self._post = spec.norm_placement == "post"
        layer_norm = spec.norm == "layer"
        self._attn_norm: Norm = make_norm(*weights.part("attn_norm"), spec.norm_eps, layer_norm)
        self._mlp_norm: Norm = make_norm(*weights.part("mlp_norm"), spec.norm_eps, layer_norm)
        self._qk_norm = self._make_qk_norm(spec, shard, weights)
        self._qkv = make_linear(*_fused_qkv(spec, weights), packed)
        self._o = make_linear(*self._reduced(weights.part("o")), packed)
        gate = weights.part("gate") if spec.mlp == "gated" else None
        self._inner = make_inner(spec, gate, weights.part("up"), packed)
        self._down = make_linear(*self._reduced(weights.part("down")), packed)

    def _make_qk_norm(self, spec: ModelSpec, shard: Shard, weights: Weights) -> QKNorm | None:
        return None if spec.qk_norm is None else QKNorm(spec, shard, weights)

    def _reduced(self, part: Part) -> Part:
        """A weight that is cut along its inputs: what of it, and of its bias, goes into the product."""
        return part

    def __call__(self, x: Tensor, step: Step, wanted: Wanted | None = None) -> Tensor:
        """[T, hidden] to [T, hidden], or to what is `wanted` alone."""
        queries = self.store(x, step)
        if wanted is not None:
            x, queries = x[wanted.tokens], queries[wanted.tokens]
        mixed = attend(queries, step.seen[self._window] if wanted is None else wanted.seen, self._place)
        if self._post:
            x = x + self._attn_norm(self._o(mixed))
            return x + self._mlp_norm(self._down(self._inner(x)))
        x = self._o.add(mixed, x)
        return self._down.add(self._inner(self._mlp_norm(x)), x)

    def store(self, x: Tensor, step: Step) -> Tensor:
        """Keys and values of `x` go into the cache; its queries [T, heads, head_dim] come back."""
        return self._store(x if self._post else self._attn_norm(x), step)

    def _store(self, normed: Tensor, step: Step) -> Tensor:
        qkv = self._qkv(normed).view(normed.shape[0], *self._shape)  # [T, heads + 2 kv_heads, head_dim]
        if self._qk_norm is not None:
            self._qk_norm(qkv)
        if step.rotation is not None:
            rotate(qkv[:, : self._turned], step.rotation)
        queries, pairs = torch.split(qkv, self._parts, dim=1)
        step.places.store(pairs, self._place)
        return queries


def rotate(heads: Tensor, rotation: Tensor) -> None:
    """Rotate `heads` [T, n, head_dim] in place by complex factors [T, 1, head_dim / 2], in their precision."""
    wide = heads.float() if heads.dtype == torch.bfloat16 else heads
    tokens, count, head_dim = wide.shape
    torch.view_as_complex(wide.view(tokens, count, head_dim // 2, 2)).mul_(rotation)
    if wide is not heads:
        heads.copy_(wide)


class QKNorm:
    """RMSNorm of queries and keys, by head or over the whole projection."""

    def __init__(self, spec: ModelSpec, shard: Shard, weights: Weights) -> None:
        self.full = spec.qk_norm == "full"
        self.heads, self.both = shard.heads.size, shard.heads.size + shard.kv_heads.size
        self.query = self._make(spec, "q_norm", spec.heads, weights)
        self.key = self._make(spec, "k_norm", spec.kv_heads, weights)

    def _make(self, spec: ModelSpec, name: str, heads: int, weights: Weights) -> RMSNorm:
        weight, _ = weights.part(name)
        return RMSNorm(_paired(spec, weight), spec.norm_eps, spec.head_dim * (heads if self.full else 1))

    def __call__(self, qkv: Tensor) -> None:
        """Normalise the queries and keys of [T, heads + 2 kv_heads, head_dim] in place."""
        for norm, part in ((self.query, qkv[:, : self.heads]), (self.key, qkv[:, self.heads : self.both])):
            if self.full:
                part.copy_(norm(part.flatten(1)).view_as(part))
            else:
                part.copy_(norm(part))


def _paired(spec: ModelSpec, rows: Tensor) -> Tensor:
    return rows if spec.rope is None else interleave(rows, spec.head_dim, spec.rope.dims)


def _fused_qkv(spec: ModelSpec, weights: Weights) -> Part:
    """Queries, keys and values as one weight; rows of queries and keys in pairs."""
    (q, q_bias), (k, k_bias), (v, v_bias) = (weights.part(name) for name in "qkv")
    weight = torch.cat([_paired(spec, q), _paired(spec, k), v])
    if q_bias is None or k_bias is None or v_bias is None:
        return weight, None
    return weight, torch.cat([_paired(spec, q_bias), _paired(spec, k_bias), v_bias])
