"""GPipe (arXiv 1811.06965, figure 2c): all forwards, then all backwards, the last micro-batch first.

3 stages, 3 micro-batches
stage 0  F0 F1 F2 ·· ·· ·· ·· B2 B1 B0
stage 1  ·· F0 F1 F2 ·· ·· B2 B1 B0 ··
stage 2  ·· ·· F0 F1 F2 B2 B1 B0 ·· ··
"""

from __future__ import annotations

import numpy as np

from plait.schedules.order import B, F, Order, block, loop, make_order


def gpipe(positions: int, micro_batches: int) -> Order:
    """One stage a position; every position holds the activations of all micro-batches."""
    tables = [
        np.concatenate([block(micro_batches, (F, stage, 0)), block(micro_batches, (B, stage, 0))[::-1]])
        for stage in range(positions)
    ]
    return make_order("gpipe", loop(positions, 1), micro_batches, tables)
