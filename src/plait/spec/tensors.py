"""Which tensors a model has, under the names that every room uses, and which stage holds them.

Names and shapes (torch's Linear convention, [out, in]; queries and keys in rotate-half order, as Hugging Face stores
them):

    embed.weight                [vocab, hidden]        positions.weight   [max_positions, hidden]   (learned positions)
    layers.N.attn_norm.weight   [hidden]               before attention, or after it where norm_placement is "post"
    layers.N.{q,k,v}.weight     [heads or kv_heads × head_dim, hidden]
    layers.N.{q,k}_norm.weight  [head_dim] or [heads or kv_heads × head_dim]
    layers.N.o.weight           [hidden, heads × head_dim]
    layers.N.mlp_norm.weight    [hidden]
    layers.N.{gate,up}.weight   [intermediate, hidden]  (no gate in a plain MLP)
    layers.N.down.weight        [hidden, intermediate]
    norm.weight                 [hidden]
    head.weight                 [vocab, hidden]         (absent where tied: the embedding serves)

Biases carry the same name with `.bias`.
"""

from __future__ import annotations

from collections.abc import Iterator

from plait.spec.model import ModelSpec

Shape = tuple[int, ...]


def layer_tensors(spec: ModelSpec) -> dict[str, Shape]:
    """Name (without the ``layers.N.`` prefix) to shape, for any one layer."""
    queries, keys = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    shapes: dict[str, Shape] = dict(_norm(spec, "attn_norm"))
    shapes |= _linear("q", queries, spec.hidden, spec.qkv_bias)
    shapes |= _linear("k", keys, spec.hidden, spec.qkv_bias)
    shapes |= _linear("v", keys, spec.hidden, spec.qkv_bias)
    if spec.qk_norm is not None:
        full = spec.qk_norm == "full"
        shapes["q_norm.weight"] = (queries if full else spec.head_dim,)
        shapes["k_norm.weight"] = (keys if full else spec.head_dim,)
    shapes |= _linear("o", spec.hidden, queries, spec.output_bias)
    shapes |= dict(_norm(spec, "mlp_norm"))
    if spec.mlp == "gated":
        shapes |= _linear("gate", spec.intermediate, spec.hidden, spec.mlp_bias)
    shapes |= _linear("up", spec.intermediate, spec.hidden, spec.mlp_bias)
    shapes |= _linear("down", spec.hidden, spec.intermediate, spec.mlp_bias)
    return shapes


def stage_tensors(spec: ModelSpec, first: int, end: int) -> dict[str, Shape]:
    """Name to shape of all that a stage with layers [first, end) holds.

    The first stage holds the embedding, the last one the final norm and the LM head; a tied embedding
    is held by both.
    """
    shapes: dict[str, Shape] = {}
    if first == 0:
        shapes["embed.weight"] = (spec.vocab, spec.hidden)
        if spec.learned_positions:
            shapes["positions.weight"] = (spec.max_positions, spec.hidden)
    per_layer = layer_tensors(spec)
    for layer in range(first, end):
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in per_layer.items()}
    if end == spec.layers:
        shapes |= dict(_norm(spec, "norm"))
        shapes["embed.weight" if spec.tied else "head.weight"] = (spec.vocab, spec.hidden)
    return shapes


def model_tensors(spec: ModelSpec) -> dict[str, Shape]:
    """Name to shape of the whole model."""
    return stage_tensors(spec, 0, spec.layers)


def _linear(name: str, out: int, into: int, bias: bool) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {f"{name}.weight": (out, into)}
    if bias:
        shapes[f"{name}.bias"] = (out,)
    return shapes


def _norm(spec: ModelSpec, name: str) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", (spec.hidden,)
    if spec.norm == "layer":
        yield f"{name}.bias", (spec.hidden,)
