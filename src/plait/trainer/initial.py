"""Initial weights by counter hash: the same for every mesh, whoever asks for them."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from plait.nn.hashing import fold, mix
from plait.spec.model import ModelSpec

_DEVIATION = 0.02
_BITS = 52


def initial_tensor(spec: ModelSpec, name: str, shape: Sequence[int], seed: int) -> Tensor:
    """The whole tensor `name` of a model that has learned nothing, float32 `shape`.

    Weights are normal with deviation 0.02; of products that add to the residual that ÷ √(2 · layers) (Radford et al.,
    "Language Models are Unsupervised Multitask Learners" (2019), section 2.3). Norms are 1, biases 0.
    """
    stem, _, kind = name.rpartition(".")
    short = stem.rpartition(".")[2]
    if kind == "bias":
        return torch.zeros(*shape)
    if short.endswith("norm"):
        return torch.ones(*shape)
    deviation = _DEVIATION / math.sqrt(2 * spec.layers) if short in ("o", "down") else _DEVIATION
    return _normal(fold(seed, zlib.crc32(name.encode())), shape).mul_(deviation)


def _normal(key: int, shape: Sequence[int]) -> Tensor:
    """Normal numbers, float32: the inverse of the distribution at the middle of one of 2^52 equal steps."""
    bits = (mix(key, torch.arange(math.prod(shape))) >> (64 - _BITS)).bitwise_and_((1 << _BITS) - 1)
    uniform = bits.to(torch.float64).add_(0.5).mul_(2.0**-_BITS)
    normal: Tensor = torch.special.ndtri(uniform)
    return normal.to(torch.float32).view(*shape)
