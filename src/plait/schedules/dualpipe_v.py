"""DualPipe-V (deepseek-ai/DualPipe, README and its `dualpipev`; the V half of arXiv 2412.19437, figure 5).

Two stages a position in a V, as in ZB-V; in the steady part every forward stands beside a backward of the other stage,
so that the exchanges of one can hide behind the other. Backwards are whole but where their W fills a bubble.

    2 positions, 4 micro-batches; position 0 holds stages 0 and 3, position 1 stages 1 and 2
    position 0  0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3 3B1 === 3F2 0B0 === 3B2 === 3F3 ··· 0B1 === 3B3 === 0I2 0W2 0I3 0W3
    position 1  ··· 1F0 2F0 1F1 2F1 1F2 2B0 === 2F2 1B0 === 1F3 2B1 === 2F3 1B1 === 2B2 === 1B2 === 2I3 1I3 2W3 1W3
"""

from __future__ import annotations

import numpy as np

from plait.schedules.order import B, F, I, Order, Table, W, alternate, block, make_order, v_shape


def dualpipe_v(positions: int, micro_batches: int) -> Order:
    """It likes at least 2 · positions micro-batches."""
    enough = max(micro_batches, 2 * positions)
    tables = [_position(position, positions, enough) for position in range(positions)]
    return make_order("dualpipe-v", v_shape(positions), micro_batches, tables)


def _position(position: int, positions: int, total: int) -> Table:
    """Eight parts, as the source counts them; `below` positions lie between this one and the turn."""
    down, up = position, 2 * positions - 1 - position
    below, here = positions - 1 - position, position + 1
    steady = total - 2 * positions + here
    begun = 2 * below + here
    return np.concatenate(
        [
            block(2 * below, (F, down, 0)),
            block(here, (F, down, 2 * below), (F, up, 0)),
            block(below, (I, up, 0), (W, up, 0), (F, up, here)),
            block(steady, (F, down, begun), (B, up, below), (F, up, positions), (B, down, 0)),
            block(below, (B, up, below + steady), (F, up, positions + steady), (B, down, steady)),
            _drain(down, up, total, here, below),
        ]
    )


def _drain(down: int, up: int, total: int, here: int, below: int) -> Table:
    """Backwards only: from the middle on they are split, `below` of their W fill the waits, the others come last."""
    first_up, first_down = total - here, total - here - below
    half, odd = divmod(here, 2)
    whole = block(half, (B, up, first_up), (B, down, first_down))
    turn = block(odd, (B, up, first_up + half), (I, down, first_down + half))
    split = block(half, (I, up, first_up + half + odd), (I, down, first_down + half + odd))
    # first in, first out: the W of the split backwards of this part, then those of the last backwards down
    waiting = np.concatenate([turn[1:], split, block(below, (I, down, total - below))])
    waiting[:, 0] = W
    last = alternate(waiting[:below], block(below, (I, down, total - below)))
    return np.concatenate([whole, turn, split, last, waiting[below:]])
