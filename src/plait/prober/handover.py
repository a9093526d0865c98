"""What it costs that stages take turns: a rank that waited has gone to sleep, its threads and its caches with it.

Measured as it happens: two ranks compute in turns, as layer-wise stages do, and each turn takes longer than the same
computation without a break. The work is a stage's decoding in small: products of one row with more weights than the
near caches hold.
"""

from __future__ import annotations

import statistics
import time

import torch

from plait.comm.contract import Endpoint, Tag

_ROUND = -2
_LAYERS, _IN, _OUT = 64, 576, 1536
_ALONE, _TURNS = 8, 16


def hand_over_s(endpoint: Endpoint, peer: int) -> float:
    """Seconds that one hand-over between this rank and `peer` costs, the message included. Both call it.

    (time of a turn and back − both computations without a break) ÷ 2. Takes below 1 s; both get the same figure.
    """
    lead = endpoint.rank < peer
    weights = [torch.full((_IN, _OUT), 0.01) for _ in range(_LAYERS)]
    row = torch.ones(1, _IN)
    with torch.inference_mode():
        mine = _alone(endpoint, peer, weights, row, lead)
        return _in_turns(endpoint, peer, weights, row, mine, lead)


def _compute(weights: list[torch.Tensor], row: torch.Tensor) -> None:
    for weight in weights:
        torch.mm(row, weight)


def _alone(endpoint: Endpoint, peer: int, weights: list[torch.Tensor], row: torch.Tensor, lead: bool) -> float:
    """One after the other: the median of several computations while the other rank waits."""
    if not lead:
        endpoint.receive(peer, Tag(0, _ROUND, 0))
    taken = []
    for _ in range(_ALONE):
        start = time.perf_counter()
        _compute(weights, row)
        taken.append(time.perf_counter() - start)
    mine = statistics.median(taken)
    if lead:
        endpoint.send(peer, Tag(0, _ROUND, 0), torch.zeros(1))
        return mine + float(endpoint.receive(peer, Tag(0, _ROUND, 1)))
    endpoint.send(peer, Tag(0, _ROUND, 1), torch.tensor([mine], dtype=torch.float64))
    return mine


def _in_turns(
    endpoint: Endpoint, peer: int, weights: list[torch.Tensor], row: torch.Tensor, both_s: float, lead: bool
) -> float:
    there, back, last = Tag(0, _ROUND, 2), Tag(0, _ROUND, 3), Tag(0, _ROUND, 4)
    if not lead:
        for _ in range(_TURNS):
            endpoint.receive(peer, there)
            _compute(weights, row)
            endpoint.send(peer, back, row)
        return float(endpoint.receive(peer, last))
    taken = []
    for _ in range(_TURNS):
        start = time.perf_counter()
        _compute(weights, row)
        endpoint.send(peer, there, row)
        endpoint.receive(peer, back)
        taken.append(time.perf_counter() - start)
    seconds = max(0.0, (statistics.median(taken) - both_s) / 2)
    endpoint.send(peer, last, torch.tensor([seconds], dtype=torch.float64))
    return seconds
