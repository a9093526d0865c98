"""Rank 0 of a mesh that a launcher has started: it asks the others what it needs, and starts sessions among them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TypeVar, cast

import msgspec
import torch

from plait import errors
from plait.comm.contract import Endpoint
from plait.comm.measure import measure_link
from plait.costs.protocol import LinkCost
from plait.errors import PeerLost, RunError, WaitTimeout
from plait.generation.launch import FrontChannel, RankChannel
from plait.generation.places import Places
from plait.generation.protocol import Finished, Logits, Progress, Ready, ToFront, Token, ToRank
from plait.generation.torchrun_hosts import Hosts
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
from plait.plans.file import dump_plan
from plait.plans.plan import Plan
from plait.ranks.channel import Channel
from plait.ranks.failures import Failed, failure
from plait.ranks.processes import EXIT_WAIT_S
from plait.ranks.same_model import Fingerprint
from plait.ranks.sampled import sampled
from plait.timeline.clock import Exchange, offset_from_exchanges
from plait.timeline.timeline import Clock
from plait.weights.index import WeightsIndex

Answer = TypeVar("Answer")

_ROUND_TRIPS = 50
_ANSWER_S = 60.0
_LISTEN_S = 0.02
_SETTLE_S = 0.3


class Mesh:
    """Rank 0's view of all ranks. The endpoint is the caller's thread's, or while `serving` the session's."""

    def __init__(self, endpoint: Endpoint, own: Greeting) -> None:
        self.endpoint, self.serving = endpoint, False
        self._encode = msgspec.msgpack.Encoder().encode
        self._decoder: msgspec.msgpack.Decoder[ToRankZero] = msgspec.msgpack.Decoder(ToRankZero)
        self._links: dict[tuple[int, int], LinkCost] = {}
        others = [self._answer(rank, Greeting) for rank in self.others]
        self.hosts = Hosts([own, *others])
        self.clocks: Mapping[str, Clock] = {self.hosts.name(rank): self._clock(rank) for rank in self.hosts.first_ranks}

    @property
    def others(self) -> range:
        """All ranks but this one."""
        return range(1, self.endpoint.size)

    def post(self, rank: int, message: FromRankZero) -> None:
        """Tell a rank."""
        self.endpoint.post(rank, self._encode(message))

    def poll(self, rank: int) -> ToRankZero | None:
        """What a rank says, if it has said something."""
        message = self.endpoint.poll(rank)
        return None if message is None else self._decoder.decode(message)

    def leave(self, *, failed: bool) -> None:
        """Let the others go."""
        for rank in self.others:
            self.post(rank, Leave(failed))

    def link(self, one: int, other: int) -> LinkCost:
        """The link between two ranks, measured by both once. What is sent keeps the card, not the rank."""
        pair = min(one, other), max(one, other)
        if pair not in self._links:
            self._links[pair] = self._measured(*pair)
        return self._links[pair]

    def await_loss(self, seconds: float) -> None:
        """See whether a rank is lost, for so long. Errors: PeerLost."""
        with suppress(WaitTimeout):
            self.endpoint.wait(lambda: None, "the end", seconds)

    def _measured(self, low: int, high: int) -> LinkCost:
        for rank, peer in ((low, high), (high, low)):
            if rank:
                self.post(rank, Measure(peer))
        if low == 0:
            cost = measure_link(self.endpoint, high)
            return LinkCost(cost.latency_s, cost.bandwidth_bytes_per_s, buffered=True)
        said = self._answer(low, Measured)
        return LinkCost(said.latency_s, said.bandwidth_bytes_per_s, buffered=True)

    def _clock(self, rank: int) -> Clock:
        return offset_from_exchanges([self._exchange(rank) for _ in range(_ROUND_TRIPS)])

    def _exchange(self, rank: int) -> Exchange:
        sent_s = time.perf_counter()
        self.post(rank, Ping())
        remote_s = self._answer(rank, Pong).clock_s
        return Exchange(sent_s, remote_s, time.perf_counter())

    def _answer(self, rank: int, kind: type[Answer]) -> Answer:
        message = self.endpoint.wait(lambda: self.poll(rank), f"an answer of rank {rank}", _ANSWER_S, (rank,))
        if isinstance(message, Failed):
            raise getattr(errors, message.kind, RunError)(f"rank {rank}: {message.message}")
        if not isinstance(message, kind):
            raise RunError(f"rank {rank} answered with {type(message).__name__}, not {kind.__name__}")
        return message


class TorchrunRanks:
    """The ranks of a mesh, as `launch.Ranks`: rank 0 is a thread here, which also passes on what the others say."""

    def __init__(self, plan: Plan, index: WeightsIndex, *, mesh: Mesh, trace: bool = True) -> None:
        self._mesh = mesh
        self.places = Places(mesh.hosts.names, mesh.clocks)
        self.channels: list[RankChannel] = []
        fronts: list[FrontChannel] = []
        for _ in range(plan.layout.ranks):
            mine, theirs = socket.socketpair()
            self.channels.append(Channel(mine, ToFront))
            fronts.append(Channel(theirs, ToRank))
        fingerprint, text = Fingerprint.of(index), dump_plan(plan)
        for rank in mesh.others:
            mesh.post(rank, Start(text, fingerprint, mesh.hosts.name(rank), trace))
        mesh.serving = True
        self._thread = threading.Thread(target=_lead, args=(plan, index, mesh, fronts, trace), daemon=True)
        self._thread.start()

    def death(self, rank: int) -> str | None:
        """See `Ranks`: rank 0 tells of every loss."""
        return None

    def stop(self) -> None:
        """See `Ranks`."""
        for channel in self.channels:
            channel.shut_down()
        self._thread.join(EXIT_WAIT_S)
        self._mesh.serving = self._thread.is_alive()
        for channel in self.channels:
            channel.close()


class _Relay:
    """The front of rank 0 (`lead.Front`), which also tells it what the other ranks say."""

    def __init__(self, mesh: Mesh, fronts: Sequence[FrontChannel]) -> None:
        self._mesh, self._fronts = mesh, fronts
        self._running = set(mesh.others)

    def send(self, message: ToFront) -> None:
        """See `lead.Front`."""
        self._fronts[0].send(message)

    def receive(self, *, wait: bool) -> ToRank | None:
        """See `lead.Front`. Once a round, or while it waits, the others' words are passed on."""
        while True:
            if not wait:
                return self._next()
            with suppress(WaitTimeout):
                return cast(ToRank, self._mesh.endpoint.wait(self._next, "the front", _LISTEN_S))

    def finish(self) -> None:
        """Pass on what the others say until all have finished. Errors: PeerLost, WaitTimeout."""
        self._mesh.endpoint.wait(self._over, "the other ranks to finish")

    def settle(self) -> None:
        """Pass on what the others still said before something broke."""
        end_s = time.monotonic() + _SETTLE_S
        while time.monotonic() < end_s:
            self._relay()
            time.sleep(_SETTLE_S / 10)

    def _next(self) -> ToRank | None:
        self._relay()
        return self._fronts[0].receive(wait=False)

    def _over(self) -> bool | None:
        self._relay()
        return not self._running or None

    def _relay(self) -> None:
        for rank in self._mesh.others:
            while (message := self._mesh.poll(rank)) is not None:
                if not isinstance(message, Progress | Ready | Token | Logits | Finished | Failed):
                    raise RunError(f"rank {rank} said {type(message).__name__} during a session")
                if isinstance(message, Finished):
                    self._running.discard(rank)
                self._fronts[rank].send(message)


def _lead(plan: Plan, index: WeightsIndex, mesh: Mesh, fronts: Sequence[FrontChannel], trace: bool) -> None:
    """The thread of rank 0: the endpoint's only one meanwhile."""
    from plait.generation.rank import run_rank

    relay = _Relay(mesh, fronts)
    torch.set_num_threads(plan.layout.stages[0].threads)
    try:
        with sampled(trace) as sampler:
            run_rank(0, plan, index, mesh.endpoint, relay, trace=trace, host=mesh.hosts.name(0), sampler=sampler)
        relay.finish()
    except BaseException as error:
        with suppress(EOFError):
            relay.settle()
            relay.send(failure(0, error))
        mesh.endpoint.fail(f"{type(error).__name__}: {error}", error.rank if isinstance(error, PeerLost) else None)
    finally:
        for front in fronts:
            front.close()
