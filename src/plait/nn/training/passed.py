"""A micro-batch between its forward and its backward."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from plait.nn.training.functions import root_of
from plait.nn.training.linear import Pass


class Segment:
    """The graph of one part of the stage. Of what it gave only the node is kept, not the values."""

    def __init__(self, entered: Tensor, left: Tensor, at: Pass) -> None:
        self.at = at
        self._given: list[Tensor] = []
        self._ends: tuple[GradientEdge, Tensor] | None = (get_gradient_edge(root_of(left, self._given)), entered)

    def backward(self, gradient: Tensor) -> Tensor:
        """The gradient of what it was given, from that of what it gave. Once: nothing is kept."""
        assert self._ends is not None, "a micro-batch comes back once"
        (root, entered), self._ends = self._ends, None
        self._given.append(gradient)
        return torch.autograd.grad(root, entered)[0]


@dataclass(slots=True)
class Passed:
    """A micro-batch that went forward through a stage, and has still to come back.

    `hidden`: for the next stage, this rank's `even_rows` of all tokens; None on the last stage. Whoever has sent it may
    set it to None: nothing here needs it. `loss`: there, the sum over the `valid` tokens, the same on every rank; a
    mean over a global batch is the caller's to divide.
    """

    hidden: Tensor | None
    loss: Tensor | None
    valid: int
    tokens: Tensor | None
    mask: Tensor | None = None  # of dropout behind the embedding
    segments: list[Segment] = field(default_factory=list)  # by part
    gradient: Tensor | None = None  # between two parts of the backward
