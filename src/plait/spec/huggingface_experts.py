"""ModelSpec from the config.json of a mixture of experts. Such models can be planned; running them comes later."""

from __future__ import annotations

from typing import Any

from plait.spec.fields import Fields
from plait.spec.huggingface_rope import rope_from_config
from plait.spec.model import Experts, LatentAttention, ModelSpec

PLANNED_FAMILIES = ("deepseek_v3", "mixtral", "qwen3_moe")
"""Families that can be planned but not run yet."""


def planned_spec(fields: Fields, family: str, name: str, common: dict[str, Any]) -> ModelSpec:
    """The model of one of `PLANNED_FAMILIES`. `common`: what is read as for any family. Raises SpecError."""
    if fields.text("hidden_act") != "silu":
        raise fields.fail(f"hidden_act {fields.text('hidden_act')!r} is not supported (known: silu)")
    latent = _latent(fields) if family == "deepseek_v3" else None
    heads, hidden = fields.count("num_attention_heads"), fields.count("hidden_size")
    if latent is not None:
        dims, rotated = latent.nope_dim + latent.rope_dim, latent.rope_dim
    else:
        dims = rotated = fields.count("head_dim", -(-hidden // heads))
    layers = fields.layers("num_hidden_layers")
    return ModelSpec(
        name=name,
        family=family,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=fields.count("num_key_value_heads", heads),
        head_dim=dims,
        intermediate=fields.count("intermediate_size"),
        vocab=fields.count("vocab_size"),
        max_positions=fields.count("max_position_embeddings"),
        norm_eps=fields.number("rms_norm_eps"),
        rope=rope_from_config(fields, family, rotated),
        windows=_windows(fields, family, layers),
        qkv_bias=fields.flag("attention_bias", False),
        output_bias=fields.flag("attention_bias", False),
        qk_norm="head" if family == "qwen3_moe" else None,
        tied=fields.flag("tie_word_embeddings", False),
        experts=_EXPERTS[family](fields),
        latent=latent,
        **common,
    )


def _windows(fields: Fields, family: str, layers: int) -> tuple[int | None, ...]:
    used = family == "mixtral" or fields.flag("use_sliding_window", False)
    window = fields.count("sliding_window") if used and "sliding_window" in fields else None
    return (window,) * layers


def _latent(fields: Fields) -> LatentAttention:
    return LatentAttention(
        kv_rank=fields.count("kv_lora_rank"),
        rope_dim=fields.count("qk_rope_head_dim"),
        nope_dim=fields.count("qk_nope_head_dim"),
        value_dim=fields.count("v_head_dim"),
        query_rank=fields.count("q_lora_rank") if "q_lora_rank" in fields else None,
    )


def _mixtral_experts(fields: Fields) -> Experts:
    return Experts(
        fields.count("num_local_experts"), fields.count("num_experts_per_tok"), fields.count("intermediate_size")
    )


def _qwen_experts(fields: Fields) -> Experts:
    if fields.get("decoder_sparse_step") not in (None, 1):
        raise fields.fail(f"decoder_sparse_step is {fields.get('decoder_sparse_step')!r}; only 1 is supported")
    dense = fields.get("mlp_only_layers") or []
    if list(dense) != list(range(len(dense))):
        raise fields.fail(f"mlp_only_layers is {dense!r}; only the first layers can have a plain MLP")
    count = fields.count("num_experts") if "num_experts" in fields else fields.count("num_local_experts")
    return Experts(
        count, fields.count("num_experts_per_tok"), fields.count("moe_intermediate_size"), dense_layers=len(dense)
    )


def _deepseek_experts(fields: Fields) -> Experts:
    if fields.get("moe_layer_freq") not in (None, 1):
        raise fields.fail(f"moe_layer_freq is {fields.get('moe_layer_freq')!r}; only 1 is supported")
    size, shared = fields.count("moe_intermediate_size"), fields.get("n_shared_experts") or 0
    dense = fields.get("first_k_dense_replace") or 0
    for key, value in (("n_shared_experts", shared), ("first_k_dense_replace", dense)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise fields.fail(f"{key} is {value!r}; it must be a whole number, 0 or above")
    return Experts(
        count=fields.count("n_routed_experts"),
        per_token=fields.count("num_experts_per_tok"),
        intermediate=size,
        shared=shared,
        shared_intermediate=size if shared else 0,
        dense_layers=dense,
    )


_EXPERTS = {"mixtral": _mixtral_experts, "qwen3_moe": _qwen_experts, "deepseek_v3": _deepseek_experts}
