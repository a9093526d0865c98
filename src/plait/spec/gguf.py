"""ModelSpec from GGUF metadata: what llama.cpp's converter wrote under ``llama.block_count`` and its neighbours."""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from plait.errors import SpecError, nearest
from plait.spec.checked import checked, head_dim
from plait.spec.fields import Fields, choices
from plait.spec.gguf_rope import ROPE_KEYS, rope_from_gguf
from plait.spec.model import ModelSpec

ARCHITECTURES = ("gpt2", "llama", "olmo2", "phi3", "qwen2", "qwen3")
"""GGUF's names of what can be read. Mistral models are ``llama`` there."""

_SIZES = ("block_count", "embedding_length", "feed_forward_length", "attention.head_count", "context_length")
_KEYS = (
    *_SIZES,
    *ROPE_KEYS,
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.value_length",
    "vocab_size",
)
# what may be said if it says what we do anyway
_FIXED: Mapping[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.scale": (0,),
    "attn_logit_softcapping": (0,),
    "embedding_scale": (1,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "final_logit_softcapping": (0,),
    "logit_scale": (1,),
    "residual_scale": (1,),
    "tensor_data_layout": ("Meta AI original pth", "reference"),
    "use_parallel_residual": (False,),
}
_MOST_FLOAT32 = 3.4e38
_END_IDS = ("eos_token_id", "eot_token_id", "eom_token_id")


def spec_from_gguf(
    metadata: Mapping[str, Any],
    tensor_names: Collection[str],
    rope_factors: Sequence[float] | None = None,
    name: str | None = None,
) -> ModelSpec:
    """The model that a GGUF file describes.

    `tensor_names` tell what no key says: a tied embedding (there is no ``output.weight``) and biases.
    `rope_factors` is the content of ``rope_freqs.weight``, demanded where the file has that tensor.
    Raises SpecError for an architecture, a key or a figure that would make another model than ours.
    """
    arch = metadata.get("general.architecture")
    title = name or metadata.get("general.name") or "unnamed"
    if arch not in ARCHITECTURES:
        raise SpecError(f"GGUF {title!r}: unknown architecture {arch!r}; {choices(arch, ARCHITECTURES)}")
    prefix = f"{arch}."
    values = {key.removeprefix(prefix): _plain(value) for key, value in metadata.items() if key.startswith(prefix)}
    fields = Fields(values, f"GGUF {title!r} ({arch})")
    _refuse_unknown(fields)
    fields.require(_SIZES)
    return checked(_spec(fields, str(arch), str(title), metadata, tensor_names, rope_factors), fields.what)


def _spec(
    fields: Fields,
    arch: str,
    title: str,
    metadata: Mapping[str, Any],
    tensor_names: Collection[str],
    rope_factors: Sequence[float] | None,
) -> ModelSpec:
    gpt2 = arch == "gpt2"
    layers, heads = fields.layers("block_count"), fields.count("attention.head_count")
    dims = _head_dim(fields, heads)
    placement: Literal["pre", "post"] = "post" if arch == "olmo2" else "pre"
    qk_norm: Literal["head", "full"] | None = {"olmo2": "full", "qwen3": "head"}.get(arch)  # type: ignore[assignment]
    return ModelSpec(
        name=title,
        family=arch,
        layers=layers,
        hidden=fields.count("embedding_length"),
        heads=heads,
        kv_heads=fields.count("attention.head_count_kv", heads),
        head_dim=dims,
        intermediate=fields.count("feed_forward_length"),
        vocab=_vocab(fields, metadata),
        max_positions=fields.count("context_length"),
        norm_eps=fields.number("attention.layer_norm_epsilon" if gpt2 else "attention.layer_norm_rms_epsilon"),
        rope=None if gpt2 else rope_from_gguf(fields, arch, dims, tensor_names, rope_factors),
        windows=(_window(fields),) * layers,
        norm="layer" if gpt2 else "rms",
        norm_placement=placement,
        mlp="plain" if gpt2 else "gated",
        activation="gelu_tanh" if gpt2 else "silu",
        qkv_bias=arch in ("gpt2", "qwen2") or "blk.0.attn_q.bias" in tensor_names,
        output_bias=gpt2 or "blk.0.attn_output.bias" in tensor_names,
        mlp_bias=gpt2 or "blk.0.ffn_up.bias" in tensor_names,
        qk_norm=qk_norm,
        tied="output.weight" not in tensor_names,
        **_ids(metadata, fields.what),
    )


def _refuse_unknown(fields: Fields) -> None:
    for key, value in fields.values.items():
        if key in _FIXED:
            if value not in _FIXED[key]:
                meant = " or ".join(repr(each) for each in _FIXED[key])
                raise fields.fail(f"{key} is {value!r}, which is not supported; only {meant} is")
        elif key not in _KEYS:
            raise fields.fail(f"unknown key {key!r}, which may change the model; {nearest(key, _KEYS)}")


def _plain(value: Any) -> Any:
    """Lists of one figure for every layer become that figure; float32 its shortest decimal (9.9999997e-06 is 1e-05)."""
    if isinstance(value, list) and value and all(each == value[0] for each in value):
        value = value[0]
    if isinstance(value, float) and abs(value) < _MOST_FLOAT32:
        for digits in range(1, 10):
            short = float(f"{value:.{digits}g}")
            if struct.pack("<f", short) == struct.pack("<f", value):
                return short
    return value


def _head_dim(fields: Fields, heads: int) -> int:
    keys = fields.get("attention.key_length")
    values = fields.get("attention.value_length")
    if keys is None and values is None:
        return head_dim(fields.count("embedding_length"), heads, fields.what)
    if keys != values:
        raise fields.fail(f"attention.key_length is {keys} and attention.value_length {values}; they must be equal")
    return fields.count("attention.key_length")


def _vocab(fields: Fields, metadata: Mapping[str, Any]) -> int:
    if "vocab_size" in fields:
        return fields.count("vocab_size")
    words = metadata.get("tokenizer.ggml.tokens")
    if not words or not isinstance(words, list):
        raise fields.fail("neither vocab_size nor tokenizer.ggml.tokens is there; the vocabulary is unknown")
    return len(words)


def _window(fields: Fields) -> int | None:
    if not fields.get("attention.sliding_window"):
        return None
    return fields.count("attention.sliding_window")


def _ids(metadata: Mapping[str, Any], what: str) -> dict[str, Any]:
    tokens = Fields({key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}, what)
    ends = [each for key in _END_IDS for each in tokens.token_ids(key)]
    bos = tokens.token_ids("bos_token_id")
    return {"bos": bos[0] if bos else None, "eos": tuple(dict.fromkeys(ends))}
