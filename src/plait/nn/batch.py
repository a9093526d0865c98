"""What one forward computes: the rows of a micro-batch as index tensors, made once and used by every layer."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from plait.plans.round import MicroBatch, Row


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows one after another: token t of the batch stands at `positions[t]` of slot `slots[t]`.

    `sampled` holds the tokens whose logits are wanted, in order of rows; None means all of them.
    """

    rows: tuple[Row, ...]
    tokens: int
    positions: Tensor  # [T]
    slots: Tensor  # [T]
    sampled: Tensor | None  # [sampled rows]

    @classmethod
    def of(cls, micro_batch: MicroBatch, device: torch.device | str = "cpu") -> Batch:
        """A micro-batch as index tensors on `device`. Rows must be in ascending order of slot."""
        rows = micro_batch.rows
        assert rows, "a micro-batch without rows"
        assert all(a.slot < b.slot for a, b in pairwise(rows)), "rows are not in ascending order of slot"
        positions = [position for row in rows for position in range(row.start, row.start + row.length)]
        slots = [row.slot for row in rows for _ in range(row.length)]
        wanted = _sampled(rows)
        return cls(
            rows=rows,
            tokens=len(slots),
            positions=torch.tensor(positions, device=device),
            slots=torch.tensor(slots, device=device),
            sampled=None if len(wanted) == len(slots) else torch.tensor(wanted, dtype=torch.int64, device=device),
        )

    @property
    def ends(self) -> tuple[Row, ...]:
        """The last position of every row that samples, as a row of its own."""
        return tuple(row._replace(start=row.start + row.length - 1, length=1) for row in self.rows if row.samples)

    @property
    def longest(self) -> int:
        """Positions that the row with the most of them has after this batch."""
        return max(row.start + row.length for row in self.rows)


def _sampled(rows: tuple[Row, ...]) -> list[int]:
    """Index of the last token of every row that samples."""
    wanted, end = [], 0
    for row in rows:
        end += row.length
        if row.samples:
            wanted.append(end - 1)
    return wanted
