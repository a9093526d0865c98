"""Runs our stages one after another over the pieces of several sequences, and collects the logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from plait.nn.batch import Batch
from plait.nn.cache import KVCache
from plait.nn.decoder import StageModel
from plait.plans.round import MicroBatch, Row

from .models import Tiny


@dataclass(frozen=True)
class Told:
    """Token ids of one request, cut into `pieces`; its first piece is computed in round `begins`."""

    ids: Tensor
    pieces: tuple[int, ...]
    slot: int
    begins: int = 0

    def rows(self) -> list[Row]:
        starts = [sum(self.pieces[:i]) for i in range(len(self.pieces))]
        return [
            Row(self.slot, self.slot, start, length, True) for start, length in zip(starts, self.pieces, strict=True)
        ]


class Split:
    """The stages of `model` and their caches."""

    def __init__(self, model: Tiny, cut: Sequence[int], dtype: torch.dtype, rows: int = 1, slots: int = 4) -> None:
        ends = [0, *cut, model.spec.layers]
        self._stages = [
            (
                StageModel(model.spec, first, end, model.weights(dtype, first, end), dtype, rows=rows),
                KVCache(model.spec, first, end, slots, 96, dtype),
            )
            for first, end in pairwise(ends)
        ]

    def forward(self, rows: Sequence[Row], ids: Tensor) -> Tensor:
        batch, x = Batch.of(MicroBatch(tuple(rows))), ids
        for stage, cache in self._stages:
            x = stage.forward(batch, x, cache)
        return x

    def run(self, sequences: Sequence[Told]) -> dict[tuple[int, int], Tensor]:
        """Logits by (slot, position), at the end of every piece."""
        found: dict[tuple[int, int], Tensor] = {}
        for number in range(max(one.begins + len(one.pieces) for one in sequences)):
            rows, ids = [], []
            for one in sorted(sequences, key=lambda one: one.slot):
                if one.begins <= number < one.begins + len(one.pieces):
                    row = one.rows()[number - one.begins]
                    rows.append(row)
                    ids.append(one.ids[row.start : row.start + row.length])
            if rows:
                logits = self.forward(rows, torch.cat(ids))
                found |= {(row.slot, row.start + row.length - 1): one for row, one in zip(rows, logits, strict=True)}
        return found


def expected(reference: torch.nn.Module, sequences: Sequence[Told]) -> dict[tuple[int, int], Tensor]:
    """What `transformers` gives for each whole sequence, at the end of every piece."""
    found: dict[tuple[int, int], Tensor] = {}
    for one in sequences:
        with torch.no_grad():
            logits = reference(one.ids[None]).logits[0]
        for row in one.rows():
            end = row.start + row.length - 1
            found[one.slot, end] = logits[end]
    return found


def worst(ours: dict[tuple[int, int], Tensor], theirs: dict[tuple[int, int], Tensor]) -> float:
    """The error of all logits together: max|a - b| / max|b|."""
    assert ours.keys() == theirs.keys()
    a, b = (torch.stack([found[key] for key in sorted(found)]) for found in (ours, theirs))
    return float((a - b).abs().max() / b.abs().max())
