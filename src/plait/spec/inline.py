"""A model described in one line, for one that is to be trained from nothing: ``llama:layers=4,hidden=256,heads=4``.

It is read like the config.json of its family; what nobody names is what small models usually have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from plait.errors import SpecError, nearest
from plait.spec.huggingface import spec_from_config
from plait.spec.model import FAMILIES, ModelSpec

_INLINE = re.compile(r"([a-z][a-z0-9]*):(.*)")
_KEYS = ("layers", "hidden", "heads", "kv_heads", "intermediate", "vocab", "positions", "tied")
_NEEDED = _KEYS[:3]
_BYTES = 256
_POSITIONS = 2048
_EXAMPLE = "llama:layers=4,hidden=256,heads=4"


def is_inline(name: str) -> bool:
    """True for ``family:…``."""
    return _INLINE.fullmatch(name) is not None


def inline_spec(text: str) -> ModelSpec:
    """The model that one line describes. Errors: SpecError, which names every key.

    `vocab` is 256 where it is not given, one token a byte; the MLP is 8/3 of `hidden` wide (gpt2: 4 times).
    """
    found = _INLINE.fullmatch(text)
    assert found is not None, text
    family, values = found[1], _values(text, found[2])
    if family not in FAMILIES:
        raise SpecError(f"model {text!r}: unknown family {family!r}; {nearest(family, FAMILIES)}")
    return spec_from_config(_gpt2(values) if family == "gpt2" else _rotary(family, values), text)


def _values(text: str, listed: str) -> dict[str, int]:
    values: dict[str, int] = {}
    for pair in filter(None, listed.split(",")):
        key, equals, number = pair.partition("=")
        if key not in _KEYS:
            raise SpecError(f"model {text!r}: unknown key {key!r}; {nearest(key, _KEYS)}")
        if not equals or not re.fullmatch("[0-9]+", number):
            raise SpecError(f"model {text!r}: {key} must be a whole number, as in {_EXAMPLE}")
        values[key] = int(number)
    missing = [key for key in _NEEDED if key not in values]
    if missing:
        raise SpecError(f"model {text!r}: missing {', '.join(missing)}; write it as in {_EXAMPLE}")
    return values


def _rotary(family: str, values: Mapping[str, int]) -> dict[str, Any]:
    hidden, heads = values["hidden"], values["heads"]
    return {
        "model_type": family,
        "num_hidden_layers": values["layers"],
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": values.get("kv_heads", heads),
        "head_dim": hidden // heads if heads and hidden % heads == 0 else None,
        "intermediate_size": values.get("intermediate", -(-8 * hidden // 3 // 64) * 64),
        **_common(values, "max_position_embeddings"),
    }


def _gpt2(values: Mapping[str, int]) -> dict[str, Any]:
    if "kv_heads" in values:
        raise SpecError("a gpt2 has as many KV heads as heads: leave kv_heads out")
    return {
        "model_type": "gpt2",
        "n_layer": values["layers"],
        "n_embd": values["hidden"],
        "n_head": values["heads"],
        "n_inner": values.get("intermediate", 4 * values["hidden"]),
        **_common(values, "n_positions"),
    }


def _common(values: Mapping[str, int], positions: str) -> dict[str, Any]:
    return {
        "vocab_size": values.get("vocab", _BYTES),
        positions: values.get("positions", _POSITIONS),
        "tie_word_embeddings": bool(values.get("tied", 0)),
        "bos_token_id": None,
        "eos_token_id": None,
        "sliding_window": None,
    }
