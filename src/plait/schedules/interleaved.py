"""Interleaved 1F1B (arXiv 2104.04473, figure 4 below): several stages a position, in a loop, for a smaller bubble.

    2 positions of 2 stages, 2 micro-batches; position 0 holds stages 0 and 2, position 1 stages 1 and 3
    position 0  0F0 0F1 2F0 2F1 ··· 2B0 ··· 2B1 0B0 0B1
    position 1  ··· 1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1 ···

Positions take as many micro-batches as there are positions through one of their stages, then through the next.
"""

from __future__ import annotations

import numpy as np

from plait.schedules.order import B, F, Order, Table, alternate, loop, make_order


def interleaved(positions: int, virtual: int, micro_batches: int) -> Order:
    """`virtual` stages a position. It likes a multiple of `positions` micro-batches."""
    rounded = -(-micro_batches // positions) * positions
    tables = [_position(position, positions, virtual, rounded) for position in range(positions)]
    return make_order("interleaved", loop(positions, virtual), micro_batches, tables)


def _position(position: int, positions: int, virtual: int, micro_batches: int) -> Table:
    total = virtual * micro_batches
    warm_up = min(2 * (positions - 1 - position) + (virtual - 1) * positions, total)
    chunk, micro_batch = _turns(positions, virtual, total)
    forward = _rows(F, chunk * positions + position, micro_batch)
    backward = _rows(B, (virtual - 1 - chunk) * positions + position, micro_batch)
    steady = total - warm_up
    return np.concatenate([forward[:warm_up], alternate(forward[warm_up:], backward[:steady]), backward[steady:]])


def _turns(positions: int, virtual: int, total: int) -> tuple[Table, Table]:
    """Which of its stages a position takes at its n-th forward, and which micro-batch."""
    n = np.arange(total, dtype=np.int32)
    turn, within = np.divmod(n, positions * virtual)
    return within // positions, turn * positions + within % positions


def _rows(kind: int, stages: Table, micro_batches: Table) -> Table:
    return np.stack([np.full_like(stages, kind), stages, micro_batches], axis=1)
