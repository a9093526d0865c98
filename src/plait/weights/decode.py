"""Bytes of a file to a tensor. The gguf package decodes the packed types."""

from __future__ import annotations

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

    assert shape[-1] % BLOCKS[kind][0] == 0, "blocks never cross a row"
    # as one row: the package decodes 16 rows at a time, and small rows cost it twice the time
    values = dequantize(np.frombuffer(content, dtype=np.uint8)[None], GGMLQuantizationType[kind])
    return torch.from_numpy(values).view(shape)
