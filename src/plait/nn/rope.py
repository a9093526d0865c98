"""Rotary positions. Pairs that rotate together lie side by side, so that one complex product rotates a head.

Hugging Face stores heads in halves (dimension i rotates with i + dims/2); `interleave` permutes the rows of the
query and key weights once, at load. Scores are sums over dimensions and do not see the order.

The variants are those of `transformers` (modeling_rope_utils.py): linear (Chen et al. 2023, arXiv:2306.15595), llama3
(the Llama 3.1 release), yarn (Peng et al. 2023, arXiv:2309.00071).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from plait.spec.model import Rope


def interleave(rows: Tensor, head_dim: int, dims: int) -> Tensor:
    """Permute heads from halves to pairs. `rows` is [heads × head_dim, ...]; only the first `dims` of a head rotate."""
    half = dims // 2
    order = torch.arange(head_dim, device=rows.device)
    order[0:dims:2] = torch.arange(half, device=rows.device)
    order[1:dims:2] = torch.arange(half, dims, device=rows.device)
    return rows.view(len(rows) // head_dim, head_dim, *rows.shape[1:])[:, order].flatten(0, 1)


def rotations(rope: Rope, head_dim: int, positions: int, dtype: torch.dtype) -> Tensor:
    """The factors of every position, complex [positions, head_dim / 2], in twice the bits of max(dtype, float32).

    Dimensions that do not rotate have the factor 1. Angles are taken in float64.
    """
    angles = torch.outer(torch.arange(positions, dtype=torch.float64), frequencies(rope))  # [positions, dims / 2]
    factors = torch.ones(positions, head_dim // 2, dtype=torch.complex128)
    factors[:, : rope.dims // 2] = torch.polar(torch.full_like(angles, attention_factor(rope)), angles)
    return factors if dtype == torch.float64 else factors.to(torch.complex64)


def attention_factor(rope: Rope) -> float:
    """What multiplies cos and sin: 1 but for yarn."""
    if rope.attention_factor is not None:
        return rope.attention_factor
    return 0.1 * math.log(rope.factor) + 1.0 if rope.variant == "yarn" and rope.factor > 1 else 1.0


def frequencies(rope: Rope) -> Tensor:
    """Radians a position, float64 [dims / 2]."""
    base = rope.theta ** -(torch.arange(0, rope.dims, 2, dtype=torch.float64) / rope.dims)
    if rope.variant == "linear":
        return base / rope.factor
    if rope.variant == "llama3":
        return _llama3(rope, base)
    return _yarn(rope, base) if rope.variant == "yarn" else base


def _llama3(rope: Rope, base: Tensor) -> Tensor:
    assert rope.original_positions is not None, "llama3 needs original_positions"
    turns = rope.original_positions * base / (2 * math.pi)  # over the original context
    smooth = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    smooth = smooth.clamp(0, 1)
    return (1 - smooth) * base / rope.factor + smooth * base


def _yarn(rope: Rope, base: Tensor) -> Tensor:
    assert rope.original_positions is not None, "yarn needs original_positions"
    low = _dimension(rope, rope.beta_fast, rope.original_positions)
    high = _dimension(rope, rope.beta_slow, rope.original_positions)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dims - 1)
    width = high - low if high != low else 0.001
    slow = ((torch.arange(len(base), dtype=torch.float64) - low) / width).clamp(0, 1)
    return base / rope.factor * slow + base * (1 - slow)


def _dimension(rope: Rope, turns: float, positions: int) -> float:
    """The dimension that makes `turns` turns over `positions`."""
    return rope.dims * math.log(positions / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))
