"""Attention over the cache. Every decoding row is computed in the same way whoever its neighbours are.

The keys that a decoding row looks at are rounded out to blocks of 64 positions and what it must not see is masked;
rows that lie in neighbouring slots and have the same blocks share one call. A row's shapes then depend on its own
length alone, and its result does not change by one bit with the batch (measured: a mask that is cut to the longest row
of the batch changes the low bits of most rows). The fixed blocks also keep the number of shapes small, for which the
kernels below us are compiled at run time. Why not one call a user, or matrix products: docs/decisions/0004.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from plait.plans.round import Row
from plait.spec.model import ModelSpec
from plait.spec.shards import Shard

BLOCK = 64
"""Positions that key ranges of decoding rows are rounded out to: the grid that prompts are cut on."""


class Span(NamedTuple):
    """Tokens [first, end) of a batch, of slots [slot, slot_end), attend to keys [key, key_end) of their slots.

    Either one slot and a piece of its prompt, or a run of slots with one token each. `mask` is added to the scores;
    without one, the piece begins its prompt and plain causal attention is the same.
    """

    first: int
    end: int
    slot: int
    slot_end: int
    key: int
    key_end: int
    mask: Tensor | None


def spans(rows: tuple[Row, ...], window: int | None, context: int, like: Tensor) -> list[Span]:
    """What the tokens of `rows` attend to in a layer with this `window`; masks have the dtype and device of `like`."""
    found: list[Span] = []
    first = 0
    for run, key, key_end in _runs(rows, window, context):
        mask = (
            _decode_mask(run, key, key_end, window, like) if run[0].length == 1 else _prompt_mask(run[0], window, like)
        )
        end = first + sum(row.length for row in run)
        found.append(Span(first, end, run[0].slot, run[-1].slot + 1, key, key_end, mask))
        first = end
    return found


def _runs(rows: tuple[Row, ...], window: int | None, context: int) -> Iterator[tuple[list[Row], int, int]]:
    """Rows that can share a call, and their key range."""
    run: list[Row] = []
    keys = (0, 0)
    for row in rows:
        wanted = _keys(row, window, context)
        joins = run and row.length == run[-1].length == 1 and row.slot == run[-1].slot + 1 and wanted == keys
        if run and not joins:
            yield run, *keys
            run = []
        run.append(row)
        keys = wanted
    yield run, *keys


def _keys(row: Row, window: int | None, context: int) -> tuple[int, int]:
    end = row.start + row.length
    first = 0 if window is None else max(0, row.start + 1 - window)
    if row.length > 1:
        return first, end
    return first - first % BLOCK, min(-(-end // BLOCK) * BLOCK, context)


def _decode_mask(run: list[Row], key: int, key_end: int, window: int | None, like: Tensor) -> Tensor:
    """[rows, 1, 1, keys]: 0 where a row sees the key, -inf elsewhere."""
    starts = torch.tensor([row.start for row in run], device=like.device)
    return _mask(starts[:, None], key, key_end, window, like)[:, None, None]


def _prompt_mask(row: Row, window: int | None, like: Tensor) -> Tensor | None:
    """[length, keys], or none where plain causal attention is the same."""
    end = row.start + row.length
    if row.start == 0 and (window is None or window >= end):
        return None
    first = _keys(row, window, end)[0]
    return _mask(torch.arange(row.start, end, device=like.device)[:, None], first, end, window, like)


def _mask(places: Tensor, key: int, key_end: int, window: int | None, like: Tensor) -> Tensor:
    """A query at `places` [n, 1] sees keys up to its own place, the last `window` of them."""
    keys = torch.arange(key, key_end, device=like.device)
    hidden = keys > places  # [n, keys]
    if window is not None:
        hidden |= keys <= places - window
    return torch.zeros(hidden.shape, dtype=like.dtype, device=like.device).masked_fill_(hidden, float("-inf"))


class Seen(NamedTuple):
    """A span with the keys and values it attends to, in every layer of the stage: [slots, kv_heads, keys, head_dim]."""

    span: Span
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]


def seen(found: list[Span], data: Tensor) -> list[Seen]:
    """Views of a cache's `data`: taken for all layers at once, since a view costs as much as a small product."""
    views = []
    for span in found:
        both = data[:, span.slot : span.slot_end, :, span.key : span.key_end]
        keys, values = both.chunk(2, dim=2)
        views.append(Seen(span, keys.unbind(0), values.unbind(0)))
    return views


class Padding(NamedTuple):
    """Query heads of zeros before and after a rank's own, so that all of its KV heads have equally many."""

    before: int
    after: int


def padding(spec: ModelSpec, shard: Shard) -> Padding | None:
    """What a rank's query heads need; None where attention takes them as they are."""
    group = spec.heads // spec.kv_heads
    (first, end), (kv_first, kv_end) = shard.heads, shard.kv_heads
    found = Padding(first - kv_first * group, kv_end * group - end)
    regular = kv_end - kv_first < 2 or found == (0, 0) or (kv_end - kv_first == 2 and found.before == found.after)
    return None if regular else found


def attend(queries: Tensor, views: list[Seen], layer: int, pad: Padding | None = None) -> Tensor:
    """Attention of all tokens in a layer (its place in the stage): [T, heads, head_dim] to [T, heads × head_dim]."""
    if pad is not None:
        return _attend_padded(queries, views, layer, pad)
    if len(views) == 1:
        return _attend(queries, views[0], layer)
    return torch.cat([_attend(queries[one.span.first : one.span.end], one, layer) for one in views])


def _attend_padded(queries: Tensor, views: list[Seen], layer: int, pad: Padding) -> Tensor:
    tokens, heads, head_dim = queries.shape
    mixed = attend(torch.nn.functional.pad(queries, (0, 0, *pad)), views, layer)
    return mixed.view(tokens, -1, head_dim)[:, pad.before : pad.before + heads].reshape(tokens, -1)


def _attend(queries: Tensor, one: Seen, layer: int) -> Tensor:
    tokens, heads, _ = queries.shape
    keys, mask = one.keys[layer], one.span.mask
    one_each = tokens == keys.shape[0]
    queries = queries.unsqueeze(2) if one_each else queries.transpose(0, 1).unsqueeze(0)  # [slots, heads, tokens, D]
    mixed = scaled_dot_product_attention(
        queries,
        keys,
        one.values[layer],
        attn_mask=mask,
        is_causal=mask is None,
        enable_gqa=heads != keys.shape[1],
    )
    return mixed.transpose(1, 2).reshape(tokens, -1)
