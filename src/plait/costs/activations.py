"""Bytes of activations that a forward keeps for its backward, counted from what each gradient needs.

The count is that of Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022),
section 4, in other shapes: gated MLPs, grouped-query and latent attention, experts, fused attention, no dropout. For a
GPT layer with dropout and unfused attention it is exactly theirs: s b h (34 + 5 a s / h) bytes, with a tensor group of
t ranks s b h (10 + 24 / t + 5 a s / (h t)), and with sequence split s b h (34 / t + 5 a s / (h t)). As there, the
statistics of norms and the token ids are left out: they are small.
"""

from __future__ import annotations

from typing import NamedTuple

from plait.costs.operations import Work
from plait.plans.split import Recompute
from plait.spec.model import ModelSpec
from plait.spec.tensors import has_experts

_FLOAT32 = 4


class Kept(NamedTuple):
    """Bytes on one rank by how they are split. `whole`: on every rank of the group, or over it with sequence split.

    `inner`: of the rank's own heads and part of the MLP. `scores`: of unfused attention; what fused attention keeps
    instead (a float32 a head and position) is in `inner`. Selective recompute makes `scores` anew.
    """

    whole_bytes: float = 0.0
    inner_bytes: float = 0.0
    scores_bytes: float = 0.0

    @property
    def total_bytes(self) -> float:
        """All of it."""
        return sum(self)

    def plus(self, other: Kept) -> Kept:
        """Both together."""
        return Kept(*(mine + its for mine, its in zip(self, other, strict=True)))


def layer_kept(spec: ModelSpec, layer: int, work: Work) -> Kept:
    """What one layer's forward keeps where nothing is recomputed, part by part."""
    attention = _attention(spec, work) if spec.latent is None else _latent_attention(spec, work)
    mlp = _experts(spec, work) if has_experts(spec, layer) else _mlp(spec, work, spec.intermediate)
    return _blocks(spec, work).plus(attention).plus(mlp)


def layer_kept_bytes(spec: ModelSpec, layer: int, work: Work, recompute: Recompute = "none") -> float:
    """What one layer's forward keeps until its backward: with "full" its input, with "selective" all but the scores.

    Source: Korthikanti et al. (2022), sections 4 and 5, equations 1 to 6.
    """
    if recompute == "full":
        return work.tokens * spec.hidden * work.item_bytes / work.split
    kept = layer_kept(spec, layer, work)
    return kept.total_bytes - (kept.scores_bytes if recompute == "selective" else 0.0)


def layer_weight_half_bytes(spec: ModelSpec, layer: int, work: Work) -> float:
    """What lies between the two halves of a layer's backward: each linear's input, and the gradient of its output.

    Source: Qi et al., "Zero Bubble Pipeline Parallelism" (2023), section 3 and table 1: 32 s b h for a GPT layer.
    """
    item, tokens = work.item_bytes, work.tokens
    rows = tokens * spec.hidden * item / work.split
    attention = _attention_weight_half(spec, work)
    if not has_experts(spec, layer):
        inner = _mlp_widths(spec, work, spec.intermediate)
        return 4 * rows + attention + tokens * sum(inner) * item
    experts = spec.experts
    assert experts is not None
    routed = experts.per_token * (2 * rows + tokens * sum(_mlp_widths(spec, work, experts.intermediate)) * item)
    shared = tokens * sum(_mlp_widths(spec, work, experts.shared * experts.shared_intermediate)) * item
    shared += rows if experts.shared else 0.0  # the gradient of its output
    router = _FLOAT32 * tokens * experts.count / work.split
    return 3 * rows + attention + routed + shared + router


def layer_recomputed_bytes(spec: ModelSpec, layer: int, work: Work, recompute: Recompute) -> float:
    """What a backward makes anew of one layer and holds beside what was kept, while that layer's backward runs."""
    if recompute == "none":
        return 0.0
    return layer_kept(spec, layer, work).total_bytes - layer_kept_bytes(spec, layer, work, recompute)


def embedding_kept_bytes(spec: ModelSpec, work: Work) -> float:
    """What the embedding keeps: dropout's mask, one byte a value, or nothing (Korthikanti et al. 2022, section 4.3)."""
    return work.tokens * spec.hidden / work.split if work.dropout else 0.0


def head_kept_bytes(spec: ModelSpec, work: Work) -> float:
    """Inputs of the final norm and of the LM head, and float32 logits: 4 s b h / t (1 + V / h) with sequence split.

    Source: Korthikanti et al. (2022), section 4.3.
    """
    rows = work.tokens * spec.hidden * work.item_bytes / work.split
    return 2 * rows + _logits_bytes(spec, work)


