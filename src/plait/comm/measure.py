"""What a link costs: latency and bandwidth, measured through the contract by both its ranks together."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import torch

from plait.comm.contract import Endpoint, Tag
from plait.costs.protocol import LinkCost

SIZES_BYTES = (1 << 10, 1 << 14, 1 << 18, 1 << 21)
BUDGET_S = 0.05
_WARM_UP = 2
_AT_LEAST = 5
_AT_MOST = 200


def measure_link(endpoint: Endpoint, peer: int, epoch: int = 0) -> LinkCost:
    """Measure the link with `peer`, which calls this too. Takes below 0.3 s; both get the same figures.

    Half the round trips of a few sizes, medians, and the line through them that is nearest in relative terms.
    """
    if endpoint.rank < peer:
        points = [(size, _lead(endpoint, peer, Tag(epoch, -1, at), size)) for at, size in enumerate(SIZES_BYTES)]
        cost = fit(points)
        figures = torch.tensor([cost.latency_s, cost.bandwidth_bytes_per_s], dtype=torch.float64)
        endpoint.send(peer, Tag(epoch, -1, len(SIZES_BYTES)), figures)
        return cost
    for at in range(len(SIZES_BYTES)):
        _follow(endpoint, peer, Tag(epoch, -1, at))
    return LinkCost(*endpoint.receive(peer, Tag(epoch, -1, len(SIZES_BYTES))).tolist())


def one_way_s(endpoint: Endpoint, peer: int, size: int, epoch: int = 0) -> float:
    """Seconds one way for messages of `size` bytes, half the round trips. `peer` calls this, and gets it, too."""
    tag, answer = Tag(epoch, -1, len(SIZES_BYTES) + 1), Tag(epoch, -1, len(SIZES_BYTES) + 2)
    if endpoint.rank < peer:
        seconds = _lead(endpoint, peer, tag, size)
        endpoint.send(peer, answer, torch.tensor([seconds], dtype=torch.float64))
        return seconds
    _follow(endpoint, peer, tag)
    return float(endpoint.receive(peer, answer))


def _lead(endpoint: Endpoint, peer: int, tag: Tag, size: int) -> float:
    """Seconds one way for `size` bytes. The first byte tells the other whether this is the last time."""
    tensor = torch.zeros(size, dtype=torch.uint8)
    taken: list[float] = []
    begin = time.perf_counter()
    while not tensor[0]:
        enough = time.perf_counter() - begin > BUDGET_S and len(taken) >= _AT_LEAST
        tensor[0] = enough or len(taken) == _AT_MOST
        start = time.perf_counter()
        endpoint.send(peer, tag, tensor)
        endpoint.receive(peer, tag)
        taken.append((time.perf_counter() - start) / 2)
    return statistics.median(taken[_WARM_UP:])


def _follow(endpoint: Endpoint, peer: int, tag: Tag) -> None:
    last = False
    while not last:
        tensor = endpoint.receive(peer, tag)
        last = bool(tensor[0])
        endpoint.send(peer, tag, tensor)


def fit(points: Sequence[tuple[int, float]]) -> LinkCost:
    """The line through (bytes, seconds) with the least squared relative error.

    Where noise would give it a negative latency or slope, the smallest message is taken as all latency, or the largest
    as all bandwidth.
    """
    weights = [1 / seconds**2 for _, seconds in points]
    total = sum(weights)
    mean_size = sum(weight * size for weight, (size, _) in zip(weights, points, strict=True)) / total
    mean_s = sum(weight * seconds for weight, (_, seconds) in zip(weights, points, strict=True)) / total
    moment = sum(
        w * (size - mean_size) * (seconds - mean_s) for w, (size, seconds) in zip(weights, points, strict=True)
    )
    spread = sum(w * (size - mean_size) ** 2 for w, (size, _) in zip(weights, points, strict=True))
    slope = moment / spread
    if slope <= 0:
        slope = points[-1][1] / points[-1][0]
    latency_s = mean_s - slope * mean_size
    return LinkCost(latency_s if latency_s > 0 else points[0][1], 1 / slope)
