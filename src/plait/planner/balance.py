"""The cut over equal devices: layers of one cost, with the embedding on the first stage and the LM head on the last.

The slowest position decides how fast a full pipeline goes. With layers of `layer` seconds, `first` more on the position
that holds the first stage and `last` more on the one that holds the last, its least time is one of

    k · layer,   k · layer + first,   k · layer + last      (k layers on the position that is slowest)

between the mean and a layer more than it, so a few values are enough to look at: for thousands of ways at once. Models
whose first layers differ (dense ones before experts) have their difference in `first`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_EPS = 1e-9


class Weights(NamedTuple):
    """Seconds of a layer, and those more of the first and of the last stage: numbers, or arrays of one shape."""

    layer: Floats
    first: Floats
    last: Floats


class Shape(NamedTuple):
    """The best cut: seconds of the slowest position; layers of the first, of the last, and of all positions between.

    `slowest_s` is infinite where there are fewer layers than stages.
    """

    slowest_s: Floats
    first: Floats
    last: Floats
    between: Floats


def best_shape(layers: int, positions: Floats, virtual: int, weights: Weights, folded: bool = False) -> Shape:
    """The cut whose slowest position is fastest; all others as even as that allows. Every stage has a layer.

    `virtual` stages a position; `folded`: the first position holds the last stage too (V schedules).
    """
    layer = weights.layer
    alone = positions == 1
    head = np.where(folded | alone, weights.first + weights.last, weights.first)
    tail = np.where(folded | alone, 0.0, weights.last)
    found = _slowest(layers, positions, virtual, Weights(layer, head, tail))
    slowest = np.where(np.isinf(found), layers * layer + np.abs(head) + np.abs(tail), found)
    room = [np.floor((slowest - extra) / layer + _EPS) for extra in (0.0 * head, head, tail)]
    fair = np.ceil((layers + (head + tail) / layer) / positions - _EPS)
    most = np.minimum(room[2], layers - virtual * (positions - 1))
    last = np.clip(fair - np.ceil(tail / layer - _EPS), virtual, most)
    last = np.maximum(last, layers - room[0] * (positions - 2) - room[1])
    rest = layers - last
    fair = np.ceil((rest + head / layer) / np.maximum(positions - 1, 1) - _EPS)
    most = np.minimum(room[1], rest - virtual * (positions - 2))
    first = np.clip(fair - np.ceil(head / layer - _EPS), virtual, most)
    first = np.maximum(first, rest - room[0] * (positions - 2))
    first, last = np.where(alone, layers, first), np.where(alone, 0, last)
    return Shape(found, first, last, layers - first - last)


def _slowest(layers: int, positions: Floats, virtual: int, weights: Weights) -> Floats:
    layer, head, tail = weights
    mean = (layers * layer + head + tail) / positions
    least = np.maximum(virtual * layer + np.maximum(np.maximum(head, tail), 0.0), mean)
    best = np.full(np.broadcast(mean, positions).shape, np.inf)
    for offset in (np.zeros_like(mean), head, tail):
        count = np.ceil((least - offset) / layer - _EPS)
        for more in range(3):
            time = (count + more) * layer + offset
            ends = np.floor((time - head) / layer + _EPS) + np.floor((time - tail) / layer + _EPS)
            held = (positions - 2) * np.floor(time / layer + _EPS) + ends
            best = np.where(held >= layers, np.minimum(best, time), best)
    return np.where(positions * virtual > layers, np.inf, np.where(positions == 1, mean, best))


def position_layers(layers: int, positions: int, virtual: int, weights: Weights, folded: bool = False) -> list[int]:
    """Layers of each position in that cut; those between are as even as they divide, the larger ones late.

    (A late position has fewer micro-batches in flight, so it has the memory for one layer more.)
    """
    if positions == 1:
        return [layers]
    shape = best_shape(layers, np.float64(positions), virtual, weights, folded)  # type: ignore[arg-type]
    first, last, between = int(shape.first), int(shape.last), int(shape.between)
    if positions == 2:
        return [first, last]
    size, larger = divmod(between, positions - 2)
    return [first, *[size] * (positions - 2 - larger), *[size + 1] * larger, last]


def stage_layers(counts: Sequence[int], virtual: int, folded: bool = False) -> list[int]:
    """Layers of each stage, in order, from those of each position.

    A position's stages are as even as they divide; the first and the last stage of the model, which hold the embedding
    and the head, are never the larger ones.
    """
    positions = len(counts)
    stages = [0] * (positions * virtual)
    for position, count in enumerate(counts):
        size, larger = divmod(count, virtual)
        for turn in range(virtual):
            # the last position's larger stages come first, all others' last: the model's ends stay small
            order = turn < larger if position == positions - 1 and not folded else turn >= virtual - larger
            stages[_stage(position, turn, positions, folded)] = size + order
    return stages


def _stage(position: int, turn: int, positions: int, folded: bool) -> int:
    if folded and turn % 2:
        return (turn + 1) * positions - 1 - position
    return turn * positions + position
