"""How many bytes a stage needs: weights, KV cache and workspace. Each formula names its source."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import prod
from types import MappingProxyType
from typing import NamedTuple

from plait.costs.shares import Share, largest_share
from plait.costs.work import cache_values
from plait.errors import SpecError, nearest
from plait.plans.layout import Layout, Stage
from plait.plans.rules import DTYPE_BYTES
from plait.spec.model import ModelSpec
from plait.spec.shards import make_shards, shard_tensors

FORMAT_BYTES: Mapping[str, float] = MappingProxyType(
    {
        **DTYPE_BYTES,
        "float16": 2,
        "float8": 1,
        # one byte, and a float32 scale for every 128 of a row
        "int8": 1 + 4 / 128,
        # half a byte, and a bfloat16 scale and zero point for every 128 (torch's _weight_int4pack_mm)
        "int4": 0.5 + 4 / 128,
        # blocks of 32 with an 8-bit scale (Open Compute Project, "Microscaling Formats (MX)" v1.0)
        "mxfp4": 17 / 32,
        # bytes a block ÷ weights a block, ggml's ggml-common.h
        "q8_0": 34 / 32,
        "q5_1": 24 / 32,
        "q5_0": 22 / 32,
        "q4_1": 20 / 32,
        "q4_0": 18 / 32,
        "q6_k": 210 / 256,
        "q5_k": 176 / 256,
        "q4_k": 144 / 256,
        # a mixture of q4_k and q6_k: 4.84 bits for Llama 2 7B, 4.80 for 70B (llama.cpp, examples/quantize/README.md)
        "q4_k_m": 4.84 / 8,
    }
)
"""Bytes of one weight in each format. All can be planned; what a stage can run today is `plans.layout.DTYPES`."""

MAX_CHUNK = 512
"""The most positions of one prompt that go through a stage at a time, unless the caller says otherwise."""


class StageNeed(NamedTuple):
    """What one rank of a stage needs, in bytes."""

    weights_bytes: int
    kv_bytes: int
    workspace_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.weights_bytes + self.kv_bytes + self.workspace_bytes


def need_bytes(
    layout: Layout, spec: ModelSpec, slots: int, context: int, chunk: int = MAX_CHUNK
) -> tuple[StageNeed, ...]:
    """What each stage needs to serve `slots` requests of at most `context` positions, prompts in pieces of `chunk`.

    `slots` are of each replica (`Plan.slots`). Of a tensor group the rank with the largest share. Errors: SpecError,
    PlanError.
    """
    tp, ep = layout.axes.get("tp", 1), layout.axes.get("ep", 1)
    tokens = max(slots, min(chunk, context))
    return tuple(
        StageNeed(
            weights_bytes(stage, spec, tp, ep),
            kv_bytes(stage, spec, slots, context, tp),
            workspace_bytes(stage, spec, tokens, slots, context, tp),
        )
        for stage in layout.stages
    )


def weights_bytes(stage: Stage, spec: ModelSpec, tp: int = 1, ep: int = 1) -> int:
    """Parameters on the fullest of `tp` ranks × bytes of the stage's format, by the shapes of `spec.tensors`.

    Of a tensor group the pieces that `spec.shards` cuts, with the embedding and the head divided over the vocabulary. A
    tied embedding is held, and counted, by the first and by the last stage. Errors: SpecError, PlanError.
    """
    return max(group_weights_bytes(stage, spec, tp, ep))


def group_weights_bytes(stage: Stage, spec: ModelSpec, tp: int = 1, ep: int = 1) -> tuple[int, ...]:
    """The same of every rank of the tensor group, in their order. Errors: SpecError, PlanError."""
    if stage.weights not in FORMAT_BYTES:
        raise SpecError(f"unknown weight format {stage.weights!r}: {nearest(stage.weights, FORMAT_BYTES)}")
    held = _parameters(spec, stage.layers, tp, ep, stage.shares, stage.weights)
    return tuple(round(parameters * FORMAT_BYTES[stage.weights]) for parameters in held)


@lru_cache(maxsize=1024)
def _parameters(
    spec: ModelSpec, layers: tuple[int, int], tp: int, ep: int, shares: tuple[float, ...], weights: str
) -> tuple[int, ...]:
    """On each rank of a tensor group. Experts are whole ones, each of `ep` ranks has its part of them."""
    found = []
    for shard in make_shards(spec, tp, shares, weights):
        held = 0
        for name, piece in shard_tensors(spec, *layers, shard).items():
            size, count = prod(piece.shape), piece.shape[0] if ".experts." in name else 1
            held += size // count * -(-count // ep) if ".experts." in name else size
        found.append(held)
    return tuple(found)


def kv_bytes(stage: Stage, spec: ModelSpec, slots: int, context: int, tp: int = 1) -> int:
    """2 (keys and values) × layers × slots × context × KV heads × head size × bytes of the stage's dtype.

    Source: Pope et al., "Efficiently Scaling Transformer Inference" (2022), section 3.3, with KV heads for heads
    (Ainslie et al., "GQA", 2023); latent attention keeps its latent and the rotated key, whole on every rank. Sliding
    windows do not shrink it: the cache is allocated for the whole context.
    """
    return slots * context * position_bytes(stage, spec, _largest(spec, stage, tp))


def position_bytes(stage: Stage, spec: ModelSpec, share: Share) -> int:
    """Keys and values of one position in all layers of the stage, on a rank with this share."""
    return stage.layer_count * cache_values(spec, share.kv_heads) * DTYPE_BYTES[stage.dtype]


def workspace_bytes(stage: Stage, spec: ModelSpec, tokens: int, sampled: int, context: int, tp: int = 1) -> int:
    """The most that lies beside weights and cache while `tokens` positions go through a stage: an upper bound.

    Counted from the decoder's equations: input, residual and normed [tokens, hidden]; queries, keys, values; gate, up
    and their product [tokens, intermediate], of experts once for each that a token is routed to; on a CPU attention
    scores and probabilities in float32 [heads, tokens, context] of one layer (kernels of other devices never store
    them); on the last stage logits in float32 [sampled, vocab], twice (with their noise).
    """
    return share_workspace_bytes(stage, spec, _largest(spec, stage, tp), tokens, sampled, context)


def share_workspace_bytes(stage: Stage, spec: ModelSpec, share: Share, tokens: int, sampled: int, context: int) -> int:
    """The same on a rank with this share."""
    activations = tokens * (3 * spec.hidden + _attention_width(spec, share) + 3 * _mlp_width(spec, share))
    scores = 2 * share.heads * tokens * context * 4 if stage.device == "cpu" else 0
    logits = 2 * sampled * share.of(spec.vocab) * 4 if stage.layers[1] == spec.layers else 0
    return activations * DTYPE_BYTES[stage.dtype] + scores + logits


def _largest(spec: ModelSpec, stage: Stage, tp: int) -> Share:
    return largest_share(spec, tp, stage.shares, stage.weights)


def _attention_width(spec: ModelSpec, share: Share) -> int:
    """Values a position of queries, keys, values and attention's result."""
    if spec.latent is None:
        return 2 * (share.heads + share.kv_heads) * spec.head_dim
    latent = spec.latent
    ranks = latent.kv_rank + latent.rope_dim + (latent.query_rank or 0)
    return share.heads * 2 * (latent.nope_dim + latent.rope_dim + latent.value_dim) + ranks


def _mlp_width(spec: ModelSpec, share: Share) -> int:
    """Values a position between the MLP's two products, in the widest layer."""
    experts = spec.experts
    if experts is None:
        return share.of(spec.intermediate)
    routed = experts.per_token * share.of(experts.intermediate)
    routed += share.of(experts.shared * experts.shared_intermediate)
    return max(routed, share.of(spec.intermediate) if experts.dense_layers else 0)
