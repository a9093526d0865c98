"""What the executor of training steps needs of the stages that its rank holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from plait.executor.reduction import Reduction
from plait.plans.action import Action
from plait.plans.round import Round


class StepWorker(Protocol):
    """What one position's stages compute in a training step; each action names its stage.

    A message is what the stage before (F) or after (B, I) returned, also where that is on the same position. The
    executor keeps no tensor that it has handed on. `reduction` and `reduced` may be called in the middle of a
    computation of another action, while that waits for its tensor group.
    """

    def forward(self, one: Round, action: Action, message: torch.Tensor | None) -> torch.Tensor | None:
        """F: activations for the stage after, None on the last. `message`: None on the first stage."""

    def backward(self, one: Round, action: Action, message: torch.Tensor | None) -> torch.Tensor | None:
        """B and I, whole or a part: the gradient of the input; None on the first stage, and of all parts but the last.

        `message`: the gradient of the output. None on the last stage, and for all parts but the first.
        """

    def weigh(self, one: Round, action: Action) -> None:
        """W, whole or a part: the gradients of the weights, after I."""

    def reduction(self, one: Round, action: Action) -> Reduction | None:
        """G, T or A: what is to be done, asked when it begins; None where that is nothing."""

    def reduced(self, one: Round, action: Action) -> None:
        """G, T or A has ended."""

    def norm(self, one: Round, action: Action) -> None:
        """N: every G and T of the position has ended."""

    def update(self, one: Round, action: Action) -> None:
        """O: every G and T of the stage has ended, and the position's N."""

    def exchanged(self) -> tuple[int, Sequence[tuple[float, float]]]:
        """What was exchanged inside computations since this was last asked: bytes sent, begins and ends."""
