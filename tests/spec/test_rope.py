"""RoPE's variants, from old and new keys and from GGUF, against what transformers makes of the same keys."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from plait.errors import SpecError
from plait.spec.gguf_rope import llama3_factors
from plait.spec.huggingface import spec_from_config
from plait.spec.model import Rope

BASE: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}
PHI3 = BASE | {"model_type": "phi3", "eos_token_id": None}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
VARIANTS: dict[str, tuple[dict[str, Any], Rope]] = {
    "default": ({}, Rope(10_000.0, 16)),
    "linear": ({"type": "linear", "factor": 2}, Rope(10_000.0, 16, "linear", 2.0)),
    "llama3": ({"rope_type": "llama3", **LLAMA3}, Rope(10_000.0, 16, "llama3", 8.0, 8192)),
    "llama3 in the model's own context": (
        {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 2.0},
        Rope(10_000.0, 16, "llama3", 2.0, 512, high_freq_factor=2.0),
    ),
    "yarn": (
        {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
        Rope(10_000.0, 16, "yarn", 4.0, 128),
    ),
    "yarn with everything": (
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "attention_factor": 1.5,
            "truncate": False,
        },
        Rope(10_000.0, 16, "yarn", 4.0, 128, beta_fast=16.0, beta_slow=2.0, attention_factor=1.5, truncate=False),
    ),
    "yarn whose factor is null": (
        {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 128},
        Rope(10_000.0, 16, "yarn", 4.0, 128),
    ),
}


def rope(**more: Any) -> Rope | None:
    return spec_from_config(BASE | more, "m").rope


@pytest.mark.parametrize("name", VARIANTS)
def test_old_and_new_keys(name: str) -> None:
    given, wanted = VARIANTS[name]
    assert rope(rope_scaling=given or None, rope_theta=10_000) == wanted
    assert rope(rope_parameters={"rope_theta": 10_000.0, **given}) == wanted
    assert rope(rope_scaling=given, rope_parameters=given) == wanted


def test_theta() -> None:
    assert rope() == Rope(10_000.0, 16)
    assert rope(rope_theta=5e5) == Rope(500_000.0, 16)
    assert rope(rope_parameters={"rope_type": "default", "rope_theta": 5e5}, rope_theta=7.0) == Rope(500_000.0, 16)


def test_a_part_of_the_head() -> None:
    assert spec_from_config(PHI3 | {"partial_rotary_factor": 0.75}, "m").rope == Rope(10_000.0, 12)
    nested = {"rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 10_000.0, "rope_type": "default"}}
    assert spec_from_config(PHI3 | nested, "m").rope == Rope(10_000.0, 8)


@pytest.mark.parametrize(("mscale", "all_dim"), [(1.0, 1.0), (0.707, 1.2), (0.0, 1.0)])
def test_yarn_mscale_is_that_of_transformers(mscale: float, all_dim: float) -> None:
    given = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "rope_theta": 10_000.0}
    given |= {"mscale": mscale, "mscale_all_dim": all_dim}
    config = transformers.LlamaConfig(**BASE | {"rope_parameters": dict(given)})
    _, wanted = ROPE_INIT_FUNCTIONS["yarn"](config, torch.device("cpu"))
    found = rope(rope_parameters=given)
    assert found is not None
    if mscale == 0.0:
        assert found.attention_factor is None  # the variant's default
    else:
        assert found.attention_factor == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
def test_llama3_factors_are_those_of_transformers(theta: float) -> None:
    parameters = {"rope_type": "llama3", "rope_theta": theta, **LLAMA3}
    config = transformers.LlamaConfig(**BASE | {"head_dim": 128, "rope_parameters": parameters})
    config.max_position_embeddings = 131072
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 1.0 / theta ** (torch.arange(0, 128, 2, dtype=torch.float64) / 128)
    ours = llama3_factors(Rope(theta, 128, "llama3", 8.0, 8192))
    assert torch.allclose(torch.tensor(ours, dtype=torch.float64), plain / scaled.double(), rtol=1e-5)


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        "llama config of 'm', RoPE: variant 'dynamic' is not supported (known: default, linear, llama3, yarn)",
    ),
    (
        {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
        "llama config of 'm', RoPE: variant 'longrope' is not supported (known: default, linear, llama3, yarn)",
    ),
    (
        {"model_type": "phi3", "rope_scaling": {"type": "su", "short_factor": [1.0], "long_factor": [1.0]}},
        "phi3 config of 'm', RoPE: variant 'su' is not supported (known: default)",
    ),
    (
        {"rope_scaling": {"type": "mrope", "rope_type": "default"}},
        "llama config of 'm', RoPE: rope_type is 'default' and type is 'mrope'; keep one",
    ),
    (
        {"rope_scaling": {"type": "linear"}},
        "llama config of 'm', RoPE: missing factor; without it the model's shape is unknown",
    ),
    (
        {"rope_scaling": {"type": "linear", "factor": -2}},
        "llama config of 'm', RoPE: factor is -2; it must be a finite number above 0",
    ),
    (
        {"rope_scaling": {"type": "linear", "factor": 2, "beta_fast": 3}},
        "llama config of 'm', RoPE: variant 'linear' does not read 'beta_fast'; "
        "known: factor, partial_rotary_factor, rope_theta, rope_type, type",
    ),
    (
        {"rope_scaling": {"type": "llama3", **LLAMA3, "high_freq_factor": 1.0}},
        "llama config of 'm': RoPE's high_freq_factor is 1 and its low_freq_factor 1; the first must be the larger one",
    ),
    (
        {"rope_scaling": "linear"},
        "llama config of 'm': rope_scaling is 'linear'; it must be a table of keys and values",
    ),
    (
        {"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"rope_type": "default"}},
        "llama config of 'm': it has both rope_scaling and rope_parameters, and they differ; keep one",
    ),
    (
        {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
        "llama config of 'm': rope_parameters differ by the type of layer, which is not supported",
    ),
    (
        {"rope_parameters": {"partial_rotary_factor": 0.5}},
        "llama config of 'm', RoPE: partial_rotary_factor is 0.5, which is not supported; "
        "only phi3 rotates a part of a head",
    ),
]


@pytest.mark.parametrize(("given", "wanted"), REFUSED)
def test_refusals(given: dict[str, Any], wanted: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec_from_config(BASE | {"eos_token_id": None} | given, "m")
    assert str(caught.value) == wanted
