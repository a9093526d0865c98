"""What it costs that stages take turns: a rank that waited has gone to sleep, its threads and its caches with it.

Measured as it happens: as many ranks as there are stages compute in turns, in a ring, as layer-wise stages do, and each
turn takes longer than the same computation without a break. The work is a stage's decoding in small: products of one
row, in the stages' dtype and layout, with more weights than the near caches hold.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import torch

from plait.comm.contract import Endpoint, Tag
from plait.nn.linear import Linear, make_linear, packs

_ROUND = -2
_PRODUCTS, _IN, _OUT = 128, 576, 1536
_BLOCKS, _ALONE, _TURNS = 5, 3, 5


def hand_over_s(endpoint: Endpoint, ring: Sequence[int], dtype: torch.dtype = torch.float32) -> float:
    """Seconds that one hand-over in a ring of ranks costs, the message included. All of them call it.

    (once around − all computations without a break) ÷ ranks, the median of several blocks: each block measures both, so
    that what else the machine does meets both. Takes about 1 s; everyone gets the same figure.
    """
    ours = _Ring(endpoint, ring)
    products = _products(_PRODUCTS // len(ring), dtype)
    row = torch.ones(1, _IN, dtype=dtype)
    with torch.inference_mode():
        blocks = [_block(ours, products, row) for _ in range(_BLOCKS)]
    return ours.tell(max(0.0, statistics.median(blocks)))


class _Ring:
    """This rank's place in the ring: messages come from the rank before and go to the one after."""

    def __init__(self, endpoint: Endpoint, ring: Sequence[int]) -> None:
        at = ring.index(endpoint.rank)
        self.size, self.leads = len(ring), at == 0
        self._endpoint = endpoint
        self._before, self._after = ring[at - 1], ring[(at + 1) % len(ring)]
        self._sent = self._received = 0

    def send(self, value: float) -> None:
        """To the rank after."""
        self._sent += 1
        self._endpoint.send(self._after, Tag(0, _ROUND, self._sent), torch.tensor([value], dtype=torch.float64))

    def receive(self) -> float:
        """From the rank before."""
        self._received += 1
        return float(self._endpoint.receive(self._before, Tag(0, _ROUND, self._received)))

    def tell(self, value: float) -> float:
        """The first rank's value, to all."""
        if self.leads:
            self.send(value)
            return self.receive()
        value = self.receive()
        self.send(value)
        return value


def _products(count: int, dtype: torch.dtype) -> list[Linear]:
    packed = packs(dtype, torch.device("cpu"), 1)
    return [make_linear(torch.full((_OUT, _IN), 0.01, dtype=dtype), None, packed) for _ in range(count)]


def _compute(products: Sequence[Linear], row: torch.Tensor) -> float:
    start = time.perf_counter()
    for product in products:
        product(row)
    return time.perf_counter() - start


def _block(ring: _Ring, products: Sequence[Linear], row: torch.Tensor) -> float:
    """Seconds of one hand-over, as the first rank sees it; the others' answers mean nothing.

    Without a break each rank computes several times while all others sleep; the first time, just woken, does not count.
    """
    before = 0.0 if ring.leads else ring.receive()
    alone_s = before + statistics.median([_compute(products, row) for _ in range(1 + _ALONE)][1:])
    ring.send(alone_s)
    if not ring.leads:
        for _ in range(_TURNS):
            ring.receive()
            _compute(products, row)
            ring.send(0.0)
        return 0.0
    alone_s = ring.receive()
    taken = []
    for _ in range(_TURNS):
        start = time.perf_counter()
        _compute(products, row)
        ring.send(0.0)
        ring.receive()
        taken.append(time.perf_counter() - start)
    return (statistics.median(taken) - alone_s) / ring.size
