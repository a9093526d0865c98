"""What the executor itself costs: an action with compute and messages that take no time, observed and not."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from harness import make_plan, table, verdict

from plait.comm.contract import Traffic
from plait.executor.executor import Executor
from plait.plans.action import Action
from plait.plans.round import MicroBatch, Round, Row
from plait.schedules.generation import make_round
from plait.tracer.tracer import Tracer

ROUNDS, REPETITIONS = 2000, 7


class Instant:
    """Messages and compute that are there at once."""

    def __init__(self) -> None:
        self._activations, self._tokens = torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64)

    def try_send(self, to: int, tag: object, tensor: torch.Tensor) -> bool:
        return True

    def try_receive(self, source: int, tag: object) -> torch.Tensor:
        return self._activations

    def traffic(self, to: int) -> Traffic:
        return Traffic(0, 0, 0, 0)

    def wait(self, ready: Callable[[], object], what: str, timeout_s: float = 0.0, peers: object = ()) -> object:
        return ready()

    def forward(self, one: Round, micro_batch: int, message: object) -> torch.Tensor:
        return self._activations

    def tokens(self, action: Action, tokens: object) -> None:
        return

    def exchanged(self) -> tuple[int, tuple[tuple[float, float], ...]]:
        return 0, ()


def seconds_an_action(stages: int, micro_batches: int, stage: int, observed: bool) -> float:
    plan = make_plan([1] * stages, schedule="pipelined", micro_batches=micro_batches, slots=micro_batches)
    instant = Instant()
    tracer = Tracer(stage) if observed else None
    executor = Executor(plan.layout, stage, instant, instant, tracer)  # type: ignore[arg-type]
    work = tuple(MicroBatch((Row(slot, slot, 9, 1, True),)) for slot in range(micro_batches))
    rounds = [make_round(0, stages, work)]
    for number in range(1, ROUNDS):
        rounds.append(make_round(number, stages, work, rounds[-1].carried_out))
    actions = sum(len(one.actions[stage]) for one in rounds)
    start = time.perf_counter()
    for one in rounds:
        executor.run(one)
    return (time.perf_counter() - start) / actions


def make_round_s(stages: int, micro_batches: int) -> float:
    """Seconds to make a round, all positions."""
    work = tuple(MicroBatch((Row(slot, slot, 9, 1, True),)) for slot in range(micro_batches))
    one = make_round(0, stages, work)
    start = time.perf_counter()
    for number in range(1, ROUNDS):
        one = make_round(number, stages, work, one.carried_out)
    return (time.perf_counter() - start) / (ROUNDS - 1)


def main() -> None:
    rows = []
    for stages, micro_batches, stage in ((1, 1, 0), (2, 2, 0), (2, 2, 1), (3, 3, 1)):
        off, on = [], []
        for _ in range(REPETITIONS):
            off.append(1e6 * seconds_an_action(stages, micro_batches, stage, observed=False))
            on.append(1e6 * seconds_an_action(stages, micro_batches, stage, observed=True))
        a_round = 1e6 * make_round_s(stages, micro_batches)
        rows.append([stages, micro_batches, stage, statistics.median(off), statistics.median(on), a_round])
    worst = max(float(str(row[4])) for row in rows)
    headings = ["stages", "micro-batches", "stage", "µs an action, not observed", "observed", "µs to make a round"]
    sections = [
        "## The executor's own cost",
        table(headings, rows),
        f"Worst, observed: {verdict(worst, 20, ' µs', at_most=True)}.",
    ]
    sys.stdout.write("\n\n".join(sections) + "\n")


if __name__ == "__main__":
    main()
