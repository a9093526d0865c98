"""Many candidates at once: compute orders replayed together, for a planner that has a second for all of them.

It knows stages' seconds and hand-overs, and no queues: where links never queue, `simulate` gives the same times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plait.schedules.clock import Run, Ticks, even_run, tick

__all__ = ["Replayed", "Run", "even_run", "replay"]


@dataclass(frozen=True, slots=True, eq=False)
class Replayed:
    """What a run takes: the whole step; per position when it begins and ends, how long it computes [positions]."""

    makespan_s: float
    begin_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    busy_s: NDArray[np.float64]

    @property
    def bubble(self) -> float:
        """Idle share of the wall time: 1 − busy ÷ (positions × makespan)."""
        return 1 - float(self.busy_s.sum()) / (len(self.busy_s) * self.makespan_s)

    @property
    def longest_span_s(self) -> float:
        """The longest time from a position's first action to its last, as zero-bubble papers count a step."""
        return float((self.end_s - self.begin_s).max())


def replay(runs: Sequence[Run]) -> list[Replayed]:
    """Replay all runs together, from second 0. Errors: PlanError where an order lacks an action, or gets stuck."""
    return [_replayed(run, ticks) for run, ticks in zip(runs, tick(runs), strict=True)]


def _replayed(run: Run, ticks: Ticks) -> Replayed:
    first, last = run.order.bounds[:-1], run.order.bounds[1:] - 1
    end_s = ticks.begin_s[last] + ticks.seconds[last]
    return Replayed(float(end_s.max()), ticks.begin_s[first], end_s, np.add.reduceat(ticks.seconds, first))
