"""The KV cache of a stage: every key and value it has computed, in place, allocated once."""

from __future__ import annotations

import torch

from plait.spec.model import ModelSpec
from plait.spec.shards import Shard


def cache_bytes(
    spec: ModelSpec, layers: int, slots: int, context: int, dtype: torch.dtype, shard: Shard | None = None
) -> int:
    """Bytes of the keys and values of `layers` layers for `slots` requests of `context` positions.

    With a `shard` of its KV heads alone.
    """
    return layers * slots * 2 * _kv_heads(spec, shard) * context * spec.head_dim * dtype.itemsize


def _kv_heads(spec: ModelSpec, shard: Shard | None) -> int:
    return spec.kv_heads if shard is None else shard.kv_heads.size


class KVCache:
    """Keys and values of layers [first, end) for `slots` requests of at most `context` positions.

    `data` is [layers, slots, 2 × kv_heads, context, head_dim], keys before values, so that one copy stores both and a
    run of slots is a view; `layers` are its parts. Layers with a sliding window store all positions. Memory begins as
    zeros: positions that were never written are masked, and what is masked must be finite. The system commits its
    pages as they are written. With a `shard` kv_heads are those that it holds, which may be none.
    """

    def __init__(
        self,
        spec: ModelSpec,
        first: int,
        end: int,
        slots: int,
        context: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        shard: Shard | None = None,
    ) -> None:
        assert min(slots, context) > 0, f"a cache of {slots} slots of {context} positions"
        self.slots, self.context = slots, context
        self.bytes = cache_bytes(spec, end - first, slots, context, dtype, shard)
        shape = (end - first, slots, 2 * _kv_heads(spec, shard), context, spec.head_dim)
        self.data = torch.zeros(shape, dtype=dtype, device=device)
        self.layers = self.data.unbind(0)
