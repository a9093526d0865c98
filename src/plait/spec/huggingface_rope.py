"""RoPE from a config.json: the old keys (`rope_theta`, `rope_scaling`) and the new one (`rope_parameters`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from plait.errors import nearest
from plait.spec.fields import Fields
from plait.spec.model import Rope

_DEFAULT_THETA = 10_000.0
_ALWAYS = ("partial_rotary_factor", "rope_theta", "rope_type", "type")
_READ: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "high_freq_factor", "low_freq_factor", "original_max_position_embeddings"),
    "yarn": (
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "factor",
        "mscale",
        "mscale_all_dim",
        "original_max_position_embeddings",
        "truncate",
    ),
}


def rope_from_config(fields: Fields, family: str, head_dim: int) -> Rope:
    """What `transformers` computes for these keys. Raises SpecError for a variant or a key that is not one of ours."""
    given = _given(fields)
    rope = Fields(given, f"{fields.what}, RoPE")
    variant = _variant(rope, family)
    _refuse_unread(rope, variant)
    theta = rope.number("rope_theta", fields.number("rope_theta", _DEFAULT_THETA))
    dims = int(head_dim * _rotated_part(fields, rope, family))
    if variant == "default":
        return Rope(theta, dims)
    if variant == "linear":
        return Rope(theta, dims, "linear", rope.number("factor"))
    original = _original_positions(fields, rope)
    if variant == "llama3":
        return Rope(
            theta,
            dims,
            "llama3",
            rope.number("factor"),
            original,
            low_freq_factor=rope.number("low_freq_factor"),
            high_freq_factor=rope.number("high_freq_factor"),
        )
    return _yarn(fields, rope, theta, dims, original)


def _given(fields: Fields) -> dict[str, Any]:
    old, new = fields.get("rope_scaling"), fields.get("rope_parameters")
    for key, value in (("rope_scaling", old), ("rope_parameters", new)):
        if value is not None and not isinstance(value, Mapping):
            raise fields.fail(f"{key} is {value!r}; it must be a table of keys and values")
    if old and new and old != new:
        raise fields.fail("it has both rope_scaling and rope_parameters, and they differ; keep one")
    given = dict(old or new or {})
    if any(isinstance(value, Mapping) for value in given.values()):
        raise fields.fail("rope_parameters differ by the type of layer, which is not supported")
    return given


def _variant(rope: Fields, family: str) -> str:
    variant, old = rope.get("rope_type"), rope.get("type")
    if variant is not None and old is not None and variant != old:
        raise rope.fail(f"rope_type is {variant!r} and type is {old!r}; keep one")
    variant = variant or old or "default"
    # transformers reads Phi-3's "yarn" and "su" as longrope
    known = ("default",) if family == "phi3" else tuple(_READ)
    if variant not in known:
        raise rope.fail(f"variant {variant!r} is not supported (known: {', '.join(known)})")
    return str(variant)


def _refuse_unread(rope: Fields, variant: str) -> None:
    known = (*_ALWAYS, *_READ[variant])
    for key, value in rope.values.items():
        if key not in known and value is not None:
            raise rope.fail(f"variant {variant!r} does not read {key!r}; {nearest(key, known)}")


def _rotated_part(fields: Fields, rope: Fields, family: str) -> float:
    part = rope.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    if part != 1.0 and family != "phi3":
        raise rope.fail(
            f"partial_rotary_factor is {part:g}, which is not supported; only phi3 rotates a part of a head"
        )
    return part


def _original_positions(fields: Fields, rope: Fields) -> int:
    # outside the table it goes first, as in transformers
    if "original_max_position_embeddings" in fields:
        return fields.count("original_max_position_embeddings")
    return rope.count("original_max_position_embeddings", fields.count("max_position_embeddings"))


def _yarn(fields: Fields, rope: Fields, theta: float, dims: int, original: int) -> Rope:
    factor = rope.number("factor", fields.count("max_position_embeddings") / original)
    attention = rope.number("attention_factor") if "attention_factor" in rope else None
    if attention is None and rope.get("mscale") and rope.get("mscale_all_dim"):
        attention = _mscale(factor, rope.number("mscale")) / _mscale(factor, rope.number("mscale_all_dim"))
    return Rope(
        theta,
        dims,
        "yarn",
        factor,
        original,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        attention_factor=attention,
        truncate=rope.flag("truncate", True),
    )


def _mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
