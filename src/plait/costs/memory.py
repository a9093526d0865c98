"""How many bytes a stage needs: weights, KV cache and workspace. Each formula names its source."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

from plait.errors import SpecError, nearest
from plait.plans.layout import Layout, Stage
from plait.plans.rules import DTYPE_BYTES
from plait.spec.model import ModelSpec
from plait.spec.tensors import stage_tensors

FORMAT_BYTES: Mapping[str, float] = dict(DTYPE_BYTES)
"""Bytes of one weight in each format that a stage can store."""

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
    """What each stage needs to serve `slots` requests of at most `context` positions, prompts in pieces of `chunk`."""
    return tuple(
        StageNeed(
            weights_bytes(stage, spec),
            kv_bytes(stage, spec, slots, context),
            workspace_bytes(stage, spec, max(slots, min(chunk, context)), slots, context),
        )
        for stage in layout.stages
    )


def weights_bytes(stage: Stage, spec: ModelSpec) -> int:
    """Parameters × bytes of the stage's format, by the shapes of `spec.tensors`.

    A tied embedding is held, and counted, by the first and by the last stage.
    """
    if stage.weights not in FORMAT_BYTES:
        raise SpecError(f"unknown weight format {stage.weights!r}: {nearest(stage.weights, FORMAT_BYTES)}")
    parameters = sum(prod(shape) for shape in stage_tensors(spec, *stage.layers).values())
    return round(parameters * FORMAT_BYTES[stage.weights])


def kv_bytes(stage: Stage, spec: ModelSpec, slots: int, context: int) -> int:
    """2 (keys and values) × layers × slots × context × KV heads × head size × bytes of the stage's dtype.

    Source: Pope et al., "Efficiently Scaling Transformer Inference" (2022), section 3.3, with KV heads for heads
    (Ainslie et al., "GQA", 2023). Sliding windows do not shrink it: the cache is allocated for the whole context.
    """
    per_position = 2 * spec.kv_heads * spec.head_dim * DTYPE_BYTES[stage.dtype]
    return stage.layer_count * slots * context * per_position


def workspace_bytes(stage: Stage, spec: ModelSpec, tokens: int, sampled: int, context: int) -> int:
    """The most that lies beside weights and cache while `tokens` positions go through a stage: an upper bound.

    Counted from the decoder's equations: input, residual and normed [tokens, hidden]; queries, keys, values; gate, up
    and their product [tokens, intermediate]; attention scores and probabilities in float32 [heads, tokens, context]
    of one layer; on the last stage logits in float32 [sampled, vocab], twice (with their noise).
    """
    item = DTYPE_BYTES[stage.dtype]
    queries, keys = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    activations = tokens * (3 * spec.hidden + 2 * queries + 2 * keys + 3 * spec.intermediate) * item
    scores = 2 * spec.heads * tokens * context * 4
    logits = 2 * sampled * spec.vocab * 4 if stage.layers[1] == spec.layers else 0
    return activations + scores + logits
