"""The small models that are certified: one a family, with sizes that divide by nothing.

Weights are larger than a fresh model's, so that no gradient is so small that a fault in it could hide. Embeddings are
larger still, and what blocks add is kept small: or else deep models amplify the rounding of float32.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from plait.errors import SpecError, nearest
from plait.spec.model import ModelSpec, Rope
from plait.spec.tensors import Shape, model_tensors

_LLAMA = ModelSpec(
    name="llama",
    family="llama",
    layers=1,
    hidden=12,
    heads=3,
    kv_heads=3,
    head_dim=4,
    intermediate=14,
    vocab=19,
    max_positions=16,
    norm_eps=1e-5,
    rope=Rope(theta=100.0, dims=4),
    windows=(None,),
)
_BIASES = {"qkv_bias": True, "output_bias": True, "mlp_bias": True}
_YARN = Rope(theta=100.0, dims=4, variant="yarn", factor=4.0, original_positions=4)


@lru_cache(maxsize=1)
def _families() -> Mapping[str, ModelSpec]:
    """Of each family a model of one layer; `windows` are those of its layers, over and over."""
    changes: Mapping[str, dict[str, object]] = {
        "llama": {},
        "grouped": {"heads": 4, "kv_heads": 2, "rope": _YARN},  # 3 ranks share 2 KV heads
        "gpt2": {
            "family": "gpt2",
            "rope": None,
            "norm": "layer",
            "mlp": "plain",
            "activation": "gelu_tanh",
            **_BIASES,
        },
        "gemma": {"activation": "gelu_tanh", "head_dim": 6, "kv_heads": 1, "rope": Rope(100.0, 6)},
        "mistral": {"family": "mistral", "windows": (3, None)},
        "olmo2": {"family": "olmo2", "norm_placement": "post", "qk_norm": "full"},
        "phi3": {"family": "phi3", "rope": Rope(100.0, 2), "hidden": 10, "vocab": 17},
        "qwen2": {"family": "qwen2", "qkv_bias": True, "heads": 4, "kv_heads": 1, "vocab": 23},
        "qwen3": {"family": "qwen3", "qk_norm": "head"},
    }
    return {name: replace(_LLAMA, name=name, **change) for name, change in changes.items()}  # type: ignore[arg-type]


FAMILIES = tuple(_families())


@dataclass(frozen=True, slots=True)
class Small:
    """What names a small model, and the batches that it learns from."""

    family: str
    layers: int
    tied: bool
    seed: int = 0


def small_spec(model: Small) -> ModelSpec:
    """The model's shape. Errors: SpecError for a family that is not known, with the nearest."""
    if model.family not in FAMILIES:
        raise SpecError(f"unknown small model {model.family!r}: {nearest(model.family, FAMILIES)}")
    spec = _families()[model.family]
    windows = tuple(spec.windows[layer % len(spec.windows)] for layer in range(model.layers))
    return replace(spec, layers=model.layers, windows=windows, tied=model.tied)


@lru_cache(maxsize=256)
def small_tensors(model: Small) -> Mapping[str, Tensor]:
    """All its initial tensors, whole, float64: each of its own random numbers, which depend on name and seed."""
    spec = small_spec(model)
    return {name: _tensor(spec, name, shape, model.seed) for name, shape in model_tensors(spec).items()}


def _tensor(spec: ModelSpec, name: str, shape: Shape, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    values = torch.randn(shape, dtype=torch.float64, generator=generator)
    if len(shape) == 1:
        added = spec.norm_placement == "post" and name.endswith(("attn_norm.weight", "mlp_norm.weight"))
        mean = 1.0 if name.endswith("norm.weight") else 0.0
        return (values * 0.2 + mean) * (0.25 if added else 1.0)
    return values * (1.5 if name.startswith(("embed", "positions")) else 0.7 / shape[-1] ** 0.5)
