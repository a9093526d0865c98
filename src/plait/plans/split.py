"""A split: how many ways each axis divides the work, and how a training step goes through it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Recompute = Literal["none", "selective", "full"]
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")


@dataclass(frozen=True, slots=True)
class Split:
    """Sizes of the axes. `ep` is an axis of its own: ranks = dp × ep × pp × tp, the batch is divided over dp × ep.

    `cp` (context) splits every sequence over so many ranks more; it is planned only, since published runs use it.
    """

    dp: int = 1
    pp: int = 1
    tp: int = 1
    ep: int = 1
    cp: int = 1

    @property
    def ranks(self) -> int:
        """Devices that the split takes."""
        return self.dp * self.ep * self.pp * self.tp * self.cp


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """How one training step runs: the split, the schedule, and what is recomputed and sharded.

    `micro_batch`: sequences in a micro-batch. `micro_batches`: of them go through each pipeline in a step.
    `virtual`: stages a position holds. `zero`: 0 to 3; 2 and 3 are planned only. `sequence_split`: activations between
    the tensor-parallel blocks are split along the sequence over tp. `fused_attention`: scores are never stored (flash
    attention), so that selective recompute has nothing left to do.
    """

    split: Split
    schedule: str
    micro_batch: int
    micro_batches: int
    virtual: int = 1
    recompute: Recompute = "none"
    zero: int = 0
    sequence_split: bool = False
    fused_attention: bool = True
