"""What a stage that learns is told beside its model, and where in the training run a micro-batch stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from plait.plans.split import Recompute


@dataclass(frozen=True, slots=True)
class StageOptions:
    """`parts`: runs of layers, the last layers first, in which gradients are stored and the backward may be done.

    `recompute`: "full" keeps each layer's input only and runs its forward again in the backward; "selective" does so
    with attention between its two products. `dropout`: share of values dropped after the embedding and of what
    attention and MLP add; `seed`: of its masks. `frozen`: names of tensors that do not learn, of any stage.
    """

    parts: int = 1
    recompute: Recompute = "none"
    dropout: float = 0.0
    seed: int = 0
    frozen: frozenset[str] = frozenset()


class Place(NamedTuple):
    """The step, and the number of a micro-batch's first sequence in the global batch: dropout's masks hang on them."""

    step: int = 0
    sequence: int = 0
