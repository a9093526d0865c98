"""Tokens out of logits. A row's token depends on its logits and its own key, never on its neighbours."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from plait.nn.hashing import fold, gumbel
from plait.plans.sampling import SamplingParams

_HEAD = 1024
"""How many of the likeliest tokens are looked at before a whole row is sorted for top-p."""


def sample(
    logits: Tensor, params: Sequence[SamplingParams], requests: Sequence[int], positions: Sequence[int]
) -> Tensor:
    """One token id a row, int64 [n], for float32 `logits` [n, vocab]; row i is for `requests[i]` at `positions[i]`.

    A position is where the new token will stand. Greedy rows take the arg max, the others that of logits / temperature
    plus Gumbel noise keyed by (seed, request, position, token id); ties go to the lowest id.
    """
    assert logits.shape[0] == len(params), f"{logits.shape[0]} rows of logits for {len(params)} draws"
    if all(one.greedy for one in params):
        return logits.argmax(dim=-1)  # [n]
    keys = zip(logits, params, requests, positions, strict=True)
    return torch.stack([_draw(row, one, fold(one.seed, request, position)) for row, one, request, position in keys])


def _draw(row: Tensor, params: SamplingParams, key: int) -> Tensor:
    if params.greedy:
        return row.argmax()
    scores = row / params.temperature  # [vocab]
    kept = _kept(scores, params)
    if kept is None:
        return (scores + gumbel(key, torch.arange(len(scores), device=row.device))).argmax()
    return kept[(scores[kept] + gumbel(key, kept)).argmax()]


def _kept(scores: Tensor, params: SamplingParams) -> Tensor | None:
    """Ids that top-k and then top-p keep, ascending; None where that is all of them."""
    limit = min(params.top_k or len(scores), len(scores))
    if params.top_p < 1:
        return _likeliest(scores, *_nucleus(scores, limit, params.top_p))
    if limit < len(scores):
        return _likeliest(scores, scores.topk(limit).values[-1], limit)
    return None


def _nucleus(scores: Tensor, limit: int, top_p: float) -> tuple[Tensor, int]:
    """The lowest score that is kept and how many are: the fewest of the `limit` likeliest that hold `top_p` of them."""
    count = min(limit, _HEAD)
    ordered = scores.topk(count).values  # [count]
    total = ordered.logsumexp(0) if limit == count else _log_total(scores, limit)
    before = (ordered - total).exp().double().cumsum(0)  # [count]
    size = int((before < top_p).sum()) + 1  # a token is kept while those before it hold less than top_p
    if size > count and count < limit:
        ordered = scores.topk(limit).values
        size = int(((ordered - total).exp().double().cumsum(0) < top_p).sum()) + 1
    size = min(size, limit)
    return ordered[size - 1], size


def _log_total(scores: Tensor, limit: int) -> Tensor:
    return (scores if limit == len(scores) else scores.topk(limit).values).logsumexp(0)


def _likeliest(scores: Tensor, lowest: Tensor, count: int) -> Tensor:
    """The `count` ids with the highest scores, of which `lowest` is the last; equal scores by ascending id."""
    above = (scores > lowest).nonzero()[:, 0]
    equal = (scores == lowest).nonzero()[: count - len(above), 0]
    return torch.cat([above, equal]).sort().values
