"""Tokens out of logits. A row's token depends on its logits and its own key, never on its neighbours.

Over a vocabulary that a tensor group shares nothing is gathered but each rank's best token of every row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from plait.nn.filters import Kept, filters, keep
from plait.nn.group import Alone, TensorGroup
from plait.nn.hashing import fold, gumbel
from plait.plans.sampling import SamplingParams
from plait.spec.shards import Shard

_NOTHING = (-math.inf, 0.0)
"""The best of none."""


def sample(
    logits: Tensor,
    params: Sequence[SamplingParams],
    requests: Sequence[int],
    positions: Sequence[int],
    shard: Shard | None = None,
    group: TensorGroup | None = None,
) -> Tensor:
    """One token id a row, int64 [n], for float32 `logits` [n, vocab]; row i is for `requests[i]` at `positions[i]`.

    A position is where the new token will stand. Greedy rows take the arg max, the others that of logits / temperature
    plus Gumbel noise keyed by (seed, request, position, token id); ties go to the lowest id. With `shard` and `group`
    the logits are those of a rank's rows of the vocabulary, and all ranks get the same ids.
    """
    assert logits.shape[0] == len(params), f"{logits.shape[0]} rows of logits for {len(params)} draws"
    group = group or Alone()
    if group.size == 1 and all(one.greedy for one in params):
        return logits.argmax(dim=-1)  # [n]
    if not params:
        return torch.empty(0, dtype=torch.int64, device=logits.device)
    first = 0 if shard is None or group.size == 1 else shard.vocab.first
    return _highest(_best_of_each(logits, params, requests, positions, first, group), group)


def _best_of_each(
    logits: Tensor,
    params: Sequence[SamplingParams],
    requests: Sequence[int],
    positions: Sequence[int],
    first: int,
    group: TensorGroup,
) -> Tensor:
    """The score and id of a rank's best token in each row, float64 [n, 2]."""
    if all(one.greedy for one in params) and logits.shape[1]:
        scores, ids = logits.max(dim=-1)
        return torch.stack([scores.double(), (ids + first).double()], dim=1)
    tempered = [row / (one.temperature or 1.0) for row, one in zip(logits, params, strict=True)]
    which = [row for row, one in enumerate(params) if filters(one)]
    found = keep([tempered[row] for row in which], [params[row] for row in which], group) if which else []
    kept = dict(zip(which, found, strict=True))
    best = [
        _best(
            tempered[row], None if one.greedy else fold(one.seed, requests[row], positions[row]), first, kept.get(row)
        )
        for row, one in enumerate(params)
    ]
    return torch.tensor(best, dtype=torch.float64, device=logits.device)


def _best(scores: Tensor, key: int | None, first: int, kept: Kept | None) -> tuple[float, float]:
    """Score and id of the best of a rank's tokens, which begin at id `first`; without a key no noise is added."""
    places = torch.arange(len(scores), device=scores.device) if kept is None else kept.ids(scores)
    if not len(places):
        return _NOTHING
    scores = scores if kept is None else scores[places]
    if key is not None:
        scores = scores + gumbel(key, places + first)
    best = scores.argmax()
    return float(scores[best]), float(first + places[best])


def _highest(best: Tensor, group: TensorGroup) -> Tensor:
    """The ids of the highest scores over all ranks' [n, 2]; of equal ones the lowest."""
    rows = best.shape[0]
    every = group.all_gather(best, (rows,) * group.size).view(group.size, rows, 2)
    winners = every[:, :, 0].argmax(dim=0)  # [n], ids ascend with the ranks
    return every[winners, torch.arange(rows, device=best.device), 1].long()
