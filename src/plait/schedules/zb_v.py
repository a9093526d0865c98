"""ZB-V (arXiv 2401.10241, section 6 and its figure 7): two stages a position in a V, every position holds equally much.

    2 positions, 3 micro-batches; position 0 holds stages 0 and 3, position 1 stages 1 and 2
    position 0  0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2
    position 1  ··· 1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2

Both ends of the model lie on position 0, so a micro-batch is back where it began after one way down and one way up, and
with F = I = W nobody waits between its first and its last action. The order is the one made by hand for F = I = W.
"""

from __future__ import annotations

import numpy as np

from plait.schedules.order import F, I, Order, Table, W, block, make_order, v_shape


def zb_v(positions: int, micro_batches: int) -> Order:
    """It likes at least 2 · positions − 1 micro-batches."""
    enough = max(micro_batches, 2 * positions - 1)
    tables = [_position(position, positions, enough) for position in range(positions)]
    return make_order("zb-v", v_shape(positions), micro_batches, tables)


def _position(position: int, positions: int, total: int) -> Table:
    """`down` and `up` are the position's stages; `below` counts the positions from here to the turn."""
    down, up = position, 2 * positions - 1 - position
    below = positions - position
    ahead = 2 * below - 1
    begun = ahead + position
    fresh, last = total - begun, total - positions
    return np.concatenate(
        [
            block(ahead, (F, down, 0)),
            block(position, (F, up, 0), (F, down, ahead)),
            block(below, (F, up, position), (I, up, 0), (W, up, 0)),
            block(fresh, (F, down, begun), *_back_and_up(down, up, 0, positions, below)),
            block(last - fresh, *_back_and_up(down, up, fresh, positions, below)),
            block(position, (I, down, last), (I, up, total - position)),
            block(below, (I, down, last + position), (W, down, last)),
            block(position, (W, up, total - position)),
            block(position, (W, down, total - position)),
        ]
    )


def _back_and_up(down: int, up: int, turn: int, positions: int, below: int) -> tuple[tuple[int, int, int], ...]:
    """A whole backward of the stage on the way down, a forward and a backward of the one on the way up."""
    return (
        (I, down, turn),
        (W, down, turn),
        (F, up, positions + turn),
        (I, up, below + turn),
        (W, up, below + turn),
    )
