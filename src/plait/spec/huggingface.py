"""ModelSpec from a Hugging Face config.json.

A key that is absent means what it means to `transformers`; a key that would make another model is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plait.errors import SpecError
from plait.spec.checked import checked, head_dim
from plait.spec.fields import Fields, choices
from plait.spec.huggingface_experts import PLANNED_FAMILIES, planned_spec
from plait.spec.huggingface_keys import DEFAULTS, SIZES, refuse_other_models
from plait.spec.huggingface_rope import rope_from_config
from plait.spec.model import FAMILIES, ModelSpec

_ACTIVATIONS: Mapping[str, Any] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
_KNOWN = tuple(sorted((*FAMILIES, *PLANNED_FAMILIES)))
_FULL, _SLIDING = "full_attention", "sliding_attention"


def spec_from_config(config: Mapping[str, Any], name: str) -> ModelSpec:
    """The model that a config.json describes; `name` is how people call it.

    Raises SpecError for an architecture, a key or a figure that would make another model than ours.
    """
    family = config.get("model_type")
    if family is None:
        raise SpecError(f"config of {name!r}: missing model_type (known: {', '.join(_KNOWN)})")
    if family not in _KNOWN:
        raise SpecError(f"config of {name!r}: unknown architecture {family!r}; {choices(family, _KNOWN)}")
    what = f"{family} config of {name!r}"
    Fields(config, what).require(SIZES[family])
    refuse_other_models(Fields(config, what), family)
    # null is a value of its own in a config: "sliding_window": null is no window, though the default is 4096
    fields = Fields({**DEFAULTS[family], **config}, what)
    return checked(_READERS.get(family, _rotary)(fields, family, name), what)


def eos_from_generation_config(spec: ModelSpec, generation: Mapping[str, Any]) -> ModelSpec:
    """`spec` with the end-of-text ids of a generation_config.json, which go before those of the config."""
    ids = Fields(generation, f"generation config of {spec.name!r}").token_ids("eos_token_id")
    return checked(replace(spec, eos=ids), spec.name) if ids else spec


def _rotary(fields: Fields, family: str, name: str) -> ModelSpec:
    """All families but GPT-2: RMSNorm, RoPE and a gated MLP."""
    heads, hidden = fields.count("num_attention_heads"), fields.count("hidden_size")
    dims = fields.count("head_dim") if "head_dim" in fields else head_dim(hidden, heads, fields.what)
    layers = fields.layers("num_hidden_layers")
    bias = fields.flag("attention_bias", False)
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
        rope=rope_from_config(fields, family, dims),
        windows=_windows(fields, family, layers),
        norm_placement="post" if family == "olmo2" else "pre",
        activation=_activation(fields, "hidden_act"),
        qkv_bias=bias or family == "qwen2",
        output_bias=bias,
        mlp_bias=fields.flag("mlp_bias", False),
        qk_norm="full" if family == "olmo2" else "head" if family == "qwen3" else None,
        tied=fields.flag("tie_word_embeddings", False),
        **_ids(fields),
    )


def _planned(fields: Fields, family: str, name: str) -> ModelSpec:
    return planned_spec(fields, family, name, _ids(fields))


def _gpt2(fields: Fields, family: str, name: str) -> ModelSpec:
    hidden, heads, layers = fields.count("n_embd"), fields.count("n_head"), fields.layers("n_layer")
    return ModelSpec(
        name=name,
        family=family,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim(hidden, heads, fields.what),
        intermediate=fields.count("n_inner", 4 * hidden),
        vocab=fields.count("vocab_size"),
        max_positions=fields.count("n_positions"),
        norm_eps=fields.number("layer_norm_epsilon"),
        rope=None,
        windows=(None,) * layers,
        norm="layer",
        mlp="plain",
        activation=_activation(fields, "activation_function"),
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        tied=fields.flag("tie_word_embeddings", False),
        **_ids(fields),
    )


def _activation(fields: Fields, key: str) -> Any:
    given = fields.text(key)
    if given not in _ACTIVATIONS:
        raise fields.fail(f"{key} {given!r} is not supported; {choices(given, _ACTIVATIONS)}")
    return _ACTIVATIONS[given]


def _windows(fields: Fields, family: str, layers: int) -> tuple[int | None, ...]:
    """Each layer's window. A window of W lets a position see itself and the W - 1 before it."""
    types = fields.words("layer_types")
    if types is None:
        types = _default_layer_types(fields, family, layers)
    for each in types:
        if each not in (_FULL, _SLIDING):
            raise fields.fail(f"layer_types has {each!r}, which is not supported (known: {_FULL}, {_SLIDING})")
    if _SLIDING not in types:
        return (None,) * len(types)
    if family in ("qwen2", "qwen3") and not fields.flag("use_sliding_window"):
        raise fields.fail(f"layer_types has {_SLIDING!r}, and use_sliding_window is false; one of them must be wrong")
    window = fields.count("sliding_window")
    return tuple(window if each == _SLIDING else None for each in types)


def _default_layer_types(fields: Fields, family: str, layers: int) -> list[str]:
    if fields.get("sliding_window") is None:
        return [_FULL] * layers
    if family in ("mistral", "phi3"):
        return [_SLIDING] * layers
    if not fields.flag("use_sliding_window"):
        return [_FULL] * layers
    first = fields.get("max_window_layers")
    if isinstance(first, bool) or not isinstance(first, int) or first < 0:
        raise fields.fail(f"max_window_layers is {first!r}; it must be a whole number, 0 or above")
    return [_SLIDING if layer >= first else _FULL for layer in range(layers)]


def _ids(fields: Fields) -> dict[str, Any]:
    bos = fields.token_ids("bos_token_id")
    if len(bos) > 1:
        raise fields.fail(f"bos_token_id is {list(bos)}; only one can begin a text")
    return {"bos": bos[0] if bos else None, "eos": fields.token_ids("eos_token_id")}


_READERS = {"gpt2": _gpt2, **dict.fromkeys(PLANNED_FAMILIES, _planned)}
