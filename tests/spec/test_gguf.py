"""ModelSpec from GGUF metadata: keys, rope factors, and what is refused. (Whole files: tests/weights/test_gguf.py.)"""

from __future__ import annotations

from typing import Any

import pytest

from plait.errors import SpecError
from plait.spec.gguf import spec_from_gguf
from plait.spec.gguf_rope import llama3_factors
from plait.spec.model import ModelSpec, Rope

METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "Tiny",
    "llama.block_count": 3,
    "llama.context_length": 512,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 9.999999747378752e-06,
    "llama.rope.freq_base": 500000.0,
    "llama.vocab_size": 100,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}
NAMES = frozenset({"token_embd.weight", "output.weight"})


def spec(names: frozenset[str] = NAMES, factors: list[float] | None = None, **more: Any) -> ModelSpec:
    """The tiny llama with further keys; `__` stands for a dot, and None takes a key away."""
    changed = METADATA | {key.replace("__", "."): value for key, value in more.items()}
    return spec_from_gguf({key: value for key, value in changed.items() if value is not None}, names, factors)


def message(*arguments: Any, **more: Any) -> str:
    with pytest.raises(SpecError) as caught:
        spec(*arguments, **more)
    return str(caught.value)


def test_all_of_a_spec() -> None:
    assert spec() == ModelSpec(
        name="Tiny",
        family="llama",
        layers=3,
        hidden=64,
        heads=4,
        kv_heads=2,
        head_dim=16,
        intermediate=96,
        vocab=100,
        max_positions=512,
        norm_eps=1e-5,
        rope=Rope(500_000.0, 16),
        windows=(None, None, None),
        bos=1,
        eos=(2,),
    )


def test_what_only_tensor_names_tell() -> None:
    assert spec(frozenset({"token_embd.weight"})).tied
    biased = spec(NAMES | {"blk.0.attn_q.bias", "blk.0.attn_output.bias", "blk.0.ffn_up.bias"})
    assert (biased.qkv_bias, biased.output_bias, biased.mlp_bias) == (True, True, True)


def test_several_ways_to_end_a_text() -> None:
    found = spec(tokenizer__ggml__eot_token_id=4, tokenizer__ggml__eom_token_id=2)
    assert found.eos == (2, 4)


def test_vocabulary_from_the_tokenizer() -> None:
    assert spec(llama__vocab_size=None, tokenizer__ggml__tokens=["a"] * 7).vocab == 7


def test_one_figure_for_every_layer() -> None:
    assert spec(llama__attention__head_count_kv=[2, 2, 2]).kv_heads == 2


# ---- RoPE

LINEAR = {"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 2.0}
YARN = {
    "llama__rope__scaling__type": "yarn",
    "llama__rope__scaling__factor": 4.0,
    "llama__rope__scaling__original_context_length": 128,
}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"llama__rope__freq_base": None}, Rope(10_000.0, 16)),
        ({"llama__rope__scaling__type": "none"}, Rope(500_000.0, 16)),
        (LINEAR, Rope(500_000.0, 16, "linear", 2.0)),
        ({"llama__rope__scale_linear": 2.0}, Rope(500_000.0, 16, "linear", 2.0)),
        ({"llama__rope__scale_linear": 1.0}, Rope(500_000.0, 16)),
        (YARN, Rope(500_000.0, 16, "yarn", 4.0, 128)),
    ],
)
def test_scaling(given: dict[str, Any], wanted: Rope) -> None:
    assert spec(**given).rope == wanted


FREQS = NAMES | {"rope_freqs.weight"}


@pytest.mark.parametrize("factor", [8.0, 32.0])
@pytest.mark.parametrize("original", [8192, 4096])
@pytest.mark.parametrize("dims", [64, 128])
def test_llama3_figures_are_found_again(factor: float, original: int, dims: int) -> None:
    """The factors of Llama 3.1 (8) and 3.2 (32), as the converter writes them."""
    wanted = Rope(500_000.0, dims, "llama3", factor, original)
    heads = {"llama__attention__key_length": dims, "llama__attention__value_length": dims}
    assert spec(FREQS, llama3_factors(wanted), **heads).rope == wanted


