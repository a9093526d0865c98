"""Tiny random models of every family: `transformers`' own, the same weights under our names, and our spec."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from plait.spec.huggingface import spec_from_config
from plait.spec.model import ModelSpec
from plait.spec.tensors import stage_tensors

_SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

_GPT2_SIZES = {
    "vocab_size": 97,
    "n_embd": 48,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _rope(variant: str, **values: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": variant, "rope_theta": 500.0, **values}}


_YARN = {"factor": 4.0, "original_max_position_embeddings": 64}

CASES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-9-3-tied": (
        "llama",
        {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 72, "tie_word_embeddings": True},
    ),
    "llama-bias": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-wide-heads": ("llama", {"head_dim": 20, "num_key_value_heads": 4}),
    "llama-linear": ("llama", _rope("linear", factor=2.5)),
    "llama-llama3": (
        "llama",
        _rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64),
    ),
    "llama-yarn": ("llama", _rope("yarn", **_YARN)),
    "llama-yarn-untruncated": ("llama", _rope("yarn", **_YARN, beta_fast=8.0, attention_factor=1.7, truncate=False)),
    "mistral-window": ("mistral", {"sliding_window": 7}),
    "mistral-full": ("mistral", {"sliding_window": None, "head_dim": 8}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-mixed-window": ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "phi3": ("phi3", {"sliding_window": 9}),
    "phi3-partial": ("phi3", _rope("default", partial_rotary_factor=0.5)),
    "olmo2": ("olmo2", {}),
    "gpt2": ("gpt2", {}),
}
"""Family and what differs from the sizes above."""


@dataclass(frozen=True)
class Tiny:
    spec: ModelSpec
    reference: nn.Module
    tensors: Mapping[str, Tensor]

    def weights(self, dtype: torch.dtype, first: int = 0, end: int | None = None) -> dict[str, Tensor]:
        """A stage's tensors, as the loader would hand them over."""
        names = stage_tensors(self.spec, first, self.spec.layers if end is None else end)
        return {name: self.tensors[name].to(dtype) for name in names}


def tiny(case: str) -> Tiny:
    """A random model, float64 weights under our names; the reference is in float32."""
    family, changes = CASES[case]
    sizes = _GPT2_SIZES if family == "gpt2" else _SIZES
    torch.manual_seed(len(case))
    config = transformers.AutoConfig.for_model(family, **{**sizes, **changes})
    config._attn_implementation = "eager"
    reference = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            scale = 0.3 if parameter.dim() == 1 else 1.2 / parameter.shape[-1] ** 0.5
            parameter.copy_(torch.randn(parameter.shape) * scale + (parameter.dim() == 1))
    spec = spec_from_config(config.to_dict(), case)
    return Tiny(spec, reference, _ours(spec, reference.state_dict()))


def _ours(spec: ModelSpec, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name, tensor in state.items():
        tensors |= _named(spec, name.removeprefix("model.").removeprefix("transformer."), tensor.double())
    if spec.tied:
        tensors.pop("head.weight", None)
    return tensors


_TOP = {"embed_tokens": "embed", "wte": "embed", "wpe": "positions", "ln_f": "norm", "lm_head": "head", "norm": "norm"}
_LAYER = {
    "input_layernorm": "attn_norm",
    "ln_1": "attn_norm",
    "ln_2": "mlp_norm",
    "self_attn.q_proj": "q",
    "self_attn.k_proj": "k",
    "self_attn.v_proj": "v",
    "self_attn.o_proj": "o",
    "self_attn.q_norm": "q_norm",
    "self_attn.k_norm": "k_norm",
    "attn.c_proj": "o",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "down",
    "mlp.c_fc": "up",
    "mlp.c_proj": "down",
}


def _named(spec: ModelSpec, name: str, tensor: Tensor) -> dict[str, Tensor]:
    path, kind = name.rsplit(".", 1)
    if path in _TOP:
        return {f"{_TOP[path]}.{kind}": tensor}
    _, layer, part = path.split(".", 2)
    prefix = f"layers.{layer}."
    if ".c_" in part and kind == "weight":
        tensor = tensor.t()
    queries, keys = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    if part in ("attn.c_attn", "self_attn.qkv_proj"):
        parts = tensor.split([queries, keys, keys])
        return {f"{prefix}{ours}.{kind}": piece for ours, piece in zip("qkv", parts, strict=True)}
    if part == "mlp.gate_up_proj":
        return {f"{prefix}{ours}.{kind}": half for ours, half in zip(("gate", "up"), tensor.chunk(2), strict=True)}
    norms = {"post_attention_layernorm": "attn_norm", "post_feedforward_layernorm": "mlp_norm"}
    before = {"post_attention_layernorm": "mlp_norm"}
    ours = _LAYER.get(part) or (norms if spec.norm_placement == "post" else before)[part]
    return {f"{prefix}{ours}.{kind}": tensor}


@contextmanager
def float64_reference(model: nn.Module) -> Iterator[nn.Module]:
    """`transformers` computes norms, RoPE and softmax in float32 even in a float64 model; here in float64."""
    softmax, to, arange = nn.functional.softmax, Tensor.to, torch.arange
    with (
        mock.patch.object(nn.functional, "softmax", lambda x, dim, **_: softmax(x, dim=dim)),
        mock.patch.object(Tensor, "to", _widened(to)),
        mock.patch.object(Tensor, "float", Tensor.double),
        mock.patch.object(torch, "arange", _widened(arange)),
    ):
        yield _with_wide_frequencies(model.double())


def _widened(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`function` with float64 wherever it is told float32."""

    def wide(value: Any) -> Any:
        return torch.float64 if value is torch.float32 else value

    return lambda *args, **named: function(*map(wide, args), **{name: wide(value) for name, value in named.items()})


def _with_wide_frequencies(model: nn.Module) -> nn.Module:
    """Frequencies computed in float64 by `transformers`' own functions."""
    for module in model.modules():
        if hasattr(module, "inv_freq"):
            variant = module.config.rope_parameters["rope_type"]
            make = ROPE_INIT_FUNCTIONS.get(variant) or module.compute_default_rope_parameters
            module.inv_freq, module.attention_scaling = make(module.config, device=torch.device("cpu"))
            assert module.inv_freq.dtype == torch.float64, f"{variant} gave {module.inv_freq.dtype}"
    return model


def error(ours: Tensor, theirs: Tensor) -> float:
    """max|a - b| / max|b|."""
    return float((ours - theirs).abs().max() / theirs.abs().max())


cases = pytest.mark.parametrize("case", sorted(CASES))
