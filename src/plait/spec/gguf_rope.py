"""RoPE from GGUF: its keys, and Llama 3's frequency factors, of which GGUF keeps a tensor and not the figures."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from plait.spec.fields import Fields, choices
from plait.spec.model import Rope

ROPE_KEYS = (
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.attn_factor",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_log_multiplier",
)
_SCALING_TYPES = ("linear", "none", "yarn")
_NEUTRAL = {
    "rope.scaling.attn_factor": 1,
    "rope.scaling.yarn_attn_factor": 1,
    "rope.scaling.yarn_ext_factor": 1,
    "rope.scaling.yarn_log_multiplier": 0,
}
_LLAMA3_CONTEXTS = (8192, 2048, 4096, 16384, 32768, 65536, 131072)
_TOLERANCE = 1e-4  # relative; the tensor is float32


def rope_from_gguf(
    fields: Fields, arch: str, head_dim: int, tensor_names: Collection[str], factors: Sequence[float] | None
) -> Rope:
    """Keys and factors as a Rope. Raises SpecError for a kind of scaling that is not one of ours."""
    _refuse_other_scaling(fields, tensor_names)
    dims = fields.count("rope.dimension_count", head_dim)
    if dims != head_dim and arch != "phi3":
        raise fields.fail(
            f"rope.dimension_count is {dims} and a head has {head_dim}; only phi3 rotates a part of a head"
        )
    theta = fields.number("rope.freq_base", 10_000.0)
    variant = fields.text("rope.scaling.type", "linear" if "rope.scale_linear" in fields else "none")
    if variant not in _SCALING_TYPES:
        raise fields.fail(f"rope.scaling.type {variant!r} is not supported; {choices(variant, _SCALING_TYPES)}")
    if "rope_freqs.weight" in tensor_names:
        return _with_factors(fields, Rope(theta, dims), variant, factors)
    factor = fields.number("rope.scaling.factor", fields.number("rope.scale_linear", 1.0))
    if variant == "none" or (variant == "linear" and factor == 1.0):
        return Rope(theta, dims)
    if variant == "linear":
        return Rope(theta, dims, "linear", factor)
    return _yarn(fields, theta, dims)


def _refuse_other_scaling(fields: Fields, tensor_names: Collection[str]) -> None:
    for tensor in ("rope_factors_long.weight", "rope_factors_short.weight"):
        if tensor in tensor_names:
            raise fields.fail(
                f"it has {tensor}: RoPE variant 'longrope' is not supported (known: default, linear, llama3, yarn)"
            )
    for key, neutral in _NEUTRAL.items():
        if fields.get(key) not in (None, neutral):
            raise fields.fail(f"{key} is {fields.get(key)!r}, which is not supported; only {neutral} is")


def _yarn(fields: Fields, theta: float, dims: int) -> Rope:
    return Rope(
        theta,
        dims,
        "yarn",
        factor=fields.number("rope.scaling.factor"),
        original_positions=fields.count("rope.scaling.original_context_length"),
        beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
    )


def _with_factors(fields: Fields, plain: Rope, variant: str, factors: Sequence[float] | None) -> Rope:
    """The llama3 figures that give exactly these factors."""
    if variant != "none":
        raise fields.fail(f"it has both rope_freqs.weight and rope.scaling.type {variant!r}; only one is supported")
    if factors is None or len(factors) != plain.dims // 2:
        given = "no values" if factors is None else f"{len(factors)} values"
        raise fields.fail(f"rope_freqs.weight has {given}, and {plain.dims} rotated dimensions need {plain.dims // 2}")
    if all(each == 1.0 for each in factors):
        return plain
    factor = round(max(factors), 6)
    for original in _LLAMA3_CONTEXTS:
        rope = Rope(plain.theta, plain.dims, "llama3", factor, original, low_freq_factor=1.0, high_freq_factor=4.0)
        if _close(llama3_factors(rope), factors):
            return rope
    raise fields.fail(
        "rope_freqs.weight holds factors that no llama3 scaling gives "
        f"(low and high frequency factor 1 and 4, original context {', '.join(map(str, sorted(_LLAMA3_CONTEXTS)))})"
    )


def llama3_factors(rope: Rope) -> list[float]:
    """What llama3 scaling divides each of the dims / 2 frequencies by."""
    assert rope.original_positions is not None
    low, high = rope.low_freq_factor, rope.high_freq_factor
    divisors: list[float] = []
    for index in range(0, rope.dims, 2):
        turns = rope.original_positions / (2 * math.pi * rope.theta ** (index / rope.dims))  # in the original context
        smooth = min(1.0, max(0.0, (turns - low) / (high - low)))
        divisors.append(1.0 / ((1.0 - smooth) / rope.factor + smooth))
    return divisors


def _close(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    return all(math.isclose(a, b, rel_tol=_TOLERANCE) for a, b in zip(ours, theirs, strict=True))
