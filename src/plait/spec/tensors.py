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

Latent attention has, instead of q, k, v and o (D = nope_dim + rope_dim of a head):

    layers.N.q_down.weight      [query_rank, hidden]    q_down_norm.weight [query_rank]
    layers.N.q_up.weight        [heads × D, query_rank] (without a query_rank: q.weight [heads × D, hidden])
    layers.N.kv_down.weight     [kv_rank + rope_dim, hidden]    kv_down_norm.weight [kv_rank]
    layers.N.kv_up.weight       [heads × (nope_dim + value_dim), kv_rank]
    layers.N.o.weight           [hidden, heads × value_dim]

A layer of experts has, instead of gate, up and down:

    layers.N.router.weight              [experts, hidden]
    layers.N.experts.{gate,up}.weight   [experts, intermediate of one, hidden]     (all experts in one tensor)
    layers.N.experts.down.weight        [experts, hidden, intermediate of one]
    layers.N.shared.{gate,up}.weight    [shared experts × intermediate of one, hidden]
    layers.N.shared.down.weight         [hidden, shared experts × intermediate of one]

Biases carry the same name with `.bias`.
"""

from __future__ import annotations

from collections.abc import Iterator

from plait.spec.model import Experts, LatentAttention, ModelSpec

Shape = tuple[int, ...]


def layer_tensors(spec: ModelSpec, layer: int = 0) -> dict[str, Shape]:
    """Name (without the ``layers.N.`` prefix) to shape. Layers differ only where some have experts and some do not."""
    shapes: dict[str, Shape] = dict(_norm(spec, "attn_norm"))
    shapes |= _attention(spec) if spec.latent is None else _latent_attention(spec, spec.latent)
    shapes |= dict(_norm(spec, "mlp_norm"))
    if has_experts(spec, layer):
        assert spec.experts is not None
        return shapes | _experts(spec, spec.experts)
    return shapes | _mlp(spec, "", spec.intermediate)


def has_experts(spec: ModelSpec, layer: int) -> bool:
    """True where the layer has experts in place of the plain MLP."""
    return spec.experts is not None and layer >= spec.experts.dense_layers


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
    for layer, tensors in _each_layer(spec, first, end):
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in tensors.items()}
    if end == spec.layers:
        shapes |= dict(_norm(spec, "norm"))
        shapes["embed.weight" if spec.tied else "head.weight"] = (spec.vocab, spec.hidden)
    return shapes


def model_tensors(spec: ModelSpec) -> dict[str, Shape]:
    """Name to shape of the whole model."""
    return stage_tensors(spec, 0, spec.layers)


def _each_layer(spec: ModelSpec, first: int, end: int) -> Iterator[tuple[int, dict[str, Shape]]]:
    kinds: dict[bool, dict[str, Shape]] = {}
    for layer in range(first, end):
        kind = has_experts(spec, layer)
        if kind not in kinds:
            kinds[kind] = layer_tensors(spec, layer)
        yield layer, kinds[kind]


def _attention(spec: ModelSpec) -> dict[str, Shape]:
    queries, keys = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    shapes = _linear("q", queries, spec.hidden, spec.qkv_bias)
    shapes |= _linear("k", keys, spec.hidden, spec.qkv_bias)
    shapes |= _linear("v", keys, spec.hidden, spec.qkv_bias)
    if spec.qk_norm is not None:
        full = spec.qk_norm == "full"
        shapes["q_norm.weight"] = (queries if full else spec.head_dim,)
        shapes["k_norm.weight"] = (keys if full else spec.head_dim,)
    return shapes | _linear("o", spec.hidden, queries, spec.output_bias)


def _latent_attention(spec: ModelSpec, latent: LatentAttention) -> dict[str, Shape]:
    queries = spec.heads * (latent.nope_dim + latent.rope_dim)
    shapes: dict[str, Shape] = {}
    if latent.query_rank is None:
        shapes |= _linear("q", queries, spec.hidden, spec.qkv_bias)
    else:
        shapes |= _linear("q_down", latent.query_rank, spec.hidden, spec.qkv_bias)
        shapes["q_down_norm.weight"] = (latent.query_rank,)
        shapes |= _linear("q_up", queries, latent.query_rank, False)
    shapes |= _linear("kv_down", latent.kv_rank + latent.rope_dim, spec.hidden, spec.qkv_bias)
    shapes["kv_down_norm.weight"] = (latent.kv_rank,)
    shapes |= _linear("kv_up", spec.heads * (latent.nope_dim + latent.value_dim), latent.kv_rank, False)
    return shapes | _linear("o", spec.hidden, spec.heads * latent.value_dim, spec.output_bias)


def _mlp(spec: ModelSpec, prefix: str, intermediate: int) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {}
    if spec.mlp == "gated":
        shapes |= _linear(f"{prefix}gate", intermediate, spec.hidden, spec.mlp_bias)
    shapes |= _linear(f"{prefix}up", intermediate, spec.hidden, spec.mlp_bias)
    return shapes | _linear(f"{prefix}down", spec.hidden, intermediate, spec.mlp_bias)


def _experts(spec: ModelSpec, experts: Experts) -> dict[str, Shape]:
    shapes = _linear("router", experts.count, spec.hidden, False)
    one = _mlp(spec, "experts.", experts.intermediate)
    shapes |= {name: (experts.count, *shape) for name, shape in one.items()}
    if experts.shared:
        shapes |= _mlp(spec, "shared.", experts.shared * experts.shared_intermediate)
    return shapes


def _linear(name: str, out: int, into: int, bias: bool) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {f"{name}.weight": (out, into)}
    if bias:
        shapes[f"{name}.bias"] = (out,)
    return shapes


def _norm(spec: ModelSpec, name: str) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", (spec.hidden,)
    if spec.norm == "layer":
        yield f"{name}.bias", (spec.hidden,)
