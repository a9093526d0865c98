"""One rank of a training run, from its first word with the front to its last; this module is also its process."""

from __future__ import annotations

import mmap
import os
import sys
import time
import tomllib
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from plait.comm.attach import attach
from plait.comm.contract import Endpoint, Group
from plait.plans.action import Action, Kind, Lane
from plait.plans.file import plan_file_from_table
from plait.plans.layout import Layout
from plait.plans.training import TrainingPlan
from plait.prober.host import on_all_cores
from plait.ranks.channel import Channel
from plait.ranks.failures import peak_memory_bytes
from plait.ranks.process import run_process
from plait.ranks.processes import rank_threads
from plait.ranks.sampled import sampled
from plait.tracer.memory import MemorySampler
from plait.tracer.tracer import Tracer
from plait.trainer.data import Ids, Sequences
from plait.trainer.protocol import Finished, Ready, Setup, Stalled, StepDone, ToFront, ToRank, Work
from plait.trainer.rank import TrainingRank
from plait.trainer.train_model import StoredTensors, Tensors, initial_tensors
from plait.weights.index import WeightsIndex


class Front(Protocol):
    """What a rank tells of its work goes here."""

    def send(self, message: ToFront) -> None:
        """Tell the front. Errors: EOFError where it is gone."""


class StepObserver:
    """An executor's observer: a tracer of its own for every step."""

    def __init__(self, rank: int, epoch: int, host: str) -> None:
        self._about = rank, epoch, host
        self.tracer = Tracer(*self._about)

    def finished(
        self,
        action: Action,
        start_s: float,
        ready_s: float,
        end_s: float,
        payload_bytes: int,
        exchanges: Sequence[tuple[float, float]] = (),
    ) -> None:
        """See `timeline.observer`."""
        self.tracer.finished(action, start_s, ready_s, end_s, payload_bytes, exchanges)

    def take(self) -> Tracer:
        """The step that has ended; what follows is the next one's."""
        taken, self.tracer = self.tracer, Tracer(*self._about)
        return taken


def run_rank(
    work: Work,
    ids: Ids,
    endpoint: Endpoint,
    front: Front,
    *,
    host: str | None = None,
    sampler: MemorySampler | None = None,
) -> None:
    """Make the rank's stages, and train. `host`: this one, where the plan's stages do not name it.

    `sampler`: of the memory of the rank's process, where it has one of its own.

    Errors: PlaitError; EOFError where the front is gone.
    """
    rank, plan, started_s = endpoint.rank, plan_of(work), time.perf_counter()
    stage = plan.layout.stages[plan.layout.stage_of(rank)]
    sequences = Sequences(ids, plan.sequence, plan.batch, work.settings.seed)
    observer = StepObserver(rank, plan.layout.epoch, host or stage.host)
    with on_all_cores():
        trained = TrainingRank(
            plan,
            work.spec,
            work.settings,
            endpoint,
            _tensors(work),
            buckets=work.buckets,
            observer=observer,
            stalled=lambda words: front.send(Stalled(rank, words)),
            record=True,
        )
    size = sum(weight.nbytes for held in trained.stages.values() for weight in held.weights.values())
    front.send(Ready(rank, time.perf_counter() - started_s, size))
    endpoint.barrier(Group(tuple(range(endpoint.size))))
    meter = _Meter(endpoint, plan.layout)
    observer.take()
    for number in range(work.steps):
        if sampler is not None and number in work.timelines:
            sampler.take()  # what was before is no part of the step
        result = trained.step(number, sequences.batch(number))
        tracer = observer.take()
        if sampler is not None and number in work.timelines:
            tracer.memory = sampler.take()
        spans = tracer.encode() if number in work.timelines else None
        front.send(StepDone(rank, number, *result, *meter.read(tracer), spans))
    front.send(Finished(rank, peak_memory_bytes()))


def plan_of(work: Work) -> TrainingPlan:
    """The plan that the work is by."""
    plan = plan_file_from_table(tomllib.loads(work.plan)).plan
    assert isinstance(plan, TrainingPlan)
    return plan


def _tensors(work: Work) -> Tensors:
    if work.index is None:
        return initial_tensors(work.spec, work.settings.seed)
    return StoredTensors(WeightsIndex.from_bytes(work.index))


class _Meter:
    """What a rank's step took and sent, read after each."""

    def __init__(self, endpoint: Endpoint, layout: Layout) -> None:
        self._endpoint = endpoint
        group = layout.tensor_group(layout.stage_of(endpoint.rank), endpoint.rank)
        self._tensor_group = frozenset(group)
        self._sent = self._sent_now()
        self._at_s = time.perf_counter()

    def read(self, tracer: Tracer) -> tuple[float, float, dict[str, int]]:
        """Seconds since the last reading, seconds of them that the rank computed, bytes sent by axis."""
        now_s, sent = time.perf_counter(), self._sent_now()
        wall_s, self._at_s = now_s - self._at_s, now_s
        went = {to: sent[to] - before for to, before in self._sent.items()}
        self._sent = sent
        tensor = sum(size for to, size in went.items() if to in self._tensor_group)
        # neighbours of the pipeline may sum a tied gradient too: what messages carried is told apart by the action
        between = sum(event[4] for event in tracer.events if event[0].kind in _MESSAGES)
        return wall_s, _computed_s(tracer), {"dp": sum(went.values()) - tensor - between, "pp": between, "tp": tensor}

    def _sent_now(self) -> dict[int, int]:
        endpoint = self._endpoint
        return {to: endpoint.traffic(to).payload_bytes for to in range(endpoint.size) if to != endpoint.rank}


_MESSAGES = (Kind.SEND_FORWARD, Kind.SEND_BACKWARD)


def _computed_s(tracer: Tracer) -> float:
    """Seconds in which the rank computed: its compute actions without the exchanges inside them."""
    return sum(
        end_s - start_s - sum(finish_s - begin_s for begin_s, finish_s in exchanges)
        for action, start_s, _, end_s, _, exchanges in tracer.events
        if action.kind.lane is Lane.COMPUTE
    )


def mapped_ids(descriptor: int, item_bytes: int) -> Ids:
    """The ids in an inherited file, of unsigned integers of `item_bytes`; nothing is copied."""
    size = os.fstat(descriptor).st_size
    content = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
    os.close(descriptor)
    return np.frombuffer(content, np.dtype(f"u{item_bytes}"))


def _run(setup: Setup, channel: Channel[ToFront, ToRank]) -> None:
    torch.set_num_threads(rank_threads(plan_of(setup.work).layout, setup.rank))
    endpoint = attach(setup.mesh)
    with sampled() as sampler:
        run_rank(setup.work, mapped_ids(setup.tokens, setup.item_bytes), endpoint, channel, sampler=sampler)
    endpoint.close()


if __name__ == "__main__":
    sys.exit(run_process(Setup, _run))
