"""Counts of a model's work: parameters, FLOP and bytes read. No constant here is fitted to a machine.

A matrix product of [T, in] by [in, out] is 2 · T · in · out FLOP (Kaplan et al., "Scaling Laws" (2020), section 2.1;
Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (2021), appendix).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from plait.costs.operations import Operation, Work, backward_input, backward_weight, head_operations, layer_operations
from plait.costs.shares import whole
from plait.plans.split import Recompute
from plait.spec.model import ModelSpec
from plait.spec.tensors import has_experts, layer_tensors


class LayerParameters(NamedTuple):
    """Parameters of one layer by part. `experts` are all routed ones."""

    attention: int
    mlp: int
    experts: int
    shared: int
    router: int
    norms: int

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self)


@dataclass(frozen=True, slots=True)
class ModelParameters:
    """Parameters of a model. `head` is 0 where the embedding is tied; `positions` is a learned table, if any."""

    layers: tuple[LayerParameters, ...]
    embedding: int
    positions: int
    final_norm: int
    head: int
    active_share: float

    @property
    def total(self) -> int:
        """Every parameter once."""
        return sum(layer.total for layer in self.layers) + self.ends

    @property
    def ends(self) -> int:
        """What lies before and after the layers."""
        return self.embedding + self.positions + self.final_norm + self.head

    @property
    def active(self) -> int:
        """All but the experts that one token is not routed to: what "active" means in model cards."""
        return self.total - round((1 - self.active_share) * sum(layer.experts for layer in self.layers))


def layer_parameters(spec: ModelSpec, layer: int = 0) -> LayerParameters:
    """Parameters of a layer by part, from the shapes of `spec.tensors`."""
    counts = dict.fromkeys(LayerParameters._fields, 0)
    for name, shape in layer_tensors(spec, layer).items():
        counts[_part(name)] += prod(shape)
    return LayerParameters(**counts)


def model_parameters(spec: ModelSpec) -> ModelParameters:
    """Parameters of the whole model."""
    kinds = {kind: layer_parameters(spec, layer) for kind, layer in layer_kinds(spec).items()}
    table = spec.vocab * spec.hidden
    return ModelParameters(
        layers=tuple(kinds[has_experts(spec, layer)] for layer in range(spec.layers)),
        embedding=table,
        positions=spec.max_positions * spec.hidden if spec.learned_positions else 0,
        final_norm=spec.hidden * (2 if spec.norm == "layer" else 1),
        head=0 if spec.tied else table,
        active_share=1.0 if spec.experts is None else spec.experts.per_token / spec.experts.count,
    )


def layer_kinds(spec: ModelSpec) -> dict[bool, int]:
    """The first layer of each kind that the model has: False, with a plain MLP; True, with experts."""
    if spec.experts is None:
        return {False: 0}
    dense = min(spec.experts.dense_layers, spec.layers)
    return ({False: 0} if dense else {}) | ({True: dense} if dense < spec.layers else {})


def _part(name: str) -> str:
    word = name.split(".")[0]
    if word in ("attn_norm", "mlp_norm"):
        return "norms"
    if word in ("router", "experts", "shared"):
        return word
    return "mlp" if word in ("gate", "up", "down") else "attention"


def attended_pairs(sequence: int, window: int | None = None, *, causal: bool = True, start: int = 0) -> int:
    """Pairs of a query and a key that it attends to, of one sequence's positions [start, start + sequence).

    Without `causal` every query meets every key of the piece, as published MFU formulas count, and windows are not
    looked at; with it a query at position p meets min(p + 1, window) keys.
    """
    if not causal:
        return sequence * (start + sequence)
    end = start + sequence
    return _triangle(end, window) - _triangle(start, window)


def _triangle(end: int, window: int | None) -> int:
    """Pairs of the queries at positions [0, end)."""
    ramp = end if window is None else min(end, window)
    return ramp * (ramp + 1) // 2 + (end - ramp) * ramp


class Flops(NamedTuple):
    """FLOP of a forward, and of the two halves of a backward."""

    forward: float = 0.0
    backward_input: float = 0.0
    backward_weight: float = 0.0

    @property
    def backward(self) -> float:
        """Both halves."""
        return self.backward_input + self.backward_weight

    def plus(self, other: Flops, times: float = 1.0) -> Flops:
        """This and `times` the other."""
        return Flops(*(mine + times * its for mine, its in zip(self, other, strict=True)))


def flops_of(operations: tuple[Operation, ...]) -> Flops:
    """The sum over operations."""
    return Flops(
        sum(one.flops for one in operations),
        sum(back.flops for one in operations for back in backward_input(one)),
        sum(back.flops for one in operations for back in backward_weight(one)),
    )


def layer_flops(spec: ModelSpec, layer: int, work: Work) -> Flops:
    """FLOP of one layer for one rank's work: backward = 2 × forward, half for each side of every matrix product.

    Attention's scores and values have no weights: both their backward products belong to the input's half (Qi et al.,
    "Zero Bubble Pipeline Parallelism" (2023), table 1: F sbh(24h + 4s), I sbh(24h + 8s), W 24sbh²). Fused attention
    computes the scores once more in its backward (Dao et al., "FlashAttention" (2022), section 3.1).
    """
    return flops_of(layer_operations(spec, layer, work))


def head_flops(spec: ModelSpec, work: Work) -> Flops:
    """FLOP of final norm, LM head and loss for the work's tokens."""
    return flops_of(head_operations(spec, work))


