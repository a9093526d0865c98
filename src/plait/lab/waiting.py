"""Stages that only wait, as long as their costs say: a schedule and its links, without what computing adds.

The executor, the messages and the clocks are the real ones; what a stage would compute, it sleeps. So a host of two
cores shows the bubble of any number of stages, and what is measured differs from the prediction only by what the
interpreter and the system's timers take.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import torch
from torch import Tensor

from plait.comm.contract import Endpoint
from plait.costs.protocol import Costs
from plait.errors import PeerLost
from plait.executor.reduction import Reduction
from plait.executor.step_executor import StepExecutor
from plait.executor.step_worker import StepWorker
from plait.executor.virtual import TransferTime, VirtualMessages, VirtualWorld
from plait.plans.action import Action
from plait.plans.layout import Layout, Stage
from plait.plans.round import Round
from plait.plans.split import Split, TrainingSetup
from plait.schedules.training import V_SHAPED, compute_order
from plait.spec.model import ModelSpec, Rope
from plait.timeline.timeline import Timeline
from plait.tracer.tracer import Tracer, merge

SPEC = ModelSpec("waits", "llama", 8, 8, 1, 1, 8, 8, 8, 8, 1e-5, Rope(10000.0, 8), (None,) * 8)
"""A model with a layer for each of up to 8 stages, of which only the number counts."""

Pause = Callable[[float], None]
"""Lets so many seconds pass."""


def waiting_layout(schedule: str, positions: int, micro_batches: int, dp: int = 1) -> tuple[Layout, TrainingSetup]:
    """One layer a stage, one rank a position of each of `dp` pipelines; two stages a position where there are two."""
    virtual = 2 if schedule in (*V_SHAPED, "interleaved") else 1
    setup = TrainingSetup(Split(dp=dp, pp=positions), schedule, 1, micro_batches, virtual)
    placement = compute_order(schedule, positions, virtual, micro_batches).placement
    held = {stage: position for position, stages in enumerate(placement) for stage in stages}
    stages = tuple(
        Stage((stage, stage + 1), tuple(replica * positions + held[stage] for replica in range(dp)))
        for stage in range(positions * virtual)
    )
    return Layout({"dp": dp, "pp": positions}, stages, 2), setup


class Waits:
    """The stages of one rank, whose computing is `pause`; an `executor.StepWorker`. They send one number each."""

    def __init__(self, costs: Costs, layout: Layout, pause: Pause = time.sleep) -> None:
        self._costs, self._layout, self._pause = costs, layout, pause
        self._message = torch.zeros(1)

    def _wait(self, one: Round, action: Action) -> None:
        self._pause(self._costs.compute_s(self._layout, action.stage, one.work[action.micro_batch], action.kind))

    def forward(self, one: Round, action: Action, message: Tensor | None) -> Tensor | None:
        """See `executor.StepWorker`."""
        self._wait(one, action)
        return self._message if action.stage + 1 < len(self._layout.stages) else None

    def backward(self, one: Round, action: Action, message: Tensor | None) -> Tensor | None:
        """See `executor.StepWorker`."""
        self._wait(one, action)
        return self._message if action.stage else None

    def weigh(self, one: Round, action: Action) -> None:
        """See `executor.StepWorker`."""
        self._wait(one, action)

    def reduction(self, one: Round, action: Action) -> Reduction | None:
        """Nothing is reduced."""
        return None

    def reduced(self, one: Round, action: Action) -> None:
        """Nothing is left to do."""

    def norm(self, one: Round, action: Action) -> None:
        """Takes no time."""

    def update(self, one: Round, action: Action) -> None:
        """Takes no time."""

    def exchanged(self) -> tuple[int, Sequence[tuple[float, float]]]:
        """Nothing is exchanged inside a computation."""
        return 0, ()


def on_threads(
    layout: Layout, one: Round, endpoints: Sequence[Endpoint], worker: Callable[[int], StepWorker]
) -> Timeline:
    """The measured timeline of one step, a thread a rank; `worker(rank)` makes each rank's stages.

    The endpoints are closed afterwards. Errors: those of the rank that failed first.
    """
    tracers = [Tracer(rank) for rank in range(layout.ranks)]
    made = [StepExecutor(layout, rank, endpoints[rank], worker(rank), tracers[rank]) for rank in range(layout.ranks)]
    begin = threading.Barrier(layout.ranks)

    def run(rank: int) -> None:
        begin.wait()
        try:
            made[rank].run(one)
        except BaseException as error:  # others must not wait for this rank
            endpoints[rank].fail(f"{type(error).__name__}: {error}")
            raise

    with ThreadPoolExecutor(layout.ranks) as pool:
        jobs = [pool.submit(run, rank) for rank in range(layout.ranks)]
    for endpoint in endpoints:  # only now: what is on its way to another rank still arrives
        endpoint.close()
    _raise_first(jobs)
    return merge(tracers)


AGREE = 0.01
"""Two steps as long as each other, but for this share, were not disturbed: others on a host only make them longer."""


def undisturbed(step: Callable[[], Timeline], most: int) -> Timeline:
    """The fastest of so many steps that the two fastest agree, or of `most`."""
    runs = sorted([step(), step()], key=lambda run: run.makespan_s)
    while len(runs) < most and runs[1].makespan_s > (1 + AGREE) * runs[0].makespan_s:
        runs = sorted([*runs, step()], key=lambda run: run.makespan_s)
    return runs[0]


def on_virtual_clock(
    layout: Layout,
    one: Round,
    worker: Callable[[VirtualMessages, int, Pause], StepWorker],
    transfer: Callable[[VirtualWorld], TransferTime] = lambda world: lambda source, to, size: (0.0, 0.0),
) -> Timeline:
    """The same step on a virtual clock, exact and in no time: what is waited passes on that clock alone.

    `worker(messages, rank, pause)` makes the stages of each rank; `transfer(world)` the links' times, free where not
    given.
    """
    world = VirtualWorld(layout.ranks, layout.link_capacity, lambda source, to, size: times(source, to, size))
    times = transfer(world)
    tracers = [Tracer(rank) for rank in range(layout.ranks)]

    def made(rank: int) -> StepExecutor:
        messages = VirtualMessages(world, rank)
        stages = worker(messages, rank, lambda duration_s: world.sleep(rank, duration_s))
        return StepExecutor(layout, rank, messages, stages, tracers[rank], messages.clock)

    executors = [made(rank) for rank in range(layout.ranks)]
    world.run([partial(executor.run, one) for executor in executors])
    return merge(tracers)


def _raise_first(jobs: Sequence[Future[None]]) -> None:
    """The error that made the others fail, where there is one."""
    errors = [error for job in jobs if (error := job.exception()) is not None]
    causes = [error for error in errors if not isinstance(error, PeerLost)]
    for error in (*causes, *errors):
        raise error