def head_weight_half_bytes(spec: ModelSpec, work: Work) -> float:
    """What lies between the halves of the LM head's backward: its input and the gradient of the logits."""
    return work.tokens * spec.hidden * work.item_bytes / work.split + _logits_bytes(spec, work)


def _logits_bytes(spec: ModelSpec, work: Work) -> float:
    return _FLOAT32 * work.tokens * spec.vocab * work.share.part


def _blocks(spec: ModelSpec, work: Work) -> Kept:
    """Both blocks' norm inputs, linear inputs, and dropout masks: 10 s b h bytes with dropout in bfloat16."""
    values = work.tokens * spec.hidden / work.split
    return Kept(whole_bytes=values * (4 * work.item_bytes + (2 if work.dropout else 0)))


def _attention(spec: ModelSpec, work: Work) -> Kept:
    """Queries, keys and values; the output projection's input; queries and keys before their norm, if they have one."""
    queries, keys = work.share.heads * spec.head_dim, work.share.kv_heads * spec.head_dim
    widths = 2 * queries + 2 * keys + (queries + keys if spec.qk_norm else 0)
    uneven = work.fused and work.share.kv_heads and work.share.heads % work.share.kv_heads
    if not uneven:
        return _attended(work, widths)
    copies = 2 * (queries - keys)  # fused attention wants KV heads that are read alike: each query head gets its own
    return _attended(work, widths).plus(Kept(scores_bytes=work.tokens * copies * work.item_bytes))


def _latent_attention(spec: ModelSpec, work: Work) -> Kept:
    """The latents before and after their norms, whole on every rank; a head's query, key, value and result."""
    latent = spec.latent
    assert latent is not None
    widths = work.share.heads * 2 * (latent.nope_dim + latent.rope_dim + latent.value_dim)
    down = 2 * latent.kv_rank + latent.rope_dim + 2 * (latent.query_rank or 0)
    return _attended(work, widths).plus(Kept(whole_bytes=work.tokens * down * work.item_bytes))


def _attended(work: Work, widths: float) -> Kept:
    item, heads = work.item_bytes, work.share.heads
    if work.fused:
        statistics = _FLOAT32 * heads * work.tokens
        return Kept(inner_bytes=work.tokens * widths * item + statistics)
    a_score = 2 * item + 1 if work.dropout else item  # the softmax's output; with dropout its mask and what is left
    return Kept(0.0, work.tokens * widths * item, heads * work.pairs * a_score)


def _mlp_widths(spec: ModelSpec, work: Work, size: int) -> tuple[float, float]:
    """Values a position before the activation (of gate and up), and after it."""
    inner = size * work.share.part
    return (2 * inner if spec.mlp == "gated" else inner), inner


def _mlp(spec: ModelSpec, work: Work, size: int) -> Kept:
    return Kept(inner_bytes=work.tokens * sum(_mlp_widths(spec, work, size)) * work.item_bytes)


def _experts(spec: ModelSpec, work: Work) -> Kept:
    """Every routed token as often as it is routed, before and after its expert, and what the expert keeps itself.

    The router's probabilities are float32; an expert's result is kept because the gradient of its probability needs it.
    Routing is taken as even. Counted from the layer's equations; Korthikanti et al. have no experts.
    """
    experts = spec.experts
    assert experts is not None
    rows = work.tokens * spec.hidden * work.item_bytes / work.split
    one = _mlp(spec, work, experts.intermediate).inner_bytes
    probabilities = _FLOAT32 * work.tokens * experts.count / work.split
    routed = Kept(experts.per_token * 2 * rows + probabilities, experts.per_token * one)
    if not experts.shared:
        return routed
    return routed.plus(_mlp(spec, work, experts.shared * experts.shared_intermediate))


def _attention_weight_half(spec: ModelSpec, work: Work) -> float:
    """Beside [tokens, hidden] on both sides: the output projection's input and the gradients of what was projected."""
    item, tokens, heads = work.item_bytes, work.tokens, work.share.heads
    latent = spec.latent
    if latent is None:
        return tokens * (2 * heads + 2 * work.share.kv_heads) * spec.head_dim * item
    inner = heads * (2 * latent.value_dim + 2 * latent.nope_dim + latent.rope_dim)
    rank = latent.query_rank or 0
    return tokens * (inner + 2 * latent.kv_rank + latent.rope_dim + 2 * rank) * item
