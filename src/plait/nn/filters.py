"""Top-k and top-p over a vocabulary that a tensor group shares: only the likeliest of each rank are gathered.

Where a filter keeps more than those, the score of the last one it keeps is looked for digit by digit, by summing
what every rank counts. Probabilities are whole multiples of 2^-40 of the largest one: such sums do not depend on who
adds what, so that every rank of every mesh decides as one process does.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from plait.nn.group import TensorGroup
from plait.plans.sampling import SamplingParams

_HEAD = 1024
"""How many of a rank's likeliest tokens are looked at before all are counted."""

_UNIT = 2.0**40
"""The largest probability as a whole number: sums of four million fit."""

_ALL = sys.maxsize
_DIGITS = 256


class Kept(NamedTuple):
    """What a filter leaves a rank: scores above `lowest`, and of those equal to it the `equal` lowest ids."""

    lowest: float
    equal: int

    def ids(self, scores: Tensor) -> Tensor:
        """Places in a rank's `scores`, ascending."""
        above = (scores > self.lowest).nonzero()[:, 0]
        equal = (scores == self.lowest).nonzero()[: self.equal, 0]
        return torch.cat([above, equal]).sort().values


def filters(params: SamplingParams) -> bool:
    """Whether a draw leaves tokens out."""
    return not params.greedy and (params.top_k > 0 or params.top_p < 1)


def keep(scores: Sequence[Tensor], params: Sequence[SamplingParams], group: TensorGroup) -> list[Kept]:
    """What top-k and then top-p keep of each row; `scores` [vocabulary rows of the rank], one or more."""
    count = max(min(one.top_k or _HEAD, _HEAD) for one in params)
    best = _gather(torch.stack([_likeliest(row, count) for row in scores]), group)  # [ranks, rows, count]
    rows = [_Row(row, one, best[:, i], group) for i, (row, one) in enumerate(zip(scores, params, strict=True))]
    wide = [row for row in rows if row.needs_total]
    if wide:
        totals = _gather(torch.stack([row.masses().sum() for row in wide]), group).sum(0)  # [rows]
        for row, total in zip(wide, totals.tolist(), strict=True):
            row.total = total
    return [row.kept() for row in rows]


def _gather(mine: Tensor, group: TensorGroup) -> Tensor:
    """Every rank's tensor of the same shape: [ranks, …]."""
    return group.all_gather(mine[None], (1,) * group.size)


def _likeliest(scores: Tensor, count: int) -> Tensor:
    """The `count` highest scores, falling; -inf where there are fewer."""
    found = scores.topk(min(count, len(scores))).values
    return torch.nn.functional.pad(found, (0, count - len(found)), value=-math.inf)


def _masses(scores: Tensor, highest: Tensor) -> Tensor:
    """Probabilities as whole numbers of which the highest score has 2^40, int64."""
    return (scores.double() - highest.double()).exp_().mul_(_UNIT).round_().long()


class _Row:
    """One row's filter."""

    def __init__(self, scores: Tensor, params: SamplingParams, best: Tensor, group: TensorGroup) -> None:
        self._scores, self._top_p, self._group = scores, params.top_p, group
        self._limit = params.top_k or _ALL
        self._best = best[:, : min(self._limit, _HEAD)]  # [ranks, count]
        self._ordered = self._best.flatten().sort(descending=True).values[: self._best.shape[1]]  # [count]
        self.total = 0
        self.needs_total = params.top_p < 1 and not params.top_k

    def masses(self) -> Tensor:
        """Of all tokens of the rank."""
        return _masses(self._scores, self._ordered[0])

    def kept(self) -> Kept:
        """What is kept; where the gathered ones do not decide it, by further exchanges."""
        count = len(self._ordered)
        if self._limit == count and self._top_p == 1:
            return self._among_best(count)
        if self._top_p == 1:
            return self._select(_ALL)[0]
        masses = _masses(self._ordered, self._ordered[0])
        if self._limit == count:
            self.total = int(masses.sum())
        elif self._limit < _ALL:
            self.total = self._select(_ALL)[1]
        target = math.ceil(self._top_p * self.total)
        size = int((masses.cumsum(0) - masses < target).sum())  # kept while those before it hold less than top_p
        if size == count < self._limit:
            return self._select(target)[0]
        return self._among_best(max(1, size))

    def _among_best(self, size: int) -> Kept:
        """The `size` likeliest, all of them among those gathered."""
        lowest = self._ordered[size - 1]
        wanted = size - int((self._ordered > lowest).sum())
        equal = (self._best == lowest).sum(1).tolist()  # of each rank
        return Kept(float(lowest), _share(wanted, equal, self._group.index))

    def _select(self, target: int) -> tuple[Kept, int]:
        """The likeliest while those before hold less than `target`, at most `_limit`; and what they hold.

        Scores in the order of their bits are numbers of four digits; every round counts the next digit over all ranks.
        """
        keys, masses = _ordered_bits(self._scores), self.masses()
        prefix = count = mass = digit = 0
        held = torch.empty(0)
        for shift in (24, 16, 8, 0):
            inside = keys >> (shift + 8) == prefix
            digits = (keys[inside] >> shift) & (_DIGITS - 1)
            held = _gather(_histogram(digits, masses[inside]), self._group)  # [ranks, counts and masses, digits]
            both = held.sum(0)
            before = both.sum(1, keepdim=True) - both.cumsum(1)  # in higher digits
            fits = (both[0] > 0) & (count + before[0] < self._limit) & (mass + before[1] < target)
            digit = int(fits.nonzero()[0])
            count, mass = count + int(before[0, digit]), mass + int(before[1, digit])
            prefix = prefix << 8 | digit
        equal = held[:, 0, digit].tolist()
        each = int(held[:, 1, digit].sum()) // sum(equal)
        wanted = min(sum(equal), self._limit - count, -(-(target - mass) // each) if each else _ALL)
        return Kept(_score_of(prefix), _share(wanted, equal, self._group.index)), mass + wanted * each


def _share(wanted: int, held: Sequence[int], index: int) -> int:
    """How many of the first `wanted` rank `index` has, where the ranks hold so many each."""
    return max(0, min(held[index], wanted - sum(held[:index])))


def _histogram(digits: Tensor, masses: Tensor) -> Tensor:
    """How many tokens have each digit, and their masses: int64 [2, 256]."""
    found = torch.zeros(2, _DIGITS, dtype=torch.int64, device=digits.device)
    found[0].index_add_(0, digits, torch.ones_like(digits))
    found[1].index_add_(0, digits, masses)
    return found


def _ordered_bits(scores: Tensor) -> Tensor:
    """Numbers from 0 to 2^32 - 1 in the order of float32 `scores`, int64."""
    bits = (scores.float() + 0.0).view(torch.int32)  # no -0.0
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long() + 2**31


def _score_of(key: int) -> float:
    """The score that has this number."""
    bits = torch.tensor(key - 2**31, dtype=torch.int64).int()
    return float((bits ^ ((bits >> 31) & 0x7FFFFFFF)).view(torch.float32))
