"""Links between ranks, measured: over links whose figures are known, each direction by itself."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest

from plait.comm.emulated_mesh import emulated_threads
from plait.prober.probe_links import CAPACITY, SIZES_BYTES, _message_bytes, _rates, _skipped, probe_pair
from plait.prober.probe_messages import PairDone, Point, Sent
from plait.prober.spread import Figure
from plait.spec.cluster import Wire
from plait.spec.emulation import Emulation

MBIT = 1e6 / 8


def probed(wires: Mapping[tuple[int, int], Wire], budget_s: float) -> list[PairDone]:
    """Both ends of a pair."""
    ends = emulated_threads(Emulation((0, 1), wires), CAPACITY)
    found: dict[int, PairDone] = {}

    def run(rank: int) -> None:
        with ends[rank] as endpoint:
            found[rank] = probe_pair(endpoint, 1 - rank, budget_s)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [found[0], found[1]]


def require_near(found: Figure, expected: float, bound: float) -> None:
    """Within the bound, or within what the figure itself says that it varies, where other work was in the way."""
    assert found.value == pytest.approx(expected, rel=max(bound, min(found.spread, 0.4)))


def test_each_direction_by_itself() -> None:
    """40 Mb/s there, 20 Mb/s back; 10 and 30 ms, of which one clock knows only the sum."""
    there, back = probed({(0, 1): Wire(0.010, 40 * MBIT), (1, 0): Wire(0.030, 20 * MBIT)}, 1.0)
    require_near(back.received_bytes_per_s, 40 * MBIT, 0.05)
    require_near(there.received_bytes_per_s, 20 * MBIT, 0.05)
    for end in (there, back):
        require_near(end.sent.latency_s, 0.020, 0.4)  # either direction alone would be 50 % off


@pytest.mark.soak
def test_sizes_take_latency_and_bytes() -> None:
    """As many sizes as there is time for; each takes the latency and its bytes ÷ bandwidth."""
    wire = Wire(0.025, 20 * MBIT)
    there, back = probed({(0, 1): wire, (1, 0): wire}, 1.0)
    for end in (there, back):
        sizes = [point.bytes for point in end.sent.points]
        assert sizes == list(SIZES_BYTES[: len(sizes)])
        assert 3 <= len(sizes) <= 5
        for point in end.sent.points:
            require_near(Figure(point.seconds, point.spread), 0.025 + point.bytes / wire.bandwidth, 0.4)


@pytest.mark.soak
def test_a_slow_link_ends() -> None:
    """1 Mb/s: no large message is tried, and the stream is of small ones."""
    there, _ = probed({(0, 1): Wire(0.001, 100 * MBIT), (1, 0): Wire(0.001, MBIT)}, 0.2)
    require_near(there.received_bytes_per_s, MBIT, 0.05)


def test_bursts_do_not_count() -> None:
    """What comes before the fifth small message, or within 512 KiB of large ones, is no part of any rate."""
    assert [_skipped(size) for size in (1 << 14, 1 << 18, 1 << 20)] == [4, 2, 1]
    arrived = [0.0, 1.0, 2.0, 4.0, 5.0]
    assert _rates(arrived, 10) == [10.0, 10.0, 5.0, 10.0]
    assert len(_rates([float(at) for at in range(101)], 10)) == 10


def test_messages_keep_a_long_link_busy() -> None:
    """100 Mb/s and 50 ms: what is on its way is 1.25 MB both ways; four messages are more than that."""
    points = [Point(1 << 18, 0.05 + (1 << 18) / (100 * MBIT), 0.01)]
    size = _message_bytes(Sent(Figure(0.05, 0.01), points))
    assert size * CAPACITY > 2 * 0.05 * 100 * MBIT
    assert _message_bytes(Sent(Figure(1e-5, 0.01), [Point(1024, 1.1e-5, 0.01)])) == 1 << 14
