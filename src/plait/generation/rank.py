"""One rank of a generation, from its first word with the front to its last: a thread, or this module as a process."""

from __future__ import annotations

import resource
import socket
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import cast

import torch

from plait.comm.contract import Endpoint
from plait.comm.shm import ShmDescription, ShmEndpoint
from plait.errors import PeerLost, PlaitError
from plait.executor.executor import Executor
from plait.generation.channel import Channel
from plait.generation.lead import Front, Lead, follow
from plait.generation.protocol import Failed, Finished, Logits, Progress, Ready, Setup, ToFront, ToRank
from plait.generation.worker import LogitsOf, StageWorker
from plait.nn.cache import KVCache
from plait.nn.decoder import StageModel
from plait.nn.dtypes import TORCH_DTYPES
from plait.plans.file import plan_from_text
from plait.plans.plan import Plan
from plait.prober.host import on_all_cores
from plait.timeline.record import RoundRecipe
from plait.tracer.tracer import Tracer
from plait.weights.index import WeightsIndex
from plait.weights.load import load_stage

_REPORT_EVERY_S = 0.1


def run_rank(rank: int, plan: Plan, index: WeightsIndex, endpoint: Endpoint, front: Front, *, trace: bool) -> None:
    """Load the stage, serve, report. Errors: PlaitError, EOFError where the front is gone."""
    started_s = time.perf_counter()
    stages = plan.layout.stages
    first, end = stages[rank].layers
    dtype = TORCH_DTYPES[stages[rank].dtype]
    with on_all_cores():
        tensors = load_stage(index, first, end, dtype, _Reporter(rank, front))
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        model = StageModel(index.spec, first, end, tensors, dtype, rows=-(-plan.slots // plan.micro_batches))
    cache = KVCache(index.spec, first, end, plan.slots, plan.context, dtype)
    lead = Lead(plan, endpoint, front) if rank == 0 else None
    worker = StageWorker(model, cache, len(stages), lead.on_tokens if lead else _nobody, _logits_to(front))
    tracer = Tracer(rank, plan.layout.epoch, stages[rank].host)
    executor = Executor(plan.layout, rank, endpoint, worker, tracer if trace else None)
    front.send(Ready(rank, time.perf_counter() - started_s, size))
    if lead is not None:
        lead.run(worker, executor)
    else:
        follow(endpoint, worker, executor, len(stages))
    front.send(_last_word(rank, endpoint, tracer, lead.rounds if lead else []))


def _last_word(rank: int, endpoint: Endpoint, tracer: Tracer, rounds: list[RoundRecipe]) -> Finished:
    sent = [0 if to == rank else endpoint.traffic(to).payload_bytes for to in range(endpoint.size)]
    return Finished(rank, tracer.encode(), sent, peak_memory_bytes(), rounds)


def peak_memory_bytes() -> int:
    """The most that this process has held resident.

    Linux's ru_maxrss starts with the peak of the process that started this one, so its own high-water mark is read.
    """
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _nobody(number: int, micro_batch: int, tokens: list[int]) -> None:
    raise AssertionError(f"tokens of {number}:{micro_batch} came to a rank that is not the first")


def _logits_to(front: Front) -> LogitsOf:
    return lambda request, position, values: front.send(Logits(request, position, values))


class _Reporter:
    """Tells the front how far loading is, a few times a second."""

    def __init__(self, rank: int, front: Front) -> None:
        self._rank, self._front, self._next_s = rank, front, 0.0

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        now_s = time.monotonic()
        if done_bytes == total_bytes or now_s >= self._next_s:
            self._next_s = now_s + _REPORT_EVERY_S
            self._front.send(Progress(self._rank, done_bytes, total_bytes))


def failure(rank: int, error: BaseException) -> Failed:
    """What the front is told of an error."""
    if isinstance(error, PlaitError):
        return Failed(rank, type(error).__name__, str(error), error.rank if isinstance(error, PeerLost) else None)
    return Failed(rank, "RunError", "".join(traceback.format_exception(error)), None)


def main() -> int:
    """The process: its only argument is the descriptor of the socket to the front."""
    channel: Channel[ToFront, ToRank] = Channel(socket.socket(fileno=int(sys.argv[1])), ToRank)
    rank = -1
    try:
        setup = channel.receive(wait=True)
        assert isinstance(setup, Setup)
        rank, plan = setup.rank, plan_from_text(setup.plan)
        torch.set_num_threads(plan.layout.stages[rank].threads)
        endpoint = ShmEndpoint.attach(cast(ShmDescription, setup.mesh))
        run_rank(rank, plan, WeightsIndex.from_bytes(setup.index), endpoint, channel, trace=setup.trace)
        endpoint.close()
    except EOFError:
        return 1  # the front is gone: nobody is left to tell
    except BaseException as error:
        with suppress(EOFError):
            channel.send(failure(rank, error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
