"""The bubble of every schedule, with stages that only wait; and what the interpreter of a step itself costs."""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence

import torch
from harness import table, verdict
from torch import Tensor

from plait.comm.contract import Traffic
from plait.comm.threads import thread_mesh
from plait.costs.protocol import FixedCosts
from plait.executor.reduction import Op, Reduction
from plait.executor.step_executor import StepExecutor
from plait.plans.action import Action, Kind
from plait.plans.layout import Layout, Stage
from plait.plans.round import Round
from plait.plans.split import Split, TrainingSetup
from plait.schedules.closed import exact, step_s
from plait.schedules.step import make_training_round, sequences
from plait.schedules.training import V_SHAPED, compute_order
from plait.simulator.simulate import simulate
from plait.spec.model import ModelSpec, Rope
from plait.timeline.training_metrics import training_metrics
from plait.tracer.tracer import Tracer, merge

POSITIONS, UNIT_S, REPETITIONS = 4, 20e-3, 3
SCHEDULES = ("layerwise", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe-v")
SPEC = ModelSpec("waits", "llama", 8, 8, 1, 1, 8, 8, 8, 8, 1e-5, Rope(10000.0, 8), (None,) * 8)


def setup_of(schedule: str, positions: int, micro_batches: int, dp: int = 1) -> tuple[Layout, TrainingSetup]:
    """One layer a stage, one rank a position of each of `dp` pipelines."""
    virtual = 2 if schedule in (*V_SHAPED, "interleaved") else 1
    setup = TrainingSetup(Split(dp=dp, pp=positions), schedule, 1, micro_batches, virtual)
    placement = compute_order(schedule, positions, virtual, micro_batches).placement
    held = {stage: position for position, stages in enumerate(placement) for stage in stages}
    stages = tuple(
        Stage((stage, stage + 1), tuple(replica * positions + held[stage] for replica in range(dp)))
        for stage in range(positions * virtual)
    )
    return Layout({"dp": dp, "pp": positions}, stages, 2), setup


# --- stages that wait ------------------------------------------------------------------------------------------


class Waits:
    """A stage whose computing is sleeping."""

    def __init__(self, seconds: FixedCosts, layout: Layout) -> None:
        self._seconds, self._layout, self._message = seconds, layout, torch.zeros(1)

    def _sleep(self, one: Round, action: Action) -> None:
        time.sleep(self._seconds.compute_s(self._layout, action.stage, one.work[action.micro_batch], action.kind))

    def forward(self, one: Round, action: Action, message: Tensor | None) -> Tensor | None:
        self._sleep(one, action)
        return self._message if action.stage + 1 < len(self._layout.stages) else None

    def backward(self, one: Round, action: Action, message: Tensor | None) -> Tensor | None:
        self._sleep(one, action)
        return self._message if action.stage else None

    def weigh(self, one: Round, action: Action) -> None:
        self._sleep(one, action)

    def reduction(self, one: Round, action: Action) -> Reduction | None:
        return None

    def reduced(self, one: Round, action: Action) -> None:
        return

    def norm(self, one: Round, action: Action) -> None:
        return

    def update(self, one: Round, action: Action) -> None:
        return

    def exchanged(self) -> tuple[int, Sequence[tuple[float, float]]]:
        return 0, ()


def waited(schedule: str, micro_batches: int) -> tuple[float, float, float | None]:
    """The bubble as measured, as simulated, and by the closed formula where it is exact; shares of wall time."""
    layout, setup = setup_of(schedule, POSITIONS, micro_batches)
    virtual = setup.virtual
    each = UNIT_S / virtual
    kinds = {Kind.FORWARD: each, Kind.BACKWARD: 2 * each, Kind.BACKWARD_INPUT: each, Kind.BACKWARD_WEIGHT: each}
    seconds = {(stage, kind): taken for stage in range(len(layout.stages)) for kind, taken in kinds.items()}
    costs = FixedCosts(kind_seconds=seconds)
    one = make_training_round(0, layout, setup, sequences(micro_batches, 1, 1))
    simulated = training_metrics(simulate(layout, [one], costs, SPEC), layout)["bubble"]
    closed = None
    if exact(schedule, POSITIONS, virtual, micro_batches):
        closed = 1 - micro_batches * 3 * UNIT_S / step_s(schedule, POSITIONS, virtual, micro_batches, each, each, each)
    measured = statistics.median(asleep(layout, one, Waits(costs, layout)) for _ in range(REPETITIONS))
    return measured, simulated, closed


def asleep(layout: Layout, one: Round, worker: Waits) -> float:
    """The measured bubble of one step, a thread a rank."""
    endpoints = thread_mesh(layout.ranks, layout.link_capacity)
    tracers = [Tracer(rank) for rank in range(layout.ranks)]
    begin = threading.Barrier(layout.ranks)

    def run(rank: int) -> None:
        executor = StepExecutor(layout, rank, endpoints[rank], worker, tracers[rank])
        begin.wait()
        executor.run(one)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(layout.ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return training_metrics(merge(tracers), layout)["bubble"]


def bubbles() -> str:
    rows, worst, off = [], 0.0, 0.0
    for schedule in SCHEDULES:
        for micro_batches in (3, 4, 8, 16):
            measured, simulated, closed = waited(schedule, micro_batches)
            worst = max(worst, abs(measured - simulated))
            off = max(off, abs(simulated - closed)) if closed is not None else off
            cells = [100 * measured, 100 * simulated, "" if closed is None else 100 * closed]
            rows.append([schedule, micro_batches, *cells, 100 * (measured - simulated)])
    headings = ["schedule", "micro-batches", "measured %", "simulated %", "closed formula %", "points off"]
    return "\n\n".join(
        [
            "## The bubble of stages that only wait",
            f"{POSITIONS} positions, a thread each; F {1e3 * UNIT_S:g} ms, I and W as much each, of a position's one "
            "or two stages together. The closed formula stands where it is exact.",
            table(headings, rows),
            f"Furthest from the simulator: {verdict(100 * worst, 2, ' points', at_most=True)}. "
            f"The simulator from the closed formula: {verdict(100 * off, 0.01, ' points', at_most=True)}.",
        ]
    )


# --- the interpreter -------------------------------------------------------------------------------------------


class Instant(Waits):
    """Computing, messages and reductions that are there at once."""

    idle: Callable[[], None] | None = None

    def __init__(self, layout: Layout) -> None:
        super().__init__(FixedCosts(), layout)
        self._flat = torch.zeros(2)

    def _sleep(self, one: Round, action: Action) -> None:
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
    layout, setup = setup_of("1f1b", positions, micro_batches, dp)
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
