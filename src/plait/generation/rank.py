"""One rank of a generation, from its first word with the front to its last: a thread, or this module as a process."""

from __future__ import annotations

import sys
import time

import torch

from plait.comm.attach import attach
from plait.comm.contract import Endpoint
from plait.comm.tensor_group import EndpointGroup
from plait.executor.executor import Executor
from plait.generation.follower import Follower
from plait.generation.lead import Front, Lead
from plait.generation.protocol import Finished, Logits, Progress, Ready, Setup, ToFront, ToRank
from plait.generation.worker import LogitsOf, Part, StageWorker
from plait.nn.cache import KVCache
from plait.nn.decoder import StageModel
from plait.nn.dtypes import TORCH_DTYPES
from plait.plans.file import plan_from_text
from plait.plans.layout import Stage
from plait.plans.plan import Plan
from plait.prober.host import on_all_cores
from plait.ranks.channel import Channel
from plait.ranks.failures import peak_memory_bytes
from plait.ranks.process import run_process
from plait.ranks.sampled import sampled
from plait.spec.model import ModelSpec
from plait.spec.shards import make_shards
from plait.tracer.memory import MemorySampler
from plait.tracer.tracer import Tracer
from plait.weights.index import WeightsIndex
from plait.weights.load import load_stage

_REPORT_EVERY_S = 0.1


def run_rank(
    rank: int,
    plan: Plan,
    index: WeightsIndex,
    endpoint: Endpoint,
    front: Front,
    *,
    trace: bool,
    host: str | None = None,
    sampler: MemorySampler | None = None,
) -> None:
    """Load the rank's part of its stage, serve, report. `host`: this one, where the plan's stage does not name it.

    `sampler`: of the memory of the rank's process, where it has one of its own.

    Errors: PlaitError, EOFError where the front is gone.
    """
    started_s, sent_before = time.perf_counter(), _sent_bytes(endpoint)
    stage = plan.layout.stages[plan.layout.stage_of(rank)]
    part = _part(plan, index.spec, endpoint, trace)
    model, size = _load(plan, stage, index, part, _Reporter(rank, front))
    server = Lead(plan, endpoint, front) if rank == 0 else Follower(plan, endpoint)
    worker = StageWorker(
        model,
        _cache(plan, stage, index.spec, part),
        len(plan.layout.stages),
        server.on_tokens,
        _logits_to(front, part),
        part,
    )
    tracer = Tracer(rank, plan.layout.epoch, host or stage.host)
    executor = Executor(plan.layout, rank, endpoint, worker, tracer if trace else None)
    front.send(Ready(rank, time.perf_counter() - started_s, size))
    server.run(worker, executor)
    sent = [after - before for before, after in zip(sent_before, _sent_bytes(endpoint), strict=True)]
    if sampler is not None:
        tracer.memory = sampler.take()
    front.send(Finished(rank, tracer.encode(), sent, peak_memory_bytes(), server.rounds))


def _part(plan: Plan, spec: ModelSpec, endpoint: Endpoint, trace: bool) -> Part | None:
    """The rank's shard and its group, where its stage is more than one rank."""
    layout = plan.layout
    if layout.tp == 1:
        return None
    number = layout.stage_of(endpoint.rank)
    stage = layout.stages[number]
    group = EndpointGroup(endpoint, layout.tensor_group(number, endpoint.rank), record=trace)
    return Part(make_shards(spec, layout.tp, stage.shares, stage.weights)[group.index], group)


def _load(
    plan: Plan, stage: Stage, index: WeightsIndex, part: Part | None, reporter: _Reporter
) -> tuple[StageModel, int]:
    """The model, and how many bytes its weights are."""
    (first, end), dtype = stage.layers, TORCH_DTYPES[stage.dtype]
    rows = -(-plan.slots // plan.micro_batches)
    shard, group = part or (None, None)
    with on_all_cores():
        tensors = load_stage(index, first, end, dtype, reporter, shard)
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        model = StageModel(index.spec, first, end, tensors, dtype, rows, shard, group, plan.layout.sequence)
    return model, size


def _cache(plan: Plan, stage: Stage, spec: ModelSpec, part: Part | None) -> KVCache:
    dtype = TORCH_DTYPES[stage.dtype]
    return KVCache(spec, *stage.layers, plan.slots, plan.context, dtype, shard=part.shard if part else None)


def _sent_bytes(endpoint: Endpoint) -> list[int]:
    """Payload that went to each rank so far."""
    return [0 if to == endpoint.rank else endpoint.traffic(to).payload_bytes for to in range(endpoint.size)]


def _logits_to(front: Front, part: Part | None) -> LogitsOf:
    first = part.shard.vocab.first if part else 0
    return lambda request, position, values: front.send(Logits(request, position, values, first))


class _Reporter:
    """Tells the front how far loading is, a few times a second."""

    def __init__(self, rank: int, front: Front) -> None:
        self._rank, self._front, self._next_s = rank, front, 0.0

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        now_s = time.monotonic()
        if done_bytes == total_bytes or now_s >= self._next_s:
            self._next_s = now_s + _REPORT_EVERY_S
            self._front.send(Progress(self._rank, done_bytes, total_bytes))


def _run(setup: Setup, channel: Channel[ToFront, ToRank]) -> None:
    rank, plan = setup.rank, plan_from_text(setup.plan)
    torch.set_num_threads(plan.layout.stages[plan.layout.stage_of(rank)].threads)
    endpoint = attach(setup.mesh)
    index = WeightsIndex.from_bytes(setup.index)
    with sampled(setup.trace) as sampler:
        run_rank(rank, plan, index, endpoint, channel, trace=setup.trace, sampler=sampler)
    endpoint.close()


if __name__ == "__main__":
    sys.exit(run_process(ToRank, _run))
