"""Tiny random models of every family, as transformers saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def _gpt2_config(sizes: dict[str, Any]) -> transformers.GPT2Config:
    return transformers.GPT2Config(
        vocab_size=sizes["vocab_size"],
        n_positions=sizes["max_position_embeddings"],
        n_embd=sizes["hidden_size"],
        n_layer=sizes["num_hidden_layers"],
        n_head=sizes["num_attention_heads"],
        bos_token_id=1,
        eos_token_id=2,
    )


CONFIGS: dict[str, Any] = {
    "llama": lambda **sizes: transformers.LlamaConfig(**SIZES | sizes, attention_bias=True, mlp_bias=True),
    "mistral": lambda **sizes: transformers.MistralConfig(**SIZES | sizes, head_dim=16, sliding_window=40),
    "qwen2": lambda **sizes: transformers.Qwen2Config(**SIZES | sizes, tie_word_embeddings=True),
    "qwen3": lambda **sizes: transformers.Qwen3Config(**SIZES | sizes, head_dim=16),
    "phi3": lambda **sizes: transformers.Phi3Config(**SIZES | sizes),
    "olmo2": lambda **sizes: transformers.Olmo2Config(**SIZES | sizes),
    "gpt2": lambda **sizes: _gpt2_config(SIZES | sizes),
}
PROJECTIONS = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def make(family: str, **sizes: int) -> torch.nn.Module:
    """A model with random weights, norms and biases too."""
    torch.manual_seed(len(family))
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[family](**sizes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


def save(model: Any, directory: Path, **options: Any) -> Path:
    model.save_pretrained(directory, **options)
    return directory


def ours(family: str, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A state_dict under our names, spelled out by hand for each family: the reference of the tests."""
    state = model.state_dict()
    if family == "gpt2":
        return _gpt2(state)
    tensors = {"embed.weight": state["model.embed_tokens.weight"], "norm.weight": state["model.norm.weight"]}
    if family != "qwen2":
        tensors["head.weight"] = state["lm_head.weight"]
    for layer in range(SIZES["num_hidden_layers"]):
        for name, tensor in _layer(family, state, f"model.layers.{layer}.").items():
            tensors[f"layers.{layer}.{name}"] = tensor
    return tensors


def _layer(family: str, state: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for name, theirs in PROJECTIONS.items():
        for kind in ("weight", "bias"):
            if f"{prefix}{theirs}.{kind}" in state:
                found[f"{name}.{kind}"] = state[f"{prefix}{theirs}.{kind}"]
    norms = ("post_attention_layernorm", "post_feedforward_layernorm")
    if family != "olmo2":
        norms = ("input_layernorm", "post_attention_layernorm")
    found["attn_norm.weight"] = state[f"{prefix}{norms[0]}.weight"]
    found["mlp_norm.weight"] = state[f"{prefix}{norms[1]}.weight"]
    if family == "phi3":
        q, k, v = _fused_thirds(state[prefix + "self_attn.qkv_proj.weight"])
        gate, up = state[prefix + "mlp.gate_up_proj.weight"].chunk(2)
        found |= {"q.weight": q, "k.weight": k, "v.weight": v, "gate.weight": gate, "up.weight": up}
    return found


def _fused_thirds(fused: torch.Tensor) -> tuple[torch.Tensor, ...]:
    keys = fused.shape[0] // (SIZES["num_attention_heads"] // SIZES["num_key_value_heads"] + 2)
    return fused.split([fused.shape[0] - 2 * keys, keys, keys])


def _gpt2(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    tensors = {"embed.weight": state["transformer.wte.weight"], "positions.weight": state["transformer.wpe.weight"]}
    tensors |= {f"norm.{kind}": state[f"transformer.ln_f.{kind}"] for kind in ("weight", "bias")}
    for layer in range(3):
        theirs, mine = f"transformer.h.{layer}.", f"layers.{layer}."
        for kind in ("weight", "bias"):
            q, k, v = state[f"{theirs}attn.c_attn.{kind}"].transpose(0, -1).chunk(3)
            tensors |= {f"{mine}q.{kind}": q, f"{mine}k.{kind}": k, f"{mine}v.{kind}": v}
            tensors[f"{mine}o.{kind}"] = state[f"{theirs}attn.c_proj.{kind}"].transpose(0, -1)
            tensors[f"{mine}up.{kind}"] = state[f"{theirs}mlp.c_fc.{kind}"].transpose(0, -1)
            tensors[f"{mine}down.{kind}"] = state[f"{theirs}mlp.c_proj.{kind}"].transpose(0, -1)
            tensors[f"{mine}attn_norm.{kind}"] = state[f"{theirs}ln_1.{kind}"]
            tensors[f"{mine}mlp_norm.{kind}"] = state[f"{theirs}ln_2.{kind}"]
    return tensors
