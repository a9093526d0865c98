"""The gradient of an embedding that the first and the last stage both hold: one sum over both uses and all replicas."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from plait.executor.reduction import Op, Reduction
from plait.plans.pieces import piece_bounds
from plait.trainer.held import HeldStage


class TiedSum:
    """T on one rank. `ends`: the first and the last stage, those of them that the rank holds.

    `ranks`: all that hold the same rows of the vocabulary in either stage, ascending. Where a rank holds both ends it
    adds its two gradients at the second T, when both are there, and gives the sum to the others once.
    """

    def __init__(self, ends: Sequence[HeldStage], ranks: Sequence[int]) -> None:
        self._ends, self._ranks = tuple(ends), tuple(ranks)
        self._waiting = len(self._ends)
        self._sum: Tensor | None = None

    def begin(self) -> Reduction | None:
        """A T begins; None where it is the first of two."""
        self._waiting -= 1
        if self._waiting:
            return None
        self._waiting = len(self._ends)
        first, *others = (_gradient(end) for end in self._ends)
        self._sum = first
        for other in others:
            first.add_(other)
        return Reduction(Op.ALL_REDUCE, self._ranks, first, piece_bounds(first.numel(), len(self._ranks)))

    def end(self) -> None:
        """A T has ended: both ends have the sum."""
        if self._sum is None:
            return
        for end in self._ends[1:]:
            _gradient(end).copy_(self._sum)
        self._sum = None


def _gradient(end: HeldStage) -> Tensor:
    assert end.stage.tied is not None
    first, stop = end.stage.tied
    return end.stage.flat.gradients[first:stop]
