"""Measures the two links of a pair of ranks, through the contract, both ranks together.

    latency     half of an empty round trip. One clock cannot tell there from back, so both directions get the same.
    sizes       a message there and an empty one back, less that one's latency: seconds one way, in each direction
    bandwidth   messages one after another, one way: bytes between the arrivals at the receiver ÷ its seconds.
                Neither latency nor the other direction is in it. What comes first does not count: shapers let a burst
                pass at the wire's own speed.

Bytes are payload. A link of 1 Gb/s Ethernet carries at most 0.941 Gb/s of it: 1,448 of 1,538 bytes of a full frame are
a TCP stream's, the rest are headers and the gap between frames (IEEE 802.3; RFC 9293, with RFC 7323's time stamps).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

import torch

from plait.comm.contract import Endpoint, Tag
from plait.prober.probe_messages import PairDone, Point, Sent
from plait.prober.spread import Figure, figure, rounded

CAPACITY = 4
"""Messages that a link holds while it is measured: enough to fill long links."""

SIZES_BYTES = tuple(1 << power for power in range(10, 23, 2))
LINK_BYTES = CAPACITY * SIZES_BYTES[-1]
"""Memory that a link's messages take, at most."""

_EMPTY_BYTES = 64
_BURST_BYTES, _BURST_MESSAGES = 1 << 19, 4
"""Not counted at the start of a stream: so many bytes, or on a slow link, whose messages are small, so many messages.
Their first may be a shaper's burst, of 128 kB or so."""

_LEAST_MESSAGE, _MOST_MESSAGE, _MESSAGE_S = 1 << 14, 1 << 22, 0.02
_LEAST_TIMES, _MOST_TIMES, _LEAST_ARRIVALS, _BLOCKS = 5, 400, 12, 10
_LATENCY_PART, _SIZES_PART, _STREAM_PART = 0.15, 0.15, 0.15
"""Of a pair's budget, in each direction."""

_SIZE_S = 0.5
"""A size that takes no longer is measured, whatever the budget is."""

_ASK, _ANSWER, _STREAM = -3, -4, -5


def probe_pair(endpoint: Endpoint, peer: int, budget_s: float) -> PairDone:
    """Measure the links from and to `peer`, which calls this too. Slow links take longer than the budget."""
    pair = _Pair(endpoint, peer)
    if endpoint.rank < peer:
        sent = pair.lead(budget_s)
        pair.stream(sent, budget_s * _STREAM_PART)
        pair.follow()
        return PairDone(sent, pair.receive_stream())
    pair.follow()
    received = pair.receive_stream()
    sent = pair.lead(budget_s)
    pair.stream(sent, budget_s * _STREAM_PART)
    return PairDone(sent, received)


