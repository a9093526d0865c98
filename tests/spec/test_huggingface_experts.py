"""config.json of mixtures of experts: read for planning, with the published counts; other models are refused."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import pytest
import transformers

from plait.errors import SpecError
from plait.spec.checked import require_runnable
from plait.spec.huggingface import spec_from_config
from plait.spec.huggingface_experts import PLANNED_FAMILIES
from plait.spec.huggingface_keys import DEFAULTS, unread_keys
from plait.spec.model import Experts, LatentAttention
from plait.spec.presets import model_preset
from plait.spec.tensors import model_tensors

MIXTRAL = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.02,
    "sliding_window": None,
}
QWEN = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "num_hidden_layers": 94,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "max_window_layers": 94,
    "use_sliding_window": False,
    "sliding_window": None,
    "router_aux_loss_coef": 0.001,
    "max_position_embeddings": 40960,
    "rope_theta": 1e6,
}
DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
    "model_type": "deepseek_v3",
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "n_group": 8,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "num_nextn_predict_layers": 1,
    "ep_size": 1,
    "max_position_embeddings": 163840,
    "rope_theta": 10000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
CONFIGS: dict[str, dict[str, Any]] = {"mixtral": MIXTRAL, "qwen3_moe": QWEN, "deepseek_v3": DEEPSEEK}


@pytest.mark.parametrize(
    ("family", "published", "preset"),
    [
        ("mixtral", 46_702_792_704, "mixtral-8x7b"),
        ("qwen3_moe", 235_093_634_560, "qwen3-235b-a22b"),
        # the safetensors hold 256 biases of the router's choice more in each of 58 layers
        ("deepseek_v3", 671_026_419_200 - 58 * 256, "deepseek-v3"),
    ],
)
def test_published_parameter_counts(family: str, published: int, preset: str) -> None:
    spec = spec_from_config(CONFIGS[family], preset)
    assert sum(map(prod, model_tensors(spec).values())) == published
    known = model_preset(preset)
    assert replace(spec, bos=None, eos=(), rope=known.rope) == replace(known, bos=None, eos=())


def test_what_is_read() -> None:
    mixtral, qwen, deepseek = (spec_from_config(CONFIGS[name], "m") for name in ("mixtral", "qwen3_moe", "deepseek_v3"))
    assert mixtral.experts == Experts(8, 2, 14336)
    assert qwen.experts == Experts(128, 8, 1536)
    assert qwen.qk_norm == "head"
    assert deepseek.experts == Experts(256, 8, 2048, 1, 2048, 3)
    assert deepseek.latent == LatentAttention(512, 64, 128, 128, 1536)
    assert deepseek.rope is not None
    assert (deepseek.rope.dims, deepseek.rope.variant, deepseek.head_dim) == (64, "yarn", 192)


@pytest.mark.parametrize("family", PLANNED_FAMILIES)
def test_no_key_is_left_unread(family: str) -> None:
    assert unread_keys(CONFIGS[family], family) == []


CLASSES = {
    "mixtral": transformers.MixtralConfig,
    "qwen3_moe": transformers.Qwen3MoeConfig,
    "deepseek_v3": transformers.DeepseekV3Config,
}


@pytest.mark.parametrize("family", PLANNED_FAMILIES)
def test_defaults_are_those_of_transformers(family: str) -> None:
    theirs: Any = CLASSES[family]
    assert dict(DEFAULTS[family]) == {name: getattr(theirs, name, None) for name in DEFAULTS[family]}


@pytest.mark.parametrize("family", PLANNED_FAMILIES)
def test_what_transformers_saves_is_read_alike(family: str) -> None:
    given = {key: value for key, value in CONFIGS[family].items() if key not in ("model_type", "auto_map")}
    saved = CLASSES[family](**given).to_dict()
    assert spec_from_config(saved, "m") == spec_from_config(CONFIGS[family], "m")


def test_first_layers_without_experts() -> None:
    spec = spec_from_config({**QWEN, "mlp_only_layers": [0, 1]}, "m")
    assert spec.experts == Experts(128, 8, 1536, dense_layers=2)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("mixtral", {"num_local_experts": None}, "missing num_local_experts; without it the model's shape is unknown"),
    ("mixtral", {"num_experts_per_tok": 9}, "every token goes to 9 experts, and there are only 8"),
    ("mixtral", {"hidden_act": "relu"}, "hidden_act 'relu' is not supported (known: silu)"),
    ("qwen3_moe", {"decoder_sparse_step": 2}, "decoder_sparse_step is 2; only 1 is supported"),
    ("qwen3_moe", {"mlp_only_layers": [3]}, "mlp_only_layers is [3]; only the first layers can have a plain MLP"),
    (
        "qwen3_moe",
        {"mlp_only_layers": list(range(94))},
        "the first 94 layers have no experts, and the model has 94 layers",
    ),
    ("deepseek_v3", {"moe_layer_freq": 2}, "moe_layer_freq is 2; only 1 is supported"),
    (
        "deepseek_v3",
        {"n_shared_experts": -1},
        "n_shared_experts is -1; it must be a whole number, 0 or above",
    ),
    (
        "deepseek_v3",
        {"index_head_dim": 128},
        "index_head_dim is 128, which deepseek_v3 does not have and which may change the model; "
        "remove it from the config if it does not",
    ),
]


@pytest.mark.parametrize(("family", "changed", "problem"), REFUSED)
def test_what_is_refused(family: str, changed: dict[str, Any], problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec_from_config({**CONFIGS[family], **changed}, "m")
    assert str(caught.value) == f"{family} config of 'm': {problem}"


def test_such_models_cannot_be_run_yet() -> None:
    ends = "such a model can be planned but not run yet"
    for name, words in (
        ("mixtral-8x7b", f"mixtral-8x7b has a mixture of experts: {ends}"),
        ("deepseek-v3", f"deepseek-v3 has a mixture of experts and latent attention: {ends}"),
    ):
        with pytest.raises(SpecError) as caught:
            require_runnable(model_preset(name))
        assert str(caught.value) == words
    require_runnable(model_preset("llama3-8b"))
