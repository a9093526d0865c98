"""Closed forms of a step's seconds, for many ways to split at once (arrays of one shape, or numbers).

They are those of `schedules.closed` (a test holds them equal), where stages are equal and links free, and beyond that:

- the slowest position decides how long the pipeline is busy; bubbles are as long as the other positions' mean asks for;
- a message between positions takes `hop_s`, and a step waits for so many of them one after another: counted by replaying
  the orders, for micro-batches enough (2p) and messages shorter than a stage. 1F1B waits all along: of the p micro-batches
  that go round once between first and last position, each hop is on the way;
- a link that is busy longer than a stage decides.

In the simulator positions also differ from each other, so that these are bounds of ranking, not of proof: the ten best are
simulated.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from plait.planner.balance import Floats
from plait.planner.space import V_SCHEDULES

SPLIT_BACKWARD = ("zb-h1", "zb-h2", "zb-v", "dualpipe-v")


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

    def plus(self, other: Phases) -> Phases:
        """Both together."""
        return Phases(self.forward + other.forward, self.input + other.input, self.weight + other.weight)


def step_seconds(
    schedule: str, positions: Floats, virtual: int, micro_batches: Floats, slowest: Phases, mean: Phases, hop_s: Floats
) -> Floats:
    """Seconds from the first forward to the last backward. `slowest`, `mean`: of a position (all its stages)."""
    p, m = positions, micro_batches
    if schedule == "layerwise":
        return m * (p * mean.total + 2 * (p * virtual - 1) * hop_s)
    busy = m * slowest.total
    mean_stage = mean.times(1 / virtual)
    through = p * mean.total
    split = schedule in SPLIT_BACKWARD
    alone = through - (p * virtual - 1) * mean_stage.weight if split else through
    bubble = np.maximum(_bubble(schedule, p, m, mean_stage), 0.0)
    return np.maximum(busy + bubble, alone) + hops(schedule, p, virtual, m) * hop_s


def _bubble(schedule: str, p: Floats, m: Floats, stage: Phases) -> Floats:
    """`schedules.closed.bubble_s` of arrays; of V schedules with few micro-batches its lower bound."""
    f, i, w = stage
    n = p - 1
    if schedule == "zb-h1":
        return n * _most(f + i - w, f, i)
    if schedule == "zb-h2":
        return n * _most(f, f + i - 2 * w, i - f)
    if schedule == "zb-v":
        full = _most(
            n * i,
            2 * n * (i - w),
            np.maximum(f, i) + (n - 1) * w,
            (2 * n - 1) * f - (n - 1) * i,
            (2 * n - 1) * f + i - 2 * n * w,
            2 * n * f - n * i - w,
            2 * n * f - (2 * n + 1) * w,
        )
        return np.where(n == 0, 0.0, np.where(m >= 2 * p - 1, full, n * f))
    if schedule == "dualpipe-v":
        full = _most(
            n * f,
            n * (f + i - w),
            n * (2 * f - i - w),
            2 * n * (f - w),
            2 * n * i - n * w - f,
            n * i - f,
        )
        return np.where(n == 0, 0.0, np.where(m >= 2 * p, full, n * f))
    return n * (f + i + w)


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
    elif schedule in V_SCHEDULES:
        found = 2 * p + (schedule == "dualpipe-v")
    else:
        found = most
    return np.minimum(found, most)
