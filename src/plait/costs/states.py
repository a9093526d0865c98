"""Bytes of weights, gradients and optimizer states on one rank, whole and as ZeRO shards them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from plait.costs.shares import Share, held_values, largest_share
from plait.costs.work import layer_kinds
from plait.errors import SpecError, nearest
from plait.plans.split import Split
from plait.spec.model import ModelSpec
from plait.spec.tensors import has_experts, layer_tensors


@dataclass(frozen=True, slots=True)
class Recipe:
    """Bytes a parameter of the weights that are computed with, of gradients, and of all the optimizer holds."""

    name: str
    weight_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    source: str

    @property
    def total_bytes(self) -> float:
        """Bytes a parameter without any sharding."""
        return self.weight_bytes + self.gradient_bytes + self.optimizer_bytes


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        one.name: one
        for one in (
            Recipe(
                "mixed", 2, 2, 12,
                "Rajbhandari et al., 'ZeRO' (2020), section 3.1: 16-bit weights and gradients; float32 weights, "
                "momentum and variance of Adam",
            ),
            Recipe(
                "mixed-float32-gradients", 2, 4, 12,
                "Megatron-LM, docs of its distributed optimizer: bfloat16 weights and float32 gradients, 18 bytes",
            ),
            Recipe("float32", 4, 4, 8, "weights, gradients, momentum and variance of Adam, all float32"),
            Recipe("float32-sgd", 4, 4, 0, "weights and gradients in float32; SGD without momentum has no states"),
        )
    }
)  # fmt: skip
"""Known recipes by name."""


def recipe_named(name: str) -> Recipe:
    """The recipe. Errors: SpecError, with the nearest name."""
    if name not in RECIPES:
        raise SpecError(f"unknown optimizer recipe {name!r}: {nearest(name, RECIPES)}")
    return RECIPES[name]


def recipe_for(dtype: str) -> Recipe:
    """What is usual for computing in this dtype: Megatron-LM's in bfloat16, plain float32 otherwise."""
    return RECIPES["float32" if dtype in ("float32", "float64") else "mixed-float32-gradients"]


class RankParameters(NamedTuple):
    """Parameters on one rank: `experts` lie on all ranks of dp × cp, all others (`dense`) on all of dp × ep × cp."""

    dense: int
    experts: int

    @property
    def total(self) -> int:
        """Both."""
        return self.dense + self.experts

    def plus(self, other: RankParameters) -> RankParameters:
        """Both together."""
        return RankParameters(self.dense + other.dense, self.experts + other.experts)


class StateBytes(NamedTuple):
    """What one rank holds the whole step long."""

    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float

    @property
    def total_bytes(self) -> float:
        """All of it."""
        return sum(self)

    def plus(self, other: StateBytes) -> StateBytes:
        """Both together."""
        return StateBytes(*(mine + its for mine, its in zip(self, other, strict=True)))


@lru_cache(maxsize=4096)
def layer_rank_parameters(spec: ModelSpec, layer: int, share: Share, ep: int = 1) -> RankParameters:
    """Parameters of a layer on a rank with this share.

    `spec.shards` says what is cut, and what is whole on every rank.
    """
    dense = experts = 0
    for name, shape in layer_tensors(spec, layer).items():
        held = held_values(spec, name, shape, share)
        if name.startswith("experts."):
            experts += -(-shape[0] // ep) * (held // shape[0])
        else:
            dense += held
    return RankParameters(dense, experts)


def end_rank_parameters(spec: ModelSpec, share: Share, *, first: bool, last: bool) -> RankParameters:
    """Parameters of the embedding (on the `first` stage), of the final norm and the LM head (on the `last` one).

    Both are divided over the vocabulary. A tied embedding is held by both stages, and once where they are one.
    """
    table = share.of(spec.vocab) * spec.hidden
    dense = 0
    if first:
        dense += table + (spec.max_positions * spec.hidden if spec.learned_positions else 0)
    if last:
        dense += spec.hidden * (2 if spec.norm == "layer" else 1)
        dense += 0 if spec.tied and first else table
    return RankParameters(dense, 0)


def rank_parameters(
    spec: ModelSpec, ranges: Sequence[tuple[int, int]], tp: int = 1, ep: int = 1, shares: Sequence[float] = ()
) -> RankParameters:
    """Parameters on the fullest rank of a position that holds these layers, each [first, end). Errors: PlanError."""
    share = largest_share(spec, tp, shares)
    kinds = {kind: layer_rank_parameters(spec, layer, share, ep) for kind, layer in layer_kinds(spec).items()}
    first = any(begin == 0 for begin, _ in ranges)
    last = any(end == spec.layers for _, end in ranges)
    found = end_rank_parameters(spec, share, first=first, last=last)
    for begin, end in ranges:
        with_experts = sum(has_experts(spec, layer) for layer in range(begin, end))
        for kind, count in ((True, with_experts), (False, end - begin - with_experts)):
            if count:
                found = RankParameters(
                    found.dense + count * kinds[kind].dense, found.experts + count * kinds[kind].experts
                )
    return found


def state_bytes(parameters: RankParameters, recipe: Recipe, zero: int = 0, split: Split | None = None) -> StateBytes:
    """What a rank with these parameters holds. ZeRO-1 shards optimizer states, 2 gradients too, 3 weights too.

    They are sharded over the ranks that hold the same parameters: dp × ep × cp of the dense ones, dp × cp of experts'.
    Source: Rajbhandari et al., "ZeRO" (2020), section 5 and figure 1.
    """
    split = split or Split()
    sharing = split.dp * split.cp
    dense = _sharded(parameters.dense, recipe, zero, sharing * split.ep)
    return dense.plus(_sharded(parameters.experts, recipe, zero, sharing))


def _sharded(parameters: int, recipe: Recipe, zero: int, ranks: int) -> StateBytes:
    return StateBytes(
        parameters * recipe.weight_bytes / (ranks if zero >= 3 else 1),
        parameters * recipe.gradient_bytes / (ranks if zero >= 2 else 1),
        parameters * recipe.optimizer_bytes / (ranks if zero >= 1 else 1),
    )
