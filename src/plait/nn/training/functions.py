"""Calls of autograd's functions, with a type."""

from __future__ import annotations

from typing import cast

from torch import Tensor
from torch.autograd.function import Function


def applied(function: type[Function], *given: object) -> Tensor:
    """What `function` gives; autograd will call its backward."""
    return cast("Tensor", function.apply(*given))  # type: ignore[no-untyped-call]
