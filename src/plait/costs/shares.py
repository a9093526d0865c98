"""What one rank of a tensor group holds of a layer: whole heads, and a part of what divides at will."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from plait.errors import PlanError
from plait.spec.model import ModelSpec


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


def even_shares(heads: int, tp: int) -> tuple[int, ...]:
    """Query heads of each rank, as even as they divide. Errors: PlanError where a rank would have none."""
    if not 1 <= tp <= heads:
        raise PlanError(f"tp is {tp}, but {heads} heads can be shared by 1 to {heads} ranks only")
    return tuple(heads // tp + (rank < heads % tp) for rank in range(tp))


def rank_shares(spec: ModelSpec, tp: int, shares: Sequence[int] = ()) -> tuple[Share, ...]:
    """What each of `tp` ranks holds; `shares` are their query heads where they are not as even as possible.

    Heads are dealt in order, and a rank holds every KV head that one of its query heads reads: a KV head whose query
    heads are divided lies on both ranks (Megatron-LM replicates KV heads so where tp exceeds them). The rest divides
    in proportion to the heads where shares are given, else evenly. Errors: PlanError.
    """
    given = tuple(shares) or even_shares(spec.heads, tp)
    if len(given) != tp or sum(given) != spec.heads or min(given) < 1:
        raise PlanError(f"shares {list(given)} do not deal {spec.heads} heads to {tp} ranks, at least 1 to each")
    group = spec.heads // spec.kv_heads
    found, first = [], 0
    for heads in given:
        end = first + heads
        found.append(Share(heads, -(-end // group) - first // group, heads / spec.heads if shares else 1 / tp))
        first = end
    return tuple(found)


def largest_share(spec: ModelSpec, tp: int, shares: Sequence[int] = ()) -> Share:
    """The most that any rank holds of each: the group waits for it. Errors: PlanError."""
    if not shares and tp == 1:
        return whole(spec)
    return Share(*map(max, zip(*rank_shares(spec, tp, shares), strict=True)))
