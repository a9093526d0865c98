"""1F1B (PipeDream-Flush; arXiv 2104.04473, figure 4 above): as few micro-batches in flight as keep all stages busy.

3 stages, 4 micro-batches
stage 0  F0 F1 F2 ·· ·· B0 F3 B1 ·· B2 ·· B3
stage 1  ·· F0 F1 ·· B0 F2 B1 F3 B2 ·· B3 ··
stage 2  ·· ·· F0 B0 F1 B1 F2 B2 F3 B3 ·· ··
"""

from __future__ import annotations

import numpy as np

from plait.schedules.order import B, F, Order, Table, block, loop, make_order


def one_f_one_b(positions: int, micro_batches: int) -> Order:
    """One stage a position; stage i holds the activations of at most positions − i micro-batches."""
    tables = [_position(stage, min(positions - 1 - stage, micro_batches), micro_batches) for stage in range(positions)]
    return make_order("1f1b", loop(positions, 1), micro_batches, tables)


def _position(stage: int, warm_up: int, micro_batches: int) -> Table:
    steady = micro_batches - warm_up
    return np.concatenate(
        [
            block(warm_up, (F, stage, 0)),
            block(steady, (F, stage, warm_up), (B, stage, 0)),
            block(warm_up, (B, stage, steady)),
        ]
    )
