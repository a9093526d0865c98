"""A generating forward as a list of operations: those of `costs.operations`, with caches and with few experts read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from plait.costs.operations import Operation, Work, layer_operations
from plait.costs.shares import Share
from plait.costs.work import cache_values, expected_experts
from plait.plans.round import MicroBatch
from plait.spec.model import ModelSpec


class Rows(NamedTuple):
    """`requests` that each compute `length` positions and have `cached` before them."""

    requests: float
    length: float
    cached: float


class Sizes(NamedTuple):
    """Bytes of a weight, and of a value of activations and caches."""

    weight_bytes: float
    item_bytes: float


def rows_of(micro_batch: MicroBatch) -> tuple[Rows, ...]:
    """A micro-batch's rows; those of one length at the mean of what they have cached: attention is linear in it."""
    lengths: dict[int, list[int]] = {}
    for row in micro_batch.rows:
        lengths.setdefault(row.length, []).append(row.start)
    return tuple(Rows(len(starts), length, sum(starts) / len(starts)) for length, starts in lengths.items())


def forward_operations(
    spec: ModelSpec, layer: int, rows: Sequence[Rows], share: Share, sizes: Sizes
) -> tuple[Operation, ...]:
    """One layer's forward on a rank that holds `share` of it: every weight is read once, every row's cache once."""
    tokens = sum(each.requests * each.length for each in rows)
    absorbed = spec.latent is not None and all(each.length <= 1 for each in rows)
    work = Work(tokens, 0.0, share, absorbed=absorbed, item_bytes=sizes.item_bytes, weight_bytes=sizes.weight_bytes)
    operations: list[Operation] = []
    for one in layer_operations(spec, layer, work):
        if one.kind == "attention":
            operations += _attend(spec, layer, rows, share, sizes)
        elif one.kind == "matmul" and one.name.startswith("experts_"):
            operations.append(_touched(spec, one, tokens, sizes))
        else:
            operations.append(one)
    return tuple(operations)


def _attend(spec: ModelSpec, layer: int, rows: Sequence[Rows], share: Share, sizes: Sizes) -> Iterator[Operation]:
    """Attention of each kind of row: the cache of each row read once, its new positions written.

    A position sees what is cached and those before it in its row, or its window of them. Sources: Pope et al.,
    "Efficiently Scaling Transformer Inference" (2022), section 3.3; for the latent DeepSeek-AI, "DeepSeek-V2" (2024),
    section 2.1.2: decoding works on the latent itself.
    """
    window = spec.windows[layer] if layer < len(spec.windows) else None
    width = cache_values(spec, share.kv_heads)
    for requests, length, cached in rows:
        seen, read = cached + (length + 1) / 2, cached + length
        if window is not None:
            seen, read = min(seen, window), min(read, window + length)
        query, value = _head_dims(spec, length)
        pairs = requests * length * seen
        kept = (read + length) * width + length * share.heads * (query + value)
        scores = 2.0 * share.heads * pairs * query
        yield Operation(
            name="attention",
            kind="attention",
            rows=requests * length,
            columns=seen,
            inner=(query + value) / 2,
            times=share.heads,
            flops=scores + 2.0 * share.heads * pairs * value,
            moved_bytes=requests * kept * sizes.item_bytes,
            backward_bytes=0.0,
            scores_flops=scores,
        )


def _head_dims(spec: ModelSpec, length: float) -> tuple[int, int]:
    """Dimensions of a head's query and value: the latent's own where one position of a row is computed."""
    if spec.latent is None:
        return spec.head_dim, spec.head_dim
    if length > 1:
        return spec.latent.nope_dim + spec.latent.rope_dim, spec.latent.value_dim
    return spec.latent.kv_rank + spec.latent.rope_dim, spec.latent.kv_rank


def _touched(spec: ModelSpec, one: Operation, tokens: float, sizes: Sizes) -> Operation:
    """A product of experts of which few tokens read only some: those that are expected to be touched."""
    experts = spec.experts
    assert experts is not None
    touched = expected_experts(experts.count, experts.per_token, tokens)
    each = one.columns * one.inner * sizes.weight_bytes
    moved = one.moved_bytes - (one.times - touched) * each
    return one._replace(rows=one.rows * one.times / touched, times=touched, moved_bytes=moved)
