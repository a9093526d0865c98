"""The layout: axes, the cut into stages, and what each stage runs on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

DTYPES = ("bfloat16", "float32")
"""The dtypes a stage can compute and store its weights in."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A contiguous run of layers [first, end) on `ranks`, computed in `dtype` with weights stored as `weights`.

    `ranks`: tensor groups one after the other. `devices`: the cluster's name of each rank's device. `shares`: what each
    rank of a tensor group gets, in proportion to its device's speed; empty means as even as it divides.
    """

    layers: tuple[int, int]
    ranks: tuple[int, ...]
    dtype: str = "float32"
    weights: str = "float32"
    threads: int = 1
    device: str = "cpu"
    host: str = "localhost"
    devices: tuple[str, ...] = ()
    shares: tuple[int, ...] = ()

    @property
    def layer_count(self) -> int:
        """How many layers the stage holds."""
        return self.layers[1] - self.layers[0]


@dataclass(frozen=True, slots=True)
class Layout:
    """Axes (ordered: name to size), stages in order, and `link_capacity`, the k of every directed link.

    `epoch` is the plan's number; a re-plan counts up. `sequence`: in generation, activations between the blocks are
    split along the sequence over a tensor group.
    """

    axes: Mapping[str, int]
    stages: tuple[Stage, ...]
    link_capacity: int = 2
    epoch: int = 0
    sequence: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "axes", MappingProxyType(dict(self.axes)))

    @property
    def ranks(self) -> int:
        """Number of ranks: the product of the axes."""
        return prod(self.axes.values())

    @property
    def tp(self) -> int:
        """Ranks of a tensor group."""
        return self.axes.get("tp", 1)

    def tensor_group(self, stage: int, rank: int) -> tuple[int, ...]:
        """The ranks that share the layers of `stage` with `rank`, itself among them."""
        ranks = self.stages[stage].ranks
        first = ranks.index(rank) // self.tp * self.tp
        return ranks[first : first + self.tp]

    def stage_of(self, rank: int) -> int:
        """The first stage that `rank` holds."""
        return next(index for index, stage in enumerate(self.stages) if rank in stage.ranks)

    @property
    def positions(self) -> tuple[tuple[int, ...], ...]:
        """The stages of each pipeline position: those of the same ranks are one position's (virtual stages)."""
        held: dict[tuple[int, ...], list[int]] = {}
        for index, stage in enumerate(self.stages):
            held.setdefault(stage.ranks, []).append(index)
        return tuple(map(tuple, held.values()))

    @property
    def cut(self) -> tuple[tuple[int, int], ...]:
        """Each stage's layers."""
        return tuple(stage.layers for stage in self.stages)
