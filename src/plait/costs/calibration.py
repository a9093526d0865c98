"""A calibration: what one layer of one model takes on one host, measured, per dtype and threads. Kept as JSON."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from plait.costs.curves import Curve, Grid
from plait.plans.round import MicroBatch

FORMAT = 1
"""Counts up when what is measured changes: older files are measured again."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a calibration holds for, and nothing else. `shape` names the model's sizes, `layers` how many were measured.

    `together` is the most ranks that were measured computing at the same time.
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
    together: int
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class Together:
    """How much longer a forward takes while `ranks` of them run at once, over positions computed: 1 is as alone."""

    ranks: int
    slowdown: Curve


@dataclass(frozen=True, slots=True)
class Calibration:
    """Seconds. Of one layer: decoding over rows × positions in their caches, prefill over chunk length × its start.

    `action_s` is what a forward takes beside its layers, over rows; `embed_s` the embedding over positions; `head_s`
    final norm, LM head and greedy sampling over sampled rows.
    """

    setting: Setting
    decode_s: Grid
    prefill_s: Grid
    action_s: Curve
    embed_s: Curve
    head_s: Curve
    together: tuple[Together, ...] = ()

    def layer_s(self, micro_batch: MicroBatch) -> float:
        """One layer's forward of the micro-batch, alone on the host.

        Rows of one position decode together, at the mean of their cache lengths (attention is a sum over rows);
        every longer row is a piece of a prompt of its own.
        """
        seconds, decoding, cached = 0.0, 0, 0
        for row in micro_batch.rows:
            if row.length == 1:
                decoding += 1
                cached += row.start + 1
            else:
                seconds += self.prefill_s.value(row.length, row.start)
        return seconds + self.decode_s.value(decoding, cached / decoding) if decoding else seconds

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
