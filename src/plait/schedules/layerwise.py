"""Layer-wise training: one micro-batch in flight, one stage works and the others wait.

2 stages, 2 micro-batches
stage 0  F0 ·· ·· B0 F1 ·· ·· B1
stage 1  ·· F0 B0 ·· ·· F1 B1 ··
"""

from __future__ import annotations

from plait.schedules.order import B, F, Order, block, loop, make_order


def layerwise(positions: int, virtual: int, micro_batches: int) -> Order:
    """Each micro-batch goes forward through all stages and back before the next begins."""
    placement = loop(positions, virtual)
    tables = [
        block(micro_batches, *((F, stage, 0) for stage in held), *((B, stage, 0) for stage in reversed(held)))
        for held in placement
    ]
    return make_order("layerwise", placement, micro_batches, tables)
