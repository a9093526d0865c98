"""What one rank of a tensor group holds of a layer, as costs see the shards: heads, and a part of what is finer."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod
from typing import NamedTuple

from plait.spec.model import ModelSpec
from plait.spec.shards import Unit, make_shards, tensor_cut, unit_count
from plait.spec.tensors import Shape


class Share(NamedTuple):
    """Query heads, KV heads that they need, and `part` of the MLP's, the experts' and the vocabulary's dimension."""

    heads: int
    kv_heads: int
    part: float

    def of(self, size: int) -> int:
        """This part of a dimension that divides at will, rounded up."""
        return ceil(size * self.part - 1e-9)


def whole(spec: ModelSpec) -> Share:
    """All of a layer, on one rank."""
    return Share(spec.heads, spec.kv_heads, 1.0)


def rank_shares(spec: ModelSpec, tp: int, shares: Sequence[float] = (), weights: str = "float32") -> tuple[Share, ...]:
    """What each of `tp` ranks holds, as `spec.shards` deals it; a rank may have no heads. Errors: PlanError."""
    return tuple(
        Share(shard.heads.size, shard.kv_heads.size, shard.part) for shard in make_shards(spec, tp, shares, weights)
    )


def largest_share(spec: ModelSpec, tp: int, shares: Sequence[float] = (), weights: str = "float32") -> Share:
    """The most that any rank holds of each: the group waits for it. Errors: PlanError."""
    if not shares and tp == 1:
        return whole(spec)
    return Share(*map(max, zip(*rank_shares(spec, tp, shares, weights), strict=True)))


def held_values(spec: ModelSpec, name: str, shape: Shape, share: Share) -> int:
    """Values of a tensor on a rank with this share: whole heads, and of finer units the part, rounded up."""
    cut = tensor_cut(spec, name)
    if cut is None:
        return prod(shape)
    units = unit_count(spec, cut.unit)
    held = {Unit.HEAD: share.heads, Unit.KV_HEAD: share.kv_heads}.get(cut.unit, share.of(units))
    return prod(shape) // units * held
