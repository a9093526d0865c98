"""The feed-forward half of a layer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from plait.nn.linear import Linear, Packed, make_linear
from plait.spec.model import ModelSpec


class Inner(Protocol):
    """What comes before the down projection: [T, hidden] to [T, intermediate]."""

    def __call__(self, x: Tensor) -> Tensor:
        """[T, hidden] to [T, intermediate]."""


class GatedPacked:
    """SiLU(x G) · (x U), both taken inside the matrix products."""

    def __init__(self, gate: Packed, up: Packed) -> None:
        self._gate, self._up = gate, up

    def __call__(self, x: Tensor) -> Tensor:
        """[T, hidden] to [T, intermediate]."""
        return self._up.times(x, self._gate(x, "swish"))


class Gated:
    """act(x G) · (x U) as one matrix product."""

    def __init__(self, both: Linear, activation: Callable[[Tensor], Tensor]) -> None:
        self._both, self._activation = both, activation

    def __call__(self, x: Tensor) -> Tensor:
        """[T, hidden] to [T, intermediate]."""
        gate, up = self._both(x).chunk(2, dim=-1)
        return self._activation(gate).mul_(up)


class Plain:
    """act(x U)."""

    def __init__(self, up: Linear, activation: Callable[[Tensor], Tensor]) -> None:
        self._up, self._activation = up, activation

    def __call__(self, x: Tensor) -> Tensor:
        """[T, hidden] to [T, intermediate]."""
        return self._activation(self._up(x))


Part = tuple[Tensor, Tensor | None]
"""A weight and its bias."""


def make_inner(spec: ModelSpec, gate: Part | None, up: Part, packed: bool) -> Inner:
    """The inner half for `spec`; `gate` is None in a plain MLP."""
    activation = _activation(spec)
    if gate is None:
        return Plain(make_linear(*up, packed), activation)
    if packed and spec.activation == "silu" and up[0].numel():
        return GatedPacked(Packed(*gate), Packed(*up))
    bias = None if gate[1] is None or up[1] is None else torch.cat([gate[1], up[1]])
    return Gated(make_linear(torch.cat([gate[0], up[0]]), bias, packed), activation)


def _activation(spec: ModelSpec) -> Callable[[Tensor], Tensor]:
    if spec.activation == "silu":
        return silu
    return partial(gelu, approximate="tanh" if spec.activation == "gelu_tanh" else "none")
