"""What a reduction or a gather moves: data that a worker describes and the executor does."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch


class Op(Enum):
    """What happens to the pieces of a flat tensor over a group."""

    ALL_REDUCE = "all-reduce"
    """Every rank has the sum of all."""
    REDUCE_SCATTER = "reduce-scatter"
    """Every rank has the sum of its own piece; its other pieces keep what they were."""
    ALL_GATHER = "all-gather"
    """Every rank has every rank's own piece."""


@dataclass(frozen=True, slots=True, eq=False)
class Reduction:
    """`op` in place on `flat` [items] over `ranks` (ascending, this one among them), added in rank order.

    Rank i's piece is [bounds[i], bounds[i + 1]) of `flat`; bounds begin with 0 and end with its length; a piece may be
    empty. Of one rank nothing is moved.
    """

    op: Op
    ranks: tuple[int, ...]
    flat: torch.Tensor
    bounds: tuple[int, ...]
