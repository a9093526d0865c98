"""Bytes of a file to a tensor. The gguf package decodes the packed types."""

from __future__ import annotations

import math

import torch

from plait.spec.tensors import Shape
from plait.weights.stored import BLOCKS

_PLAIN = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def decode(content: bytearray, kind: str, shape: Shape) -> torch.Tensor:
    """A tensor of `shape` in the type that is nearest to the stored one: its own, or float32 for packed ones."""
    if kind in _PLAIN:
        return torch.frombuffer(content, dtype=_PLAIN[kind]).view(shape)
    import numpy as np  # gguf brings it; plain types need neither
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    block, block_bytes = BLOCKS[kind]
    rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, shape[-1] // block * block_bytes)
    values = dequantize(rows, GGMLQuantizationType[kind])
    assert values.size == math.prod(shape)
    return torch.from_numpy(values).view(shape)