def test_factors_of_one_change_nothing() -> None:
    assert spec(FREQS, [1.0] * 8).rope == Rope(500_000.0, 16)


@pytest.mark.parametrize(
    ("factors", "problem"),
    [
        (None, "rope_freqs.weight has no values, and 16 rotated dimensions need 8"),
        ([1.0], "rope_freqs.weight has 1 values, and 16 rotated dimensions need 8"),
        (
            [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 7.0],
            "rope_freqs.weight holds factors that no llama3 scaling gives (low and high frequency factor 1 and 4, "
            "original context 2048, 4096, 8192, 16384, 32768, 65536, 131072)",
        ),
    ],
)
def test_other_factors_are_refused(factors: list[float] | None, problem: str) -> None:
    assert message(FREQS, factors) == f"GGUF 'Tiny' (llama): {problem}"


def test_factors_and_scaling_at_once() -> None:
    assert message(FREQS, [1.0] * 8, **YARN) == (
        "GGUF 'Tiny' (llama): it has both rope_freqs.weight and rope.scaling.type 'yarn'; only one is supported"
    )


def test_longrope_is_refused() -> None:
    assert message(NAMES | {"rope_factors_short.weight"}) == (
        "GGUF 'Tiny' (llama): it has rope_factors_short.weight: RoPE variant 'longrope' is not supported "
        "(known: default, linear, llama3, yarn)"
    )


# ---- what is refused


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            {"llama__block_count": None, "llama__context_length": None},
            "missing block_count, context_length; without them the model's shape is unknown",
        ),
        ({"llama__block_count": 0}, "block_count is 0; it must be a whole number above 0"),
        (
            {"llama__attention__head_count_kv": [2, 2, 1]},
            "attention.head_count_kv is [2, 2, 1]; it must be a whole number above 0",
        ),
        ({"llama__expert_count": 8}, "expert_count is 8, which is not supported; only 0 is"),
        ({"llama__logit_scale": 0.5}, "logit_scale is 0.5, which is not supported; only 1 is"),
        (
            {"llama__atention__head_count": 8},
            "unknown key 'atention.head_count', which may change the model; did you mean 'attention.head_count'?",
        ),
        (
            {"llama__attention__key_length": 32},
            "attention.key_length is 32 and attention.value_length None; they must be equal",
        ),
        (
            {"llama__vocab_size": None},
            "neither vocab_size nor tokenizer.ggml.tokens is there; the vocabulary is unknown",
        ),
        (
            {"llama__rope__dimension_count": 8},
            "rope.dimension_count is 8 and a head has 16; only phi3 rotates a part of a head",
        ),
        (
            {"llama__rope__scaling__type": "longrope"},
            "rope.scaling.type 'longrope' is not supported; known: linear, none, yarn",
        ),
        (
            {"llama__rope__scaling__attn_factor": 1.2},
            "rope.scaling.attn_factor is 1.2, which is not supported; only 1 is",
        ),
        (
            {**YARN, "llama__rope__scaling__original_context_length": None},
            "missing rope.scaling.original_context_length; without it the model's shape is unknown",
        ),
        ({"tokenizer__ggml__eos_token_id": 100}, "eos token id 100 lies outside the vocabulary of 100"),
    ],
)
def test_refusals(given: dict[str, Any], problem: str) -> None:
    assert message(**given) == f"GGUF 'Tiny' (llama): {problem}"


def test_unknown_architectures() -> None:
    assert message(general__architecture="qwen3moe") == (
        "GGUF 'Tiny': unknown architecture 'qwen3moe'; did you mean 'qwen3'? "
        "(known: gpt2, llama, olmo2, phi3, qwen2, qwen3)"
    )
    assert message(general__architecture=None) == (
        "GGUF 'Tiny': unknown architecture None; known: gpt2, llama, olmo2, phi3, qwen2, qwen3"
    )
