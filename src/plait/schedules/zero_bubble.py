"""ZB-H1 and ZB-H2 (arXiv 2401.10241, figures 2 and 3): the weights' half of the backward fills what would be bubble.

    ZB-H1, 3 stages, 4 micro-batches             as much in flight as 1F1B
    stage 0  F0 F1 F2 ·· ·· I0 W0 F3 I1 W1 I2 W2 I3 W3
    stage 1  ·· F0 F1 ·· I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
    stage 2  ·· ·· F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3

    ZB-H2, 2 stages, 4 micro-batches             about twice as much in flight
    stage 0  F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3
    stage 1  ·· F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3

Stage i does W of a micro-batch i (ZB-H1) or 2i (ZB-H2) turns after its I, so that all stages hold equally much.
"""

from __future__ import annotations

import numpy as np

from plait.schedules.order import F, I, Order, Table, W, block, loop, make_order


def zb_h1(positions: int, micro_batches: int) -> Order:
    """One stage a position; it holds at most `positions` micro-batches' activations."""
    return _handmade("zb-h1", positions, micro_batches, 1)


def zb_h2(positions: int, micro_batches: int) -> Order:
    """One stage a position; it holds at most 2 · positions − 1 micro-batches' activations."""
    return _handmade("zb-h2", positions, micro_batches, 2)


def _handmade(name: str, positions: int, micro_batches: int, ahead: int) -> Order:
    """`ahead`: by how many forwards a stage is ahead of the next when backwards begin."""
    enough = max(micro_batches, ahead * (positions - 1) + 1)
    tables = [_position(stage, ahead * (positions - 1 - stage), ahead * stage, enough) for stage in range(positions)]
    return make_order(name, loop(positions, 1), micro_batches, tables)


def _position(stage: int, warm_up: int, delay: int, micro_batches: int) -> Table:
    """F I at first, F I W once `delay` micro-batches wait for their W, then I W, and W at the end."""
    forwards = micro_batches - warm_up
    without = min(delay, forwards)
    both = forwards - without
    late = delay - without
    return np.concatenate(
        [
            block(warm_up, (F, stage, 0)),
            block(without, (F, stage, warm_up), (I, stage, 0)),
            block(both, (F, stage, warm_up + without), (I, stage, without), (W, stage, 0)),
            block(late, (I, stage, forwards)),
            block(warm_up - late, (I, stage, forwards + late), (W, stage, both)),
            block(delay, (W, stage, micro_batches - delay)),
        ]
    )
