"""What replicas sum of a stage's gradients, and what ZeRO-1 gathers of its weights: described for the executor."""

from __future__ import annotations

import torch
from torch import Tensor

from plait.executor.reduction import Op, Reduction
from plait.trainer.held import HeldStage, Span


class StageReductions:
    """Of one stage, whose replicas sum part by part."""

    def __init__(self, held: HeldStage) -> None:
        self._held = held
        self._gathering: Tensor | None = None

    def gradients(self, part: int | None) -> Reduction | None:
        """G of a part, or of all where it is not cut."""
        held, parts = self._held, self._held.stage.parts
        assert part is not None or len(parts) == 1, "a stage in parts is reduced part by part"
        first, end = span = parts[part or 0]
        op = Op.REDUCE_SCATTER if held.sharded else Op.ALL_REDUCE
        return Reduction(op, held.replicas, held.stage.flat.gradients[first:end], held.bounds(span))

    def weights(self) -> Reduction | None:
        """A: every replica gets what the others have updated, in the dtype that is computed in.

        A replica's pieces of several parts travel as one.
        """
        held, stage = self._held, self._held.stage
        if len(stage.parts) == 1:
            first, end = span = stage.parts[0]
            return Reduction(Op.ALL_GATHER, held.replicas, stage.flat.weights[first:end], held.bounds(span))
        pieces = [self._pieces(index) for index in range(len(held.replicas))]
        bounds = [0]
        for spans in pieces:
            bounds.append(bounds[-1] + sum(end - first for first, end in spans))
        self._gathering = torch.empty(bounds[-1], dtype=stage.dtype, device=stage.flat.weights.device)
        at = bounds[held.index]
        for first, end in pieces[held.index]:
            self._gathering[at : at + end - first] = stage.flat.weights[first:end]
            at += end - first
        return Reduction(Op.ALL_GATHER, held.replicas, self._gathering, tuple(bounds))

    def gathered(self) -> None:
        """A has ended: pieces of several parts go to their places."""
        flat, at = self._gathering, 0
        if flat is None:
            return
        self._gathering = None
        for index in range(len(self._held.replicas)):
            for first, end in self._pieces(index):
                if index != self._held.index:
                    self._held.stage.flat.weights[first:end] = flat[at : at + end - first]
                at += end - first

    def _pieces(self, index: int) -> list[Span]:
        """A replica's piece of each part."""
        found = []
        for span in self._held.stage.parts:
            bounds = self._held.bounds(span)
            found.append((span[0] + bounds[index], span[0] + bounds[index + 1]))
        return found
