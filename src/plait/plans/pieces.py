"""How the gradients of a stage are divided among its replicas: who sums what, and with ZeRO who updates it."""

from __future__ import annotations

PIECE_ITEMS = 16
"""Pieces begin at multiples of so many items, a cache line of float32: elementwise kernels round the rest of a vector
differently from whole ones, and copies of a weight must stay equal to the bit wherever they are cut."""


def piece_bounds(items: int, replicas: int) -> tuple[int, ...]:
    """Replica i's piece of `items` is [bounds[i], bounds[i + 1]): as even as multiples of `PIECE_ITEMS` allow."""
    grains = -(-items // PIECE_ITEMS)
    return tuple(min(items, grains * index // replicas * PIECE_ITEMS) for index in range(replicas + 1))
