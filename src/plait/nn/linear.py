"""Matrix products with weights that are laid out once, at load, for the rows that will come.

Two layouts, since none is fastest for all (docs/decisions/0004):

- columns: [in, out], contiguous. In float32 the fastest for one row, up to 30 % slower for four to sixteen.
- packed: oneDNN's blocked order. In bfloat16 the fastest for any number of rows; in float32 for two to thirty-two, and
  there a row's result has the same bits whatever its neighbours are.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Linear(Protocol):
    """``x @ weight.T + bias`` for x [T, in]."""

    def __call__(self, x: Tensor) -> Tensor:
        """[T, in] to [T, out]."""

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """The product plus `residual` [T, out]."""


class Columns:
    """Weight as [in, out]."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self._bias = weight.t().clone(memory_format=torch.contiguous_format), bias

    def __call__(self, x: Tensor) -> Tensor:
        """[T, in] to [T, out]."""
        return torch.mm(x, self._weight) if self._bias is None else torch.addmm(self._bias, x, self._weight)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """The product plus `residual` [T, out]."""
        out = torch.addmm(residual, x, self._weight)
        return out if self._bias is None else out.add_(self._bias)


class Packed:
    """Weight in oneDNN's order; SiLU and products with another tensor are taken in the same call."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self._bias = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous()), bias
        self._call = torch.ops.mkldnn._linear_pointwise.default
        self._with = torch.ops.mkldnn._linear_pointwise.binary
        self._lone = weight.dtype == torch.float32

    def __call__(self, x: Tensor, then: str = "none") -> Tensor:
        """[T, in] to [T, out]; `then` "swish" applies SiLU."""
        if self._lone and x.shape[0] == 1:
            both: Tensor = self._call(x.expand(2, -1), self._weight, self._bias, then, [], "")
            return both[:1]
        out: Tensor = self._call(x, self._weight, self._bias, then, [], "")
        return out

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """The product plus `residual` [T, out]."""
        return self._combined(x, residual, "add")

    def times(self, x: Tensor, factor: Tensor) -> Tensor:
        """The product times `factor` [T, out], element by element."""
        return self._combined(x, factor, "mul")

    def _combined(self, x: Tensor, other: Tensor, how: str) -> Tensor:
        if self._lone and x.shape[0] == 1:  # one row would have other bits than the same row among several
            both: Tensor = self._with(x.expand(2, -1), other.expand(2, -1), self._weight, self._bias, how)
            return both[:1]
        out: Tensor = self._with(x, other, self._weight, self._bias, how)
        return out


def packs(dtype: torch.dtype, device: torch.device, rows: int) -> bool:
    """Whether weights of this dtype are packed, where a decoding micro-batch usually has `rows` rows."""
    if device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32 and rows > 1


def make_linear(weight: Tensor, bias: Tensor | None, packed: bool) -> Linear:
    """A linear of `weight` [out, in], which the caller lets go. A rank of a tensor group may hold none of it."""
    return Packed(weight, bias) if packed and weight.numel() else Columns(weight, bias)
