"""What a sharded layer needs of the ranks that share it. `comm` provides it; nn never sees a transport."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class TensorGroup(Protocol):
    """One rank's side of a tensor group. All its ranks call the same in the same order; sums add in rank order."""

    @property
    def index(self) -> int:
        """This rank's place in the group."""

    @property
    def size(self) -> int:
        """How many ranks share the layer."""

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum over the group, in place. Returns `tensor`."""

    def reduce_scatter(self, tensor: Tensor, sizes: Sequence[int]) -> Tensor:
        """The sum of `tensor` [sum(sizes), …]; of it this rank's `sizes[index]` rows."""

    def all_gather(self, tensor: Tensor, sizes: Sequence[int]) -> Tensor:
        """All ranks' `tensor` [sizes[i], …] one after another: [sum(sizes), …]."""


class Alone:
    """The group of one rank: nothing is exchanged."""

    index, size = 0, 1

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """See `TensorGroup`."""
        return tensor

    def reduce_scatter(self, tensor: Tensor, sizes: Sequence[int]) -> Tensor:
        """See `TensorGroup`."""
        return tensor

    def all_gather(self, tensor: Tensor, sizes: Sequence[int]) -> Tensor:
        """See `TensorGroup`."""
        return tensor
