"""The hand-over on a virtual clock: only one rank of the ring computes at a time, so one clock does for all."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from plait.comm.threads import thread_mesh
from plait.prober import handover


class Clock:
    """Seconds that computations take, alone, and on top where the rank has just been woken."""

    def __init__(self, woken_s: float) -> None:
        self.now_s, self.woken_s = 0.0, woken_s
        self.cold: set[int] = set()

    def compute(self, products: object, row: torch.Tensor) -> float:
        rank = row.shape[0]
        seconds = float(rank) + (self.woken_s if rank in self.cold else 0.0)
        self.cold.discard(rank)
        self.now_s += seconds
        return seconds


def measured(ranks: int, woken_s: float, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What each rank of a ring says; rank i computes for i + 1 seconds."""
    clock = Clock(woken_s)
    monkeypatch.setattr(handover, "_compute", clock.compute)
    monkeypatch.setattr(handover.time, "perf_counter", lambda: clock.now_s)
    receive: Callable[[handover._Ring], float] = handover._Ring.receive

    def woken(ring: handover._Ring) -> float:
        value = receive(ring)
        clock.cold.add(ring._endpoint.rank + 1)
        return value

    monkeypatch.setattr(handover._Ring, "receive", woken)
    rings = [handover._Ring(endpoint, range(ranks)) for endpoint in thread_mesh(ranks, 2)]
    blocks = [(ring, torch.empty(rank + 1, 1)) for rank, ring in enumerate(rings)]
    with ThreadPoolExecutor(ranks) as pool:
        found = [pool.submit(_told, ring, row) for ring, row in blocks]
        return [one.result(timeout=30) for one in found]


def _told(ring: handover._Ring, row: torch.Tensor) -> float:
    return ring.tell(handover._block(ring, [], row))


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("woken_s", [0.0, 0.25])
def test_what_a_computation_takes_longer_after_a_wait(
    ranks: int, woken_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert measured(ranks, woken_s, monkeypatch) == pytest.approx([woken_s] * ranks)


def test_all_ranks_of_a_real_ring_get_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "_PRODUCTS", 3)
    with ThreadPoolExecutor(3) as pool:
        found = [pool.submit(handover.hand_over_s, endpoint, range(3)) for endpoint in thread_mesh(3, 2)]
        seconds = [one.result(timeout=30) for one in found]
    assert len(set(seconds)) == 1
    assert 0 <= seconds[0] < 10
