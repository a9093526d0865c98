"""config.json of real models gives the published number of parameters; what would be another model is refused."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
import transformers

from plait.errors import SpecError
from plait.spec.huggingface import eos_from_generation_config, spec_from_config
from plait.spec.huggingface_keys import DEFAULTS, unread_keys
from plait.spec.model import FAMILIES, ModelSpec
from plait.spec.tensors import model_tensors


def config(model_type: str, sizes: tuple[int, ...], **more: Any) -> dict[str, Any]:
    keys = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    return {"model_type": model_type, **dict(zip(keys, sizes, strict=True)), **more}


LLAMA3_ROPE = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
PUBLISHED: dict[str, tuple[int, dict[str, Any]]] = {
    "gpt2": (
        124_439_808,
        {
            "model_type": "gpt2",
            "architectures": ["GPT2LMHeadModel"],
            "activation_function": "gelu_new",
            "vocab_size": 50257,
            "n_ctx": 1024,
            "n_embd": 768,
            "n_head": 12,
            "n_layer": 12,
            "n_positions": 1024,
            "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
        },
    ),
    "Llama-2-7B": (6_738_415_616, config("llama", (32000, 4096, 11008, 32, 32), pretraining_tp=1, rope_scaling=None)),
    "Llama-3.1-8B": (
        8_030_261_248,
        config(
            "llama",
            (128256, 4096, 14336, 32, 32),
            num_key_value_heads=8,
            rope_scaling=LLAMA3_ROPE,
            rope_theta=500000.0,
            max_position_embeddings=131072,
            bos_token_id=128000,
            eos_token_id=[128001, 128008, 128009],
        ),
    ),
    "SmolLM2-135M": (
        134_515_008,
        config(
            "llama",
            (49152, 576, 1536, 30, 9),
            num_key_value_heads=3,
            tie_word_embeddings=True,
            rope_interleaved=False,
            is_llama_config=True,
            **{"transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}},
        ),
    ),
    "Mistral-7B-v0.1": (
        7_241_732_096,
        config("mistral", (32000, 4096, 14336, 32, 32), num_key_value_heads=8, sliding_window=4096),
    ),
    "Qwen2.5-0.5B": (
        494_032_768,
        config("qwen2", (151936, 896, 4864, 24, 14), num_key_value_heads=2, tie_word_embeddings=True),
    ),
    "Qwen2.5-7B": (7_615_616_512, config("qwen2", (152064, 3584, 18944, 28, 28), num_key_value_heads=4)),
    "Qwen3-0.6B": (
        596_049_920,
        config("qwen3", (151936, 1024, 3072, 28, 16), num_key_value_heads=8, head_dim=128, tie_word_embeddings=True),
    ),
    "Phi-3-mini-4k": (
        3_821_079_552,
        config("phi3", (32064, 3072, 8192, 32, 32), num_key_value_heads=32, sliding_window=2047, auto_map={"a": "b"}),
    ),
    "OLMo-2-7B": (7_298_617_344, config("olmo2", (100352, 4096, 11008, 32, 32), num_key_value_heads=32)),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_parameter_counts(name: str) -> None:
    published, given = PUBLISHED[name]
    assert sum(map(prod, model_tensors(spec_from_config(given, name)).values())) == published


CLASSES = {
    "gpt2": transformers.GPT2Config,
    "llama": transformers.LlamaConfig,
    "mistral": transformers.MistralConfig,
    "olmo2": transformers.Olmo2Config,
    "phi3": transformers.Phi3Config,
    "qwen2": transformers.Qwen2Config,
    "qwen3": transformers.Qwen3Config,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_defaults_are_those_of_transformers(family: str) -> None:
    theirs: Any = {name: getattr(CLASSES[family], name, None) for name in DEFAULTS[family]}
    assert dict(DEFAULTS[family]) == theirs


def sizes(family: str) -> dict[str, Any]:
    if family == "gpt2":
        return {"model_type": "gpt2", "vocab_size": 60000, "n_embd": 64, "n_layer": 3, "n_head": 4}
    return config(family, (60000, 64, 96, 3, 32))


@pytest.mark.parametrize("family", FAMILIES)
def test_sizes_alone_are_the_same_as_what_transformers_saves_of_them(family: str) -> None:
    alone = spec_from_config(sizes(family), "m")
    theirs = CLASSES[family](**{key: value for key, value in sizes(family).items() if key != "model_type"})
    assert spec_from_config(theirs.to_dict(), "m") == alone


def spec(family: str = "llama", **more: Any) -> ModelSpec:
    return spec_from_config({**config(family, (1000, 64, 96, 4, 4)), "eos_token_id": None, **more}, "m")


def message(**more: Any) -> str:
    family = more.pop("family", "llama")
    with pytest.raises(SpecError) as caught:
        spec(family, **more)
    return str(caught.value)


# ---- what the keys mean


def test_head_dim() -> None:
    assert spec().head_dim == 16
    assert spec(head_dim=24).head_dim == 24
    assert spec("qwen3", num_key_value_heads=4).head_dim == 128  # qwen3's own default, whatever the hidden size


def test_kv_heads() -> None:
    assert spec().kv_heads == 4
    assert spec(num_key_value_heads=2).kv_heads == 2
    assert spec("mistral", num_key_value_heads=None, num_attention_heads=16).kv_heads == 16
    assert spec("mistral", num_attention_heads=16).kv_heads == 8


def test_biases() -> None:
    plain, all_four, qwen2 = spec(), spec(attention_bias=True), spec("qwen2", num_key_value_heads=4)
    assert (plain.qkv_bias, plain.output_bias, plain.mlp_bias) == (False, False, False)
    assert (all_four.qkv_bias, all_four.output_bias, all_four.mlp_bias) == (True, True, False)
    assert (qwen2.qkv_bias, qwen2.output_bias, qwen2.mlp_bias) == (True, False, False)
    assert spec(mlp_bias=True).mlp_bias


def test_families_differ_in_their_norms() -> None:
    assert (spec().norm_placement, spec().qk_norm, spec().norm) == ("pre", None, "rms")
    assert (spec("olmo2").norm_placement, spec("olmo2").qk_norm) == ("post", "full")
    assert spec("qwen3", num_key_value_heads=4).qk_norm == "head"


def test_end_of_text_ids() -> None:
    assert spec(eos_token_id=7).eos == (7,)
    assert spec(eos_token_id=[7, 8]).eos == (7, 8)
    assert spec().eos == ()
    assert eos_from_generation_config(spec(eos_token_id=7), {"eos_token_id": [8, 9], "temperature": 0.7}).eos == (8, 9)
    assert eos_from_generation_config(spec(eos_token_id=7), {}).eos == (7,)


@pytest.mark.parametrize(
    ("given", "windows"),
    [
        ({"family": "llama"}, (None,) * 4),
        ({"family": "mistral"}, (4096,) * 4),
        ({"family": "mistral", "sliding_window": None}, (None,) * 4),
        ({"family": "phi3"}, (None,) * 4),
        ({"family": "phi3", "sliding_window": 2047}, (2047,) * 4),
        ({"family": "qwen2"}, (None,) * 4),
        ({"family": "qwen2", "sliding_window": 32}, (None,) * 4),
        ({"family": "qwen2", "use_sliding_window": True, "max_window_layers": 3}, (None, None, None, 4096)),
        ({"family": "qwen3", "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}, (8,) * 4),
        ({"family": "qwen2", "use_sliding_window": True, "sliding_window": None}, (None,) * 4),
        (
            {
                "family": "qwen3",
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
            },
            (4096, None, 4096, None),
        ),
    ],
)
def test_windows(given: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    family = given.pop("family")
    heads = {"num_attention_heads": 32} if family == "mistral" else {"num_key_value_heads": 4}
    assert spec(family, **heads, **given).windows == windows


# ---- what is refused


def test_unknown_architectures() -> None:
    known = "(known: deepseek_v3, gpt2, llama, mistral, mixtral, olmo2, phi3, qwen2, qwen3, qwen3_moe)"
    for given, hint in (("olmo3", "did you mean 'olmo2'? " + known), ("mamba", "did you mean 'llama'? " + known)):
        with pytest.raises(SpecError) as caught:
            spec_from_config({"model_type": given}, "m")
        assert str(caught.value) == f"config of 'm': unknown architecture {given!r}; {hint}"
    with pytest.raises(SpecError) as caught:
        spec_from_config({"model_type": "t5"}, "m")
    assert str(caught.value) == f"config of 'm': unknown architecture 't5'; {known[1:-1]}"
    with pytest.raises(SpecError) as caught:
        spec_from_config({}, "m")
    assert str(caught.value) == f"config of 'm': missing model_type {known}"


def test_missing_sizes() -> None:
    with pytest.raises(SpecError) as caught:
        spec_from_config({"model_type": "llama", "vocab_size": 10, "hidden_size": None, "num_hidden_layers": 1}, "m")
    assert str(caught.value) == (
        "llama config of 'm': missing hidden_size, intermediate_size, num_attention_heads; "
        "without them the model's shape is unknown"
    )


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"num_hidden_layers": 2**40}, "num_hidden_layers is 1099511627776; no model has more than 100000 layers"),
    ({"layer_types": "full_attention"}, "layer_types is 'full_attention'; it must be a list of words"),
    ({"architectures": True}, "architectures is True; it must be a list of words"),
    ({"hidden_size": -5}, "hidden_size is -5; it must be a whole number above 0"),
    ({"num_hidden_layers": 2.5}, "num_hidden_layers is 2.5; it must be a whole number above 0"),
    ({"vocab_size": True}, "vocab_size is True; it must be a whole number above 0"),
    ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan; it must be a finite number above 0"),
    ({"rms_norm_eps": "1e-5"}, "rms_norm_eps is '1e-5'; it must be a finite number above 0"),
    ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'; it must be true or false"),
    ({"hidden_act": 3}, "hidden_act is 3; it must be a word"),
    (
        {"num_key_value_heads": 3},
        "4 heads cannot share 3 KV heads; heads must be a multiple of KV heads",
    ),
    (
        {"hidden_size": 66},
        "hidden size 66 is not a multiple of 4 heads, and no head dimension is given",
    ),
    (
        {"head_dim": 15},
        "RoPE would rotate 15 of a head's 15 dimensions; it must be an even number, at least 2 and at most all",
    ),
    ({"eos_token_id": "</s>"}, "eos_token_id is '</s>'; it must be a token id or a list of them, each 0 or above"),
    ({"eos_token_id": 1000}, "eos token id 1000 lies outside the vocabulary of 1000"),
    ({"bos_token_id": [1, 2]}, "bos_token_id is [1, 2]; only one can begin a text"),
    (
        {"hidden_act": "relu2"},
        "hidden_act 'relu2' is not supported; did you mean 'gelu'? (known: gelu, gelu_new, gelu_python, "
        "gelu_python_tanh, gelu_pytorch_tanh, silu, swish)",
    ),
    (
        {"architectures": ["LlamaForSequenceClassification"]},
        "architecture 'LlamaForSequenceClassification' is not supported (known: LlamaForCausalLM, LlamaModel)",
    ),
    ({"pretraining_tp": 2}, "pretraining_tp is 2, which is not supported; only 1 is"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, which is not supported; only 1.0 is"),
    (
        {"quantization_config": {"bits": 4}},
        "quantization_config is {'bits': 4}, which llama does not have and which may change the model; "
        "remove it from the config if it does not",
    ),
    (
        {"attn_logit_softcapping": 50.0},
        "attn_logit_softcapping is 50.0, which llama does not have and which may change the model; "
        "remove it from the config if it does not",
    ),
    (
        {"sliding_window": 512},
        "sliding_window is 512, which llama does not have and which may change the model; "
        "remove it from the config if it does not",
    ),
    (
        {"family": "mistral", "num_key_value_heads": 4, "attention_bias": True},
        "attention_bias is True, which mistral does not have and which may change the model; "
        "remove it from the config if it does not",
    ),
    (
        {"max_position_embedding": 512},
        "max_position_embedding is 512, which llama does not have and which may change the model; "
        "did you mean 'max_position_embeddings'?",
    ),
    (
        {"layer_types": ["full_attention", "linear_attention"]},
        "layer_types has 'linear_attention', which is not supported (known: full_attention, sliding_attention)",
    ),
    (
        {"layer_types": ["full_attention"] * 3},
        "3 layers have an attention type, and the model has 4 layers",
    ),
    (
        {"family": "qwen2", "num_key_value_heads": 4, "layer_types": ["sliding_attention"] * 4},
        "layer_types has 'sliding_attention', and use_sliding_window is false; one of them must be wrong",
    ),
    (
        {"family": "qwen2", "num_key_value_heads": 4, "use_sliding_window": True, "max_window_layers": -1},
        "max_window_layers is -1; it must be a whole number, 0 or above",
    ),
]


@pytest.mark.parametrize(("given", "problem"), REFUSED, ids=lambda value: value[:30] if isinstance(value, str) else "")
def test_refusals(given: dict[str, Any], problem: str) -> None:
    family = given.get("family", "llama")
    assert message(**given) == f"{family} config of 'm': {problem}"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"scale_attn_by_inverse_layer_idx": True}, None),
        ({"reorder_and_upcast_attn": True}, None),
        ({"add_cross_attention": True}, None),
        ({"scale_attn_weights": False}, "scale_attn_weights is False, which is not supported; only True is"),
        ({"n_ctx": 512}, "n_ctx is 512, which is not supported; only 1024 is"),
    ],
)
def test_gpt2_variants_are_refused(given: dict[str, Any], problem: str | None) -> None:
    (key, value), *_ = given.items()
    problem = problem or (
        f"{key} is {value}, which gpt2 does not have and which may change the model; "
        "remove it from the config if it does not"
    )
    with pytest.raises(SpecError) as caught:
        spec_from_config(PUBLISHED["gpt2"][1] | given, "m")
    assert str(caught.value) == f"gpt2 config of 'm': {problem}"


def test_gpt2_heads_of_its_own() -> None:
    untied = spec_from_config(PUBLISHED["gpt2"][1] | {"tie_word_embeddings": False, "n_inner": 100}, "m")
    assert "head.weight" in model_tensors(untied)
    assert untied.intermediate == 100


def test_unread_keys_are_told() -> None:
    given = config("llama", (1, 1, 1, 1, 1), unsloth_version="2024.9", torch_dtype="float16", rope_theta=1.0)
    assert unread_keys(given, "llama") == ["unsloth_version"]