class _Pair:
    """One end of a pair."""

    def __init__(self, endpoint: Endpoint, peer: int) -> None:
        self._endpoint, self._peer = endpoint, peer

    def lead(self, budget_s: float) -> Sent:
        """Ask, and take the time: the latency, then all sizes that the budget has room for."""
        taken = self._round_trips(_EMPTY_BYTES, budget_s * _LATENCY_PART)
        latency = figure([seconds / 2 for seconds in taken])
        each_s = budget_s * _SIZES_PART / len(SIZES_BYTES)
        points: list[Point] = []
        for size in SIZES_BYTES:
            if points and _next_s(points[-1], latency.value) > max(_SIZE_S, budget_s * _SIZES_PART):
                break
            points.append(_point(size, self._round_trips(size, each_s), latency.value))
        self._send(_ASK, _flagged(1, last=True))
        return Sent(latency, points)

    def follow(self) -> None:
        """Answer the other's questions, until it has no more: an empty message is the last."""
        empty = _flagged(_EMPTY_BYTES, last=False)
        while len(self._receive(_ASK)) > 1:
            self._send(_ANSWER, empty)

    def stream(self, sent: Sent, budget_s: float) -> None:
        """Send without waiting, until the budget is spent and enough has gone. The first byte says which is last."""
        size = _message_bytes(sent)
        least = _skipped(size) + _LEAST_ARRIVALS
        message, last = _flagged(size, last=False), _flagged(size, last=True)
        end_s, count = time.perf_counter() + budget_s, 1
        while time.perf_counter() < end_s or count < least:
            self._send(_STREAM, message)
            count += 1
        self._send(_STREAM, last)
        self._receive(_ANSWER)

    def receive_stream(self) -> Figure:
        """Bytes/s between arrivals."""
        arrived_s: list[float] = []
        size, last = 0, False
        while not last:
            message = self._receive(_STREAM)
            arrived_s.append(time.perf_counter())
            size, last = len(message), bool(message[0])
        self._send(_ANSWER, _flagged(_EMPTY_BYTES, last=False))
        return figure(_rates(arrived_s[_skipped(size) - 1 :], size))

    def _round_trips(self, size: int, budget_s: float) -> list[float]:
        """Seconds there and back; the first ones warm up."""
        message = _flagged(size, last=False)
        taken: list[float] = []
        begin_s = time.perf_counter()
        while len(taken) < _LEAST_TIMES + 1 or time.perf_counter() - begin_s < budget_s:
            start_s = time.perf_counter()
            self._send(_ASK, message)
            self._receive(_ANSWER)
            taken.append(time.perf_counter() - start_s)
            if len(taken) == _MOST_TIMES:
                break
        return taken[1:]

    def _send(self, what: int, tensor: torch.Tensor) -> None:
        self._endpoint.send(self._peer, Tag(0, what, 0), tensor)

    def _receive(self, what: int) -> torch.Tensor:
        return self._endpoint.receive(self._peer, Tag(0, what, 0))


def _flagged(size: int, *, last: bool) -> torch.Tensor:
    message = torch.zeros(size, dtype=torch.uint8)
    message[0] = last
    return message


def _point(size: int, taken: Sequence[float], latency_s: float) -> Point:
    """One way: the way back is an empty message's. Round trips of fast links vary by more than the message takes."""
    found = figure(taken)
    seconds = max(found.value - latency_s, found.value / 2)
    return Point(size, rounded(seconds), found.spread)


def _next_s(point: Point, latency_s: float) -> float:
    """What measuring the next size takes at least."""
    growth = SIZES_BYTES[1] / SIZES_BYTES[0]
    return (2 * latency_s + growth * max(0.0, point.seconds - latency_s)) * (_LEAST_TIMES + 1)


def _message_bytes(sent: Sent) -> int:
    """Of a stream: as many as keep the link busy until the receiver's word is back, and no more than is known of it."""
    largest, latency_s = sent.points[-1], sent.latency_s.value
    rate = largest.bytes / max(largest.seconds - latency_s, largest.seconds / _FLAT)
    return _power_of_two(min(rate * max(_MESSAGE_S, 3 * latency_s), _GROWTH * largest.bytes))


_FLAT, _GROWTH = 50, 8


def _skipped(size: int) -> int:
    """Messages at the start of a stream that do not count, but for when the last of them has come."""
    return min(_BURST_MESSAGES, -(-_BURST_BYTES // size))


def _power_of_two(size: float) -> int:
    least, most = _LEAST_MESSAGE.bit_length() - 1, _MOST_MESSAGE.bit_length() - 1
    return 1 << min(most, max(least, int(size).bit_length() - 1))


def _rates(arrived_s: Sequence[float], size: int) -> list[float]:
    """Bytes/s in blocks of equally many arrivals one after the other."""
    gaps = len(arrived_s) - 1
    blocks = min(_BLOCKS, gaps)
    edges = [gaps * block // blocks for block in range(blocks + 1)]
    return [(end - start) * size / (arrived_s[end] - arrived_s[start]) for start, end in pairwise(edges)]
