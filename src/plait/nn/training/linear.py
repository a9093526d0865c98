"""Products with weights that learn: forward, and a backward in two halves, for inputs and for weights.

The half for weights needs a product's inputs and the gradient of its outputs, and nobody waits for it: it is noted in
`Products`, and done at once or later, as the schedule likes. It never walks autograd's graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function

from plait.nn.training.collectives import Exchange
from plait.nn.training.functions import applied
from plait.nn.training.options import Place
from plait.nn.training.parameters import Weight


class Products:
    """Weight products of one micro-batch's backward; where they wait, `run` does them in the order they came."""

    def __init__(self, later: bool = False) -> None:
        self.later = later
        self._waiting: list[tuple[Weight, Tensor, Tensor, float]] = []

    def add(self, weight: Weight, gradient: Tensor, inputs: Tensor, scale: float = 1.0) -> None:
        """weight's gradient += scale · gradientᵀ · inputs."""
        if self.later:
            self._waiting.append((weight, gradient.detach(), inputs.detach(), scale))
        else:
            weight.add_product(gradient, inputs, scale)

    def run(self) -> None:
        """Do what waits."""
        for weight, gradient, inputs, scale in self._waiting:
            weight.add_product(gradient, inputs, scale)
        self._waiting.clear()


@dataclass(frozen=True, slots=True)
class Pass:
    """What all functions of one micro-batch's forward and backward share, in one part of the stage.

    `length`: tokens of a sequence. `place`: of the micro-batch in the training run. `keeps_whole`: gathered rows are
    kept for the weight's product; otherwise only this rank's, and the backward gathers them once more (Korthikanti et
    al. 2022, section 4.2.2).
    """

    exchange: Exchange
    products: Products
    length: int
    place: Place
    keeps_whole: bool = False


class Linear:
    """A weight [out, in], or a rank's piece, and its bias."""

    def __init__(self, weight: Weight, bias: Weight | None) -> None:
        self.weight, self.bias = weight, bias

    def by_outputs(self, x: Tensor, at: Pass) -> Tensor:
        """Where outputs are cut: x as it lies between the blocks, to [tokens, out of this rank]."""
        return applied(_ByOutputs, x, self, at)

    def by_inputs(self, x: Tensor, residual: Tensor | None, at: Pass) -> Tensor:
        """Where inputs are cut: x [tokens, in of this rank], to what lies between the blocks; plus `residual`."""
        return applied(_ByInputs, x, residual, self, at)

    def learn(self, gradient: Tensor, inputs: Tensor, at: Pass) -> None:
        """Note the weight's product."""
        at.products.add(self.weight, gradient, inputs)

    def learn_bias(self, gradient: Tensor) -> None:
        """Add the gradient of the bias."""
        if self.bias is not None and self.bias.learns:
            self.bias.add(gradient.sum(0, dtype=torch.promote_types(gradient.dtype, torch.float32)))


class _ByOutputs(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, linear: Linear, at: Pass) -> Tensor:
        whole = at.exchange.whole(x)
        kept = whole if at.keeps_whole else x
        ctx.save_for_backward(kept if linear.weight.learns else None)
        ctx.linear, ctx.at = linear, at
        weight, bias = linear.weight.weight, linear.bias
        return torch.mm(whole, weight.t()) if bias is None else torch.addmm(bias.weight, whole, weight.t())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (kept,) = ctx.saved_tensors
        linear, at = ctx.linear, ctx.at
        if kept is not None:
            linear.learn(gradient, kept if at.keeps_whole else at.exchange.whole(kept), at)
        parts = torch.mm(gradient, linear.weight.weight)
        linear.learn_bias(gradient)
        return at.exchange.summed(parts), None, None


class _ByInputs(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor | None, linear: Linear, at: Pass) -> Tensor:
        ctx.save_for_backward(x if linear.weight.learns else None)
        ctx.linear, ctx.at, ctx.has_residual = linear, at, residual is not None
        out = at.exchange.summed(torch.mm(x, linear.weight.weight.t()))
        if linear.bias is not None:  # once, behind the sum
            out.add_(linear.bias.weight)
        return out if residual is None else out.add_(residual)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        linear, at = ctx.linear, ctx.at
        linear.learn_bias(gradient)
        whole = at.exchange.whole(gradient)
        if x is not None:
            linear.learn(whole, x, at)
        return torch.mm(whole, linear.weight.weight), gradient if ctx.has_residual else None, None, None
