"""What every rank but rank 0 does under torchrun: as rank 0 says, silently, until it may leave."""

from __future__ import annotations

import platform
import time

import msgspec
import torch

from plait.comm.contract import Endpoint
from plait.comm.launcher import Environment
from plait.comm.measure import measure_link
from plait.errors import PeerLost
from plait.generation.follower import IDLE_S
from plait.generation.planning import Options, model_name
from plait.generation.protocol import ToFront, ToRank
from plait.generation.rank import run_rank
from plait.generation.torchrun_protocol import (
    FromRankZero,
    Greeting,
    Leave,
    Measure,
    Measured,
    Ping,
    Pong,
    Start,
    ToRankZero,
)
from plait.plans.file import plan_from_text
from plait.prober.host import free_memory_here, usable_cores
from plait.ranks.failures import failure
from plait.ranks.same_model import Fingerprint, require_same
from plait.ranks.sampled import sampled
from plait.weights.index import open_index
from plait.weights.source import resolve_model


def greeting(here: Environment) -> Greeting:
    """What this rank has."""
    return Greeting(here.rank, here.host, platform.node(), here.local_size, usable_cores(), free_memory_here())


class FollowerRank:
    """One of them. As a front (`lead.Front`) it posts to rank 0, which tells the real one."""

    def __init__(self, endpoint: Endpoint, options: Options) -> None:
        self._endpoint, self._options = endpoint, options
        self._encode = msgspec.msgpack.Encoder().encode

    def serve(self, here: Environment) -> bool:
        """Do as rank 0 says to the end; whether it ended well. Errors: whatever this rank failed with; PeerLost."""
        endpoint = self._endpoint
        decode = msgspec.msgpack.Decoder(FromRankZero).decode
        self._post(greeting(here))
        while True:
            message = decode(endpoint.wait(lambda: endpoint.poll(0), "the next word of rank 0", IDLE_S, (0,)))
            match message:
                case Ping():
                    self._post(Pong(time.perf_counter()))
                case Measure():
                    self._measure(message.peer)
                case Start():
                    self._start(message)
                case Leave():
                    return not message.failed

    def send(self, message: ToFront) -> None:
        """See `lead.Front`."""
        self._post(message)

    def receive(self, *, wait: bool) -> ToRank | None:
        """See `lead.Front`: the front speaks to rank 0 only."""
        return None

    def _post(self, message: ToRankZero) -> None:
        self._endpoint.post(0, self._encode(message))

    def _measure(self, peer: int) -> None:
        cost = measure_link(self._endpoint, peer)
        if 0 < self._endpoint.rank < peer:
            self._post(Measured(cost.latency_s, cost.bandwidth_bytes_per_s))

    def _start(self, start: Start) -> None:
        rank, plan = self._endpoint.rank, plan_from_text(start.plan)
        try:
            index = open_index(resolve_model(model_name(self._options, plan)).path)
            require_same(Fingerprint.of(index), start.fingerprint, index.source)
            torch.set_num_threads(plan.layout.stages[plan.layout.stage_of(rank)].threads)
            with sampled(start.trace) as sampler:
                run_rank(rank, plan, index, self._endpoint, self, trace=start.trace, host=start.host, sampler=sampler)
        except PeerLost:
            raise
        except Exception as error:
            self._post(failure(rank, error))
            raise
