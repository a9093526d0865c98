"""Figures that cannot be right, whatever file they came from."""

from __future__ import annotations

from plait.errors import SpecError
from plait.spec.model import ModelSpec


def checked(spec: ModelSpec, what: str) -> ModelSpec:
    """`spec` itself. Raises SpecError, titled `what`, where its figures contradict each other."""
    for problem in (_heads(spec), _rotation(spec), _windows(spec), _ids(spec), _experts(spec)):
        if problem:
            raise SpecError(f"{what}: {problem}")
    return spec


def _heads(spec: ModelSpec) -> str | None:
    if spec.kv_heads > spec.heads or spec.heads % spec.kv_heads:
        return f"{spec.heads} heads cannot share {spec.kv_heads} KV heads; heads must be a multiple of KV heads"
    return None


def _rotation(spec: ModelSpec) -> str | None:
    if spec.rope is None:
        return None
    if spec.rope.dims % 2 or not 0 < spec.rope.dims <= spec.head_dim:
        return (
            f"RoPE would rotate {spec.rope.dims} of a head's {spec.head_dim} dimensions; "
            "it must be an even number, at least 2 and at most all"
        )
    if spec.rope.variant == "llama3" and spec.rope.high_freq_factor <= spec.rope.low_freq_factor:
        return (
            f"RoPE's high_freq_factor is {spec.rope.high_freq_factor:g} and its low_freq_factor "
            f"{spec.rope.low_freq_factor:g}; the first must be the larger one"
        )
    return None


def _windows(spec: ModelSpec) -> str | None:
    if len(spec.windows) != spec.layers:
        return f"{len(spec.windows)} layers have an attention type, and the model has {spec.layers} layers"
    return None


def _ids(spec: ModelSpec) -> str | None:
    for name, ids in (("bos", (spec.bos,)), ("eos", spec.eos)):
        for each in ids:
            if each is not None and each >= spec.vocab:
                return f"{name} token id {each} lies outside the vocabulary of {spec.vocab}"
    return None


def _experts(spec: ModelSpec) -> str | None:
    experts = spec.experts
    if experts is None:
        return None
    if experts.per_token > experts.count:
        return f"every token goes to {experts.per_token} experts, and there are only {experts.count}"
    if experts.dense_layers >= spec.layers:
        return f"the first {experts.dense_layers} layers have no experts, and the model has {spec.layers} layers"
    return None


def require_runnable(spec: ModelSpec) -> None:
    """Raise SpecError where the model can be planned but not run yet."""
    parts = {"a mixture of experts": spec.experts, "latent attention": spec.latent}
    given = [words for words, part in parts.items() if part is not None]
    if given:
        raise SpecError(f"{spec.name} has {' and '.join(given)}: such a model can be planned but not run yet")


def head_dim(hidden: int, heads: int, what: str) -> int:
    """Dimensions of a head where nothing names them. Raises SpecError where they are no whole number."""
    if hidden % heads:
        raise SpecError(
            f"{what}: hidden size {hidden} is not a multiple of {heads} heads, and no head dimension is given"
        )
    return hidden // heads
