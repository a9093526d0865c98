"""Closed forms of a step's seconds, for many ways to split at once (arrays of one shape, or numbers).

They are those of `schedules.closed` (a test holds them equal) where stages are equal, links free, and micro-batches as
many as fill the schedule. Beyond that:

- the slowest position decides how long the pipeline is busy, the mean one how long the bubbles are;
- with fewer micro-batches than fill a schedule, a step is on the line between one and so many (exact for ZB-H1, a few
  per cent off for the others);
- a message between positions takes `hop_s`, and a step waits for so many of them one after another: counted by
  replaying the orders, for 2p micro-batches or more and messages shorter than a stage. 1F1B waits all along: while p
  micro-batches go on, one after another waits for the next, once to the last position and back.

In the simulator positions differ from each other, so that these rank and prove nothing: the ten best are simulated.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from plait.planner.balance import Floats
from plait.schedules.training import SPLIT_BACKWARD, V_SHAPED


class Phases(NamedTuple):
    """Seconds of one micro-batch: forward, and the input's and the weights' half of the backward."""

    forward: Floats
    input: Floats
    weight: Floats

    @property
    def total(self) -> Floats:
        """All three."""
        return self.forward + self.input + self.weight

    def times(self, factor: Floats | float) -> Phases:
        """Each, multiplied."""
        return Phases(self.forward * factor, self.input * factor, self.weight * factor)

    def at(self, index: Any) -> Phases:
        """Those rows of the arrays."""
        return Phases(self.forward[index], self.input[index], self.weight[index])

    def plus(self, other: Phases) -> Phases:
        """Both together."""
        return Phases(self.forward + other.forward, self.input + other.input, self.weight + other.weight)


def step_seconds(
    schedule: str,
    positions: Floats,
    virtual: int,
    micro_batches: Floats,
    slowest_s: Floats,
    mean: Phases,
    hop_s: Floats,
) -> Floats:
    """Seconds from the first forward to the last backward.

    `slowest_s`: of one micro-batch on the slowest position, `mean`: on the mean one, with all its stages.
    """
    p, m = positions, micro_batches
    if schedule == "layerwise":
        return m * (p * mean.total + 2 * (p * virtual - 1) * hop_s)
    stage = mean.times(1 / virtual)
    through = p * mean.total
    alone = through - (p * virtual - 1) * stage.weight if schedule in SPLIT_BACKWARD else through
    enough = np.maximum(m, _enough(schedule, p))
    bubble = np.maximum(_bubble(schedule, p, stage), 0.0)
    if schedule == "dualpipe-v":
        # its first position, which holds embedding and head, is the slowest and has no bubble of its own
        busy = np.maximum(enough * mean.total + bubble, enough * slowest_s)
    else:
        busy = enough * slowest_s + bubble
    full = np.maximum(busy, alone)
    # with fewer than fill the schedule: about linear between one micro-batch and so many
    running = alone + (full - alone) * (m - 1) / np.maximum(enough - 1, 1)
    seconds: Floats = np.maximum(running, m * slowest_s) + hops(schedule, p, virtual, m) * hop_s
    return seconds


def _enough(schedule: str, p: Floats) -> Floats:
    """Micro-batches from which on the closed form is exact (`schedules.closed.exact`)."""
    if schedule == "zb-h1":
        return p
    if schedule in ("zb-h2", "zb-v"):
        return 2 * p - 1
    if schedule == "dualpipe-v":
        return 2 * p
    return 1.0 + 0 * p


def _bubble(schedule: str, p: Floats, stage: Phases) -> Floats:
    """`schedules.closed.bubble_s` of arrays."""
    f, i, w = stage
    n = p - 1
    if schedule == "zb-h1":
        return n * _most(f + i - w, f, i)
    if schedule == "zb-h2":
        return n * _most(f, f + i - 2 * w, i - f)
    if schedule == "zb-v":
        found = _most(
            n * i,
            2 * n * (i - w),
            np.maximum(f, i) + (n - 1) * w,
            (2 * n - 1) * f - (n - 1) * i,
            (2 * n - 1) * f + i - 2 * n * w,
            2 * n * f - n * i - w,
            2 * n * f - (2 * n + 1) * w,
        )
    elif schedule == "dualpipe-v":
        found = _most(n * f, n * (f + i - w), n * (2 * f - i - w), 2 * n * (f - w), 2 * n * i - n * w - f, n * i - f)
    else:
        found = n * (f + i + w)
    return np.where(n == 0, 0.0, found)


def _most(*terms: Floats) -> Floats:
    found = terms[0]
    for term in terms[1:]:
        found = np.maximum(found, term)
    return found


def hops(schedule: str, positions: Floats, virtual: int, micro_batches: Floats) -> Floats:
    """Messages that a step waits for one after another (`layerwise` apart)."""
    p, m = positions, micro_batches
    several = np.where(p > 1, 1.0, 0.0)
    if schedule == "1f1b":
        return several * (2 * (p - 1) * np.maximum(m, p) / p + 2 * (p - 2))
    if schedule == "interleaved":
        return several * 2 * (p * virtual - 1)
    if schedule == "zb-h1":
        return several * 4 * (p - 1)
    if schedule == "zb-h2":
        return several * (p - 1)
    if schedule == "zb-v":
        return several * (5 * p - 7)
    if schedule == "dualpipe-v":
        return several * 4 * (p - 1)
    return several * 2 * (p - 1)


def held(schedule: str, positions: Floats, virtual: int, position: Floats, micro_batches: Floats) -> Floats:
    """`schedules.closed.in_flight` of arrays: the most that a position holds, in activations of one of its stages."""
    p, q, m = positions, position, micro_batches
    most = virtual * m
    if schedule == "layerwise":
        found = np.full_like(p, virtual)
    elif schedule == "1f1b":
        found = p - q
    elif schedule == "interleaved":
        found = 2 * (p - 1 - q) + (virtual - 1) * p + 1
    elif schedule == "zb-h1":
        found = p
    elif schedule == "zb-h2":
        found = 2 * p - 1
    elif schedule in V_SHAPED:
        found = 2 * p + (schedule == "dualpipe-v")
    else:
        found = most
    return np.minimum(found, most)
