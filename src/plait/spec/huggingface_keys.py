"""Which keys of a config.json mean something, what an absent one means, and which would make another model.

`transformers` ignores a key that its code does not read, so a config may hold anything. Here a key is known, or known
to be harmless, or sounds like mathematics and is refused; any other is listed by `unread_keys`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

from plait.spec.fields import Fields

_ROTARY_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
SIZES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3"), _ROTARY_SIZES),
    "mixtral": (*_ROTARY_SIZES, "num_local_experts", "num_experts_per_tok"),
    "qwen3_moe": (*_ROTARY_SIZES, "moe_intermediate_size", "num_experts_per_tok"),
    "deepseek_v3": (
        *_ROTARY_SIZES,
        "kv_lora_rank",
        "qk_rope_head_dim",
        "qk_nope_head_dim",
        "v_head_dim",
        "moe_intermediate_size",
        "n_routed_experts",
        "num_experts_per_tok",
    ),
    "gpt2": ("vocab_size", "n_embd", "n_layer", "n_head"),
}
"""What must be there: `transformers` has defaults for these too, but they are another model's."""

_ROTARY = {"hidden_act": "silu", "head_dim": None, "rms_norm_eps": 1e-6, "tie_word_embeddings": False}
_QWEN = _ROTARY | {
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "layer_types": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "llama": _ROTARY
    | {
        "num_key_value_heads": None,
        "max_position_embeddings": 2048,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "mistral": _ROTARY
    | {
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "qwen2": _QWEN,
    "qwen3": _QWEN | {"head_dim": 128, "attention_bias": False},
    "phi3": _ROTARY
    | {
        "num_key_value_heads": None,
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "sliding_window": None,
        "bos_token_id": 1,
        "eos_token_id": 32000,
    },
    "olmo2": _ROTARY
    | {
        "num_key_value_heads": None,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
        "bos_token_id": None,
        "eos_token_id": 50279,
    },
    "mixtral": _ROTARY
    | {
        "rms_norm_eps": 1e-5,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "sliding_window": None,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "qwen3_moe": {key: value for key, value in _ROTARY.items() if key != "head_dim"}
    | {
        "num_key_value_heads": 4,
        "max_position_embeddings": 32768,
        "attention_bias": False,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "decoder_sparse_step": 1,
        "mlp_only_layers": None,
        "bos_token_id": None,
        "eos_token_id": None,
    },
    "deepseek_v3": _ROTARY
    | {
        "num_key_value_heads": 128,
        "max_position_embeddings": 4096,
        "attention_bias": False,
        "q_lora_rank": 1536,
        "n_shared_experts": 1,
        "first_k_dense_replace": 3,
        "bos_token_id": 0,
        "eos_token_id": 1,
    },
    "gpt2": {
        "n_positions": 1024,
        "n_inner": None,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
        "bos_token_id": 50256,
        "eos_token_id": 50256,
    },
}
"""What an absent key means, by family: the defaults of transformers 5."""

# what may be said if it says what we do anyway; null always may
_FIXED: Mapping[str, tuple[Any, ...]] = {
    "is_decoder": (True, False),
    "n_ctx": (),  # equal to n_positions
    "partial_rotary_factor": (1.0,),
    "pretraining_tp": (1,),
    "scale_attn_weights": (True,),
}
# of models that can be planned only: read as another name of something, or without a say in what is multiplied
_PLANNED = {
    "mixtral": {"output_router_logits", "router_aux_loss_coef", "router_jitter_noise"},
    "qwen3_moe": {
        "head_dim",
        "max_window_layers",
        "norm_topk_prob",
        "num_experts",
        "num_local_experts",
        "output_router_logits",
        "router_aux_loss_coef",
    },
    "deepseek_v3": {
        "aux_loss_alpha",
        "ep_size",
        "moe_layer_freq",
        "n_group",
        "norm_topk_prob",
        "num_nextn_predict_layers",
        "output_router_logits",
        "pretraining_tp",
        "qk_head_dim",
        "quantization_config",
        "rope_interleave",
        "routed_scaling_factor",
        "scoring_func",
        "seq_aux",
        "topk_group",
        "topk_method",
    },
}
_HARMLESS = frozenset(
    (
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_commit_hash",
        "_experts_implementation",
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "attn_implementation",
        "attn_pdrop",
        "auto_map",
        "bad_words_ids",
        "begin_suppress_tokens",
        "chunk_size_feed_forward",
        "cls_token_id",
        "decoder_start_token_id",
        "diversity_penalty",
        "do_sample",
        "dtype",
        "early_stopping",
        "embd_pdrop",
        "encoder_no_repeat_ngram_size",
        "exponential_decay_length_penalty",
        "finetuning_task",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "id2label",
        "initializer_range",
        "is_llama_config",
        "label2id",
        "length_penalty",
        "mask_token_id",
        "max_length",
        "min_length",
        "model_type",
        "name_or_path",
        "no_repeat_ngram_size",
        "num_beam_groups",
        "num_beams",
        "num_labels",
        "num_return_sequences",
        "output_attentions",
        "output_hidden_states",
        "output_scores",
        "pad_token_id",
        "prefix",
        "problem_type",
        "remove_invalid_values",
        "repetition_penalty",
        "resid_pdrop",
        "return_dict",
        "return_dict_in_generate",
        "sep_token_id",
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
        "suppress_tokens",
        "task_specific_params",
        "temperature",
        "tokenizer_class",
        "top_k",
        "top_p",
        "torch_dtype",
        "torchscript",
        "transformers.js_config",
        "transformers_version",
        "typical_p",
        "unk_token_id",
        "use_bfloat16",
        "use_cache",
    )
)
_MATHEMATICS = re.compile(
    "rope|rotary|scal|softcap|bias|norm|window|multipl|expert|moe|quant|attn|attention|head|layer|hidden|act|mlp|"
    "residual|embed|position|clip|clamp|alibi|gate|latent|rank|sink|compress|spars|per_layer|parallel|pretraining_tp"
)
_CLASSES = {
    "deepseek_v3": ("DeepseekV3ForCausalLM", "DeepseekV3Model"),
    "gpt2": ("GPT2LMHeadModel", "GPT2Model"),
    "llama": ("LlamaForCausalLM", "LlamaModel"),
    "mistral": ("MistralForCausalLM", "MistralModel"),
    "mixtral": ("MixtralForCausalLM", "MixtralModel"),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Model"),
    "phi3": ("Phi3ForCausalLM", "Phi3Model"),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Model"),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Model"),
    "qwen3_moe": ("Qwen3MoeForCausalLM", "Qwen3MoeModel"),
}


def refuse_other_models(config: Fields, family: str) -> None:
    """Raise SpecError for the first key that would make another model than the family's."""
    for each in config.words("architectures") or ():
        if each not in _CLASSES[family]:
            raise config.fail(f"architecture {each!r} is not supported (known: {', '.join(_CLASSES[family])})")
    known = known_keys(family)
    for key, value in config.values.items():
        if key in known or key in _HARMLESS or value is None:
            continue
        if key in _FIXED:
            _check_fixed(config, key, value)
        elif _MATHEMATICS.search(key) and not (value is False or value in ({}, [])):
            raise config.fail(
                f"{key} is {value!r}, which {family} does not have and which may change the model; {_hint(key, known)}"
            )


def unread_keys(config: Mapping[str, Any], family: str) -> list[str]:
    """Keys that nothing here knows and that do not sound like mathematics, to be shown to people."""
    known = known_keys(family) | _HARMLESS | _FIXED.keys()
    return sorted(key for key in config if key not in known and not _MATHEMATICS.search(key))


def known_keys(family: str) -> frozenset[str]:
    """All keys that are read for the family."""
    keys = {*SIZES[family], *DEFAULTS[family], *_PLANNED.get(family, ())}
    if family != "gpt2":
        keys |= {"rope_parameters", "rope_scaling", "rope_theta", "original_max_position_embeddings", "layer_types"}
    if family == "phi3":
        keys |= {"partial_rotary_factor"}
    return frozenset(keys)


def _hint(key: str, known: frozenset[str]) -> str:
    # only a slip of the fingers: most keys here belong to other models, and their neighbours would mislead
    close = difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.9)
    return f"did you mean {close[0]!r}?" if close else "remove it from the config if it does not"


def _check_fixed(config: Fields, key: str, value: Any) -> None:
    # GPT-2 says its positions twice
    allowed = (config.get("n_positions") or DEFAULTS["gpt2"]["n_positions"],) if key == "n_ctx" else _FIXED[key]
    if value not in allowed:
        raise config.fail(f"{key} is {value!r}, which is not supported; only {' or '.join(map(repr, allowed))} is")
