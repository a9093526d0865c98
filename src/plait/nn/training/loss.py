"""Cross-entropy where each rank has the logits of its own vocabulary rows; nobody gathers them.

Of every token the ranks tell each other three numbers: their largest logit, the sum of exponentials against it, and the
target's logit where it is theirs. Combined in rank order they give every rank the same loss, and the softmax of its own
rows, which takes the logits' memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import Function

from plait.nn.group import TensorGroup
from plait.nn.training.functions import applied
from plait.nn.training.linear import Pass
from plait.nn.training.parameters import Weight
from plait.spec.shards import Range

IGNORED = -100
"""The target of a token that does not count."""


class Losses(NamedTuple):
    """Of one rank: the summed loss of the whole group, and its gradient with respect to this rank's logits."""

    total: Tensor  # float32, or float64
    gradient: Tensor  # [tokens, rows of this rank], in the logits' memory


def losses(logits: Tensor, targets: Tensor, rows: Range, group: TensorGroup) -> Losses:
    """Of `logits` [tokens, rows of this rank], in max(float32, dtype), and `targets` [tokens] of the whole vocabulary.

    The logits are overwritten. Tokens whose target is `IGNORED` count nothing.
    """
    local = targets - rows.first
    held = (local >= 0) & (local < rows.size)
    largest, total, picked = _told(logits, local, held)
    told = group.all_gather(torch.stack([largest, total, picked], dim=1), (len(targets),) * group.size)
    tops, sums, of_targets = told.view(group.size, -1, 3).unbind(2)  # each [ranks, tokens]
    top = tops.amax(0)
    whole = (sums * (tops - top).exp_()).sum(0)
    valid = targets != IGNORED
    loss = torch.where(valid, top + whole.log() - of_targets.sum(0), 0)
    factor = torch.where(valid, total * (largest - top).exp_() / whole, 0)  # from this rank's softmax to the whole one
    logits.mul_(factor.unsqueeze(1))
    tokens = held.nonzero()[:, 0]
    logits[tokens, local[tokens]] -= 1
    return Losses(loss.sum(), logits)


def _told(logits: Tensor, local: Tensor, held: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Largest logit, sum of exponentials against it, the target's logit or 0; `logits` become their own softmax."""
    if not logits.shape[1]:
        nothing = logits.new_zeros(len(local))
        return nothing - torch.inf, nothing, nothing
    largest = logits.amax(1)
    picked = logits.gather(1, local.clamp(0, logits.shape[1] - 1).unsqueeze(1))[:, 0].where(held, 0)
    torch.softmax(logits, dim=1, out=logits)
    return largest, logits.amax(1).reciprocal_(), picked  # the largest's share is 1 ÷ the sum


class Head:
    """The LM head with its loss. `rows`: of the vocabulary, that this rank has."""

    def __init__(self, weight: Weight, rows: Range) -> None:
        self.weight, self.rows = weight, rows

    def __call__(self, x: Tensor, targets: Tensor, at: Pass) -> Tensor:
        """The summed loss of x, as it lies between the blocks, against `targets` [tokens]."""
        return applied(_HeadLoss, x, self, targets, at)

    def logits(self, x: Tensor, at: Pass) -> Tensor:
        """[tokens, rows of this rank], in max(float32, dtype)."""
        product = torch.mm(at.exchange.whole(x), self.weight.weight.t())
        return product.to(torch.promote_types(product.dtype, torch.float32))


class _HeadLoss(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, head: Head, targets: Tensor, at: Pass) -> Tensor:
        whole = at.exchange.whole(x)
        logits = torch.mm(whole, head.weight.weight.t())
        total, gradient = losses(
            logits.to(torch.promote_types(x.dtype, torch.float32)), targets, head.rows, at.exchange.group
        )
        ctx.save_for_backward(x if head.weight.learns else None, gradient)
        ctx.head, ctx.at = head, at
        return total

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> Any:
        x, gradient = ctx.saved_tensors
        head, at, factor = ctx.head, ctx.at, float(scale)
        gradient = gradient.to(head.weight.weight.dtype)
        if x is not None:
            at.products.add(head.weight, gradient, at.exchange.whole(x), factor)
        parts = torch.mm(gradient, head.weight.weight).mul_(factor)
        return at.exchange.summed(parts), None, None, None
