"""A calibration: what one layer of one model takes on one host, measured, per dtype and threads. Kept as JSON."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from plait.costs.curves import Curve, Grid
from plait.plans.plan import GRID
from plait.plans.round import MicroBatch, Row

FORMAT = 2
"""Counts up when what is measured changes: older files are measured again."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a calibration holds for, and nothing else. `shape` names the model's sizes, `layers` how many were measured.

    `rows`: the most that decode together, rounded up; it decides how weights are laid out. `together`: the most ranks
    that were measured computing at the same time. `tp`, `shares`, `sequence`: the tensor group, of which the rank with
    the largest shard is measured, without what it exchanges.
    """

    host: str
    cpu: str
    cores: int
    torch: str
    dtype: str
    weights: str
    threads: int
    shape: str
    layers: int
    rows: int
    together: int
    tp: int = 1
    shares: tuple[int, ...] = ()
    sequence: bool = False
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class Together:
    """How much longer a forward takes while `ranks` of them run at once, over positions computed: 1 is as alone."""

    ranks: int
    slowdown: Curve


@dataclass(frozen=True, slots=True)
class Calibration:
    """Seconds. Of one layer: decoding over rows × positions in their caches, prefill over chunk length × its start.

    `action_s`: what a forward takes beside its layers, over positions. `head_s`: final norm, LM head and greedy
    sampling, over rows. The last layer of a prompt's piece computes keys and values for all its positions but goes on
    with those alone that yield a token: `last_s` is that layer with the head where one does, `store_s` where none does.
    `others` is the share of the cores that other work took meanwhile, `measured_at_s` when that was (Unix time).
    """

    setting: Setting
    decode_s: Grid
    prefill_s: Grid
    action_s: Curve
    head_s: Curve
    last_s: Grid
    store_s: Curve
    together: tuple[Together, ...] = ()
    others: float = 0.0
    measured_at_s: float = 0.0

    def forward_s(self, micro_batch: MicroBatch, layers: int, *, is_last: bool) -> float:
        """A stage's forward of the micro-batch, alone on the host."""
        seconds = self.action_s.value(micro_batch.tokens)
        decoding = [row for row in micro_batch.rows if row.length == 1]
        if decoding:
            seconds += layers * self._decoding_s(decoding)
            if is_last:
                seconds += self.head_s.value(len(decoding))
        for row in micro_batch.rows:
            if row.length > 1:
                seconds += (layers - is_last) * self.prefill_s.value(row.length, row.start)
                if is_last:
                    seconds += self._last_s(row)
        return seconds

    def _decoding_s(self, rows: Sequence[Row]) -> float:
        """One layer for rows of one position each, at the mean of what their caches hold: attention is a sum of rows.

        Attention looks at whole blocks of positions (`nn.attention`).
        """
        cached = sum(-(-(row.start + 1) // GRID) * GRID for row in rows) / len(rows)
        return self.decode_s.value(len(rows), cached)

    def _last_s(self, row: Row) -> float:
        return self.last_s.value(row.length, row.start) if row.samples else self.store_s.value(row.length)

    def slowdown(self, ranks: float, positions: int) -> float:
        """How much longer a forward takes while `ranks` like it run at once; between measured counts a line.

        Beyond them the cores are shared as at the last one.
        """
        counts = (1.0, *(float(one.ranks) for one in self.together))
        values = (1.0, *(one.slowdown.value(positions) for one in self.together))
        if ranks > counts[-1]:
            return values[-1] * ranks / counts[-1]
        return max(1.0, Curve(counts, values).value(ranks))


def write(calibration: Calibration, path: Path) -> None:
    """Write the file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(calibration)))
    os.replace(partial, path)


def read(path: Path) -> Calibration | None:
    """The calibration in the file; None where there is none, or none that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Calibration)
    except (OSError, msgspec.MsgspecError, ValueError):
        return None