def recompute_flops(spec: ModelSpec, layer: int, work: Work, recompute: Recompute) -> float:
    """What a backward computes again of one layer.

    "full": the layer's forward. "selective": scores and values, whose products are what unfused attention would keep
    (Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022), section 5); nothing
    where attention is fused.
    """
    if recompute == "none" or (recompute == "selective" and work.fused):
        return 0.0
    operations = layer_operations(spec, layer, work)
    return sum(one.flops for one in operations if recompute == "full" or one.kind == "attention")


def model_flops(
    spec: ModelSpec, batch: int, sequence: int, recompute: Recompute = "none", *, causal: bool = False
) -> float:
    """FLOP of one training step, the numerator of MFU (with `recompute`: of hardware utilisation, HFU).

    Without `causal` attention counts in full, as published figures do: for a GPT with an MLP of 4h this is
    96 B s l h² (1 + s/6h + V/16lh) with full recompute (Narayanan et al. 2021, equation 3) and
    72 B l s h² (1 + s/6h + V/12lh) without (Korthikanti et al. 2022, appendix A). Of experts only those that a token is
    routed to count.
    """
    tokens = batch * sequence
    total = 0.0
    for layer, count in _alike(spec):
        window = spec.windows[layer]
        pairs = batch * attended_pairs(sequence, window, causal=causal)
        work = Work(tokens, pairs, whole(spec), fused=False)
        each = layer_flops(spec, layer, work)
        total += count * (sum(each) + recompute_flops(spec, layer, work, recompute))
    return total + sum(head_flops(spec, Work(tokens, 0, whole(spec))))


def _alike(spec: ModelSpec) -> list[tuple[int, int]]:
    """The first of all layers that cost the same, and how many they are."""
    first: dict[tuple[bool, int | None], int] = {}
    counts: dict[int, int] = {}
    for layer in range(spec.layers):
        key = has_experts(spec, layer), spec.windows[layer]
        counts[first.setdefault(key, layer)] = counts.get(first.setdefault(key, layer), 0) + 1
    return list(counts.items())


def expected_experts(count: int, per_token: int, tokens: float) -> float:
    """Distinct experts that `tokens` tokens are routed to, each to `per_token` of `count` at random.

    E (1 - (1 - k / E)^T), by the linearity of expectation. Source: the occupancy problem (Feller, "An Introduction to
    Probability Theory", volume 1, section IV.2).
    """
    untouched: float = (1 - per_token / count) ** tokens
    return count * (1 - untouched)


def parameters_read(spec: ModelSpec, first: int, end: int, tokens: float) -> float:
    """Parameters of layers [first, end) that a forward of `tokens` tokens reads, once each, with the ends of the model.

    Of routed experts those count that are expected to be touched. Of the embedding and the positions one row a token
    is read; the final norm and the LM head whole. Times bytes of a weight this is what decoding waits for (Pope et
    al., "Efficiently Scaling Transformer Inference" (2022), section 2.1).
    """
    total = 0.0
    kinds = {kind: layer_parameters(spec, layer) for kind, layer in layer_kinds(spec).items()}
    for layer in range(first, end):
        each = kinds[has_experts(spec, layer)]
        total += each.total - each.experts
        if each.experts and spec.experts is not None:
            touched = expected_experts(spec.experts.count, spec.experts.per_token, tokens)
            total += each.experts * touched / spec.experts.count
    if first == 0:
        total += min(tokens, spec.vocab) * spec.hidden * (2 if spec.learned_positions else 1)
    if end == spec.layers:
        total += spec.vocab * spec.hidden + spec.hidden * (2 if spec.norm == "layer" else 1)
    return total


def cache_values(spec: ModelSpec, kv_heads: int | None = None) -> int:
    """Values that one layer's cache holds for one position: 2 × KV heads × head size, or a latent and a rotated key.

    Sources: Ainslie et al., "GQA" (2023); DeepSeek-AI, "DeepSeek-V2" (2024), table 1. `kv_heads`: those of one rank; a
    latent is whole on every rank.
    """
    if spec.latent is not None:
        return spec.latent.kv_rank + spec.latent.rope_dim
    return 2 * (spec.kv_heads if kv_heads is None else kv_heads) * spec.head_dim


def cache_read_values(spec: ModelSpec, first: int, end: int, context: float, kv_heads: int | None = None) -> float:
    """Values of the cache that layers [first, end) read to decode one token with `context` positions before it."""
    attended = sum(context if window is None else min(context, window) for window in spec.windows[first:end])
    return attended * cache_values(spec, kv_heads)
