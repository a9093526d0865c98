"""Calls of autograd's functions, with a type, and a function that its backward does again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import Function


def applied(function: type[Function], *given: object) -> Tensor:
    """What `function` gives; autograd will call its backward."""
    return cast("Tensor", function.apply(*given))  # type: ignore[no-untyped-call]


def run_again(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """``function(x)``, of which only `x` is kept: the backward runs it again.

    It must give the same bits again. Nothing of torch's random state is saved: dropout's masks are a hash.
    """
    return applied(_Again, x, function)


def root_of(left: Tensor, given: list[Tensor]) -> Tensor:
    """A scalar whose gradient, 1, becomes at `left` the tensor that `given` will hold by then.

    So autograd is never handed a gradient from outside: for one, it imports sympy first, which takes every rank about a
    second.
    """
    with torch.enable_grad():
        return applied(_Root, left, given)


class _Root(Function):
    @staticmethod
    def forward(ctx: Any, left: Tensor, given: list[Tensor]) -> Tensor:
        ctx.given = given
        return left.new_zeros(())

    @staticmethod
    def backward(ctx: Any, one: Tensor) -> Any:
        return ctx.given.pop(), None


class _Again(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.function = function
        return function(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            root = root_of(ctx.function(x), [gradient])
        return *torch.autograd.grad(root, x), None
