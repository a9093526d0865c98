"""The bubble of every schedule, with stages that only wait; and what the interpreter of a step itself costs."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from harness import table, verdict
from torch import Tensor

from plait.comm.contract import Traffic
from plait.costs.protocol import FixedCosts
from plait.executor.reduction import Op, Reduction
from plait.executor.step_executor import StepExecutor
from plait.lab import pipeline
from plait.lab.waiting import Waits, waiting_layout
from plait.plans.action import Action
from plait.plans.layout import Layout
from plait.plans.round import Round
from plait.schedules.step import make_training_round, sequences
from plait.tracer.tracer import Tracer

POSITIONS = 4
SCHEDULES = ("layerwise", *pipeline.SCHEDULES, "dualpipe-v")


def bubbles() -> str:
    rows, worst, off = [], 0.0, 0.0
    for schedule in SCHEDULES:
        for micro_batches in (3, 4, 8, 16):
            closed, simulated, measured = pipeline.bubbles(pipeline.Case(schedule, POSITIONS, micro_batches), "full")
            worst = max(worst, abs(measured - simulated))
            off = max(off, abs(simulated - closed)) if closed is not None else off
            rows.append(
                [schedule, micro_batches, measured, simulated, "" if closed is None else closed, measured - simulated]
            )
    headings = ["schedule", "micro-batches", "measured %", "simulated %", "closed formula %", "points off"]
    return "\n\n".join(
        [
            "## The bubble of stages that only wait",
            f"{POSITIONS} positions, a thread each; F {1e3 * pipeline.UNIT_S:g} ms, I and W as much each, of a "
            "position's one or two stages together. The closed formula stands where it is exact.",
            table(headings, rows),
            f"Furthest from the simulator: {verdict(worst, 2, ' points', at_most=True)}. "
            f"The simulator from the closed formula: {verdict(off, 0.01, ' points', at_most=True)}.",
        ]
    )


# --- the interpreter -------------------------------------------------------------------------------------------


class Instant(Waits):
    """Computing, messages and reductions that are there at once."""

    idle: Callable[[], None] | None = None

    def __init__(self, layout: Layout) -> None:
        super().__init__(FixedCosts(), layout)
        self._flat = torch.zeros(2)

    def _wait(self, one: Round, action: Action) -> None:
        return

    def reduction(self, one: Round, action: Action) -> Reduction | None:
        return Reduction(Op.ALL_REDUCE, (0, 1), self._flat, (0, 1, 2)) if self._layout.axes["dp"] == 2 else None

    def try_send(self, to: int, tag: object, tensor: Tensor) -> bool:
        return True

    def try_receive(self, source: int, tag: object) -> Tensor:
        return self._message

    def traffic(self, to: int) -> Traffic:
        return Traffic(0, 0, 0, 0)

    def wait(self, ready: Callable[[], object], what: str, timeout_s: float = 0.0, peers: object = ()) -> object:
        while (found := ready()) is None:
            pass
        return found


def interpreted(dp: int, positions: int, micro_batches: int, buckets: int) -> tuple[int, float]:
    """Actions of a rank's step, and seconds of it where nothing takes time but the interpreter, observed."""
    layout, setup = waiting_layout("1f1b", positions, micro_batches, dp)
    instant = Instant(layout)
    work = sequences(micro_batches, 1, 1)
    one = make_training_round(0, layout, setup, work, buckets, norm=True)
    executor = StepExecutor(layout, 0, instant, instant, Tracer(0))  # type: ignore[arg-type]
    times = []
    for _ in range(200):
        start = time.perf_counter()
        executor.run(one)
        times.append(time.perf_counter() - start)
    return len(one.actions[0]), statistics.median(times)


def main() -> None:
    torch.set_num_threads(1)
    sys.stdout.write(bubbles() + "\n")


if __name__ == "__main__":
    main()
