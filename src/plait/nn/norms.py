"""Normalisations, computed in max(float32, dtype)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn.functional import layer_norm, rms_norm

Norm = Callable[[Tensor], Tensor]


def make_norm(weight: Tensor, bias: Tensor | None, eps: float, layer: bool) -> Norm:
    """RMSNorm over the last dimension, or LayerNorm where `layer`."""
    shape = weight.shape
    if layer:
        return lambda x: layer_norm(x, shape, weight, bias, eps)
    assert bias is None, "an RMSNorm has no bias"
    return lambda x: rms_norm(x, shape, weight, eps)
