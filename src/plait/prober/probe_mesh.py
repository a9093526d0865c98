"""A probe among the ranks of a mesh: rank 0 says who measures what, one thing after another, and collects the answers.

greetings ──> clocks of the other hosts ──> devices, all at once ──> pairs of ranks, one at a time
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import TypeVar

import msgspec

from plait.comm.contract import Endpoint
from plait.errors import CapacityError, RunError
from plait.prober.probe_device import PROCESS_BYTES, measured_bytes, probe_device, weight_bytes_of
from plait.prober.probe_links import LINK_BYTES, probe_pair
from plait.prober.probe_messages import (
    Answer,
    Compute,
    Computed,
    Greeting,
    Leave,
    Order,
    Pair,
    PairDone,
    Ping,
    Pong,
)
from plait.prober.probed import FoundDevice, FoundLink, Probed
from plait.timeline.clock import Exchange, offset_from_exchanges
from plait.timeline.timeline import Clock
from plait.units import format_bytes

Say = Callable[[str], None]
Kind = TypeVar("Kind")

_ROUND_TRIPS = 50
_ANSWER_S, _IDLE_S = 120.0, 86400.0
_ALONE_COMPUTES, _COMPUTES = 0.9, 0.3
"""Of the seconds of a probe, devices get this part: of one rank alone, or of several."""

_MOST_PAIR_S = 5.0


def follow_probe(endpoint: Endpoint, greeting: Greeting) -> None:
    """What every rank but rank 0 does: as it is told, until nothing follows. Errors: PeerLost, or its own."""
    encode, decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(Order).decode
    answer: Answer = greeting
    while True:
        endpoint.post(0, encode(answer))
        order = decode(endpoint.wait(lambda: endpoint.poll(0), "the next word of rank 0", _IDLE_S, (0,)))
        match order:
            case Ping():
                answer = Pong(time.time())
            case Compute():
                answer = probe_device(endpoint, order, greeting.threads, greeting.cores)
            case Pair():
                answer = probe_pair(endpoint, order.peer, order.budget_s)
            case Leave():
                return


def lead_probe(endpoint: Endpoint, greeting: Greeting, seconds: float, say: Say, emulated: str | None = None) -> Probed:
    """Rank 0: a probe that takes about `seconds`. Errors: CapacityError where memory does not do; PeerLost."""
    begin_s = time.monotonic()
    lead = _Lead(endpoint, greeting, say)
    weight_bytes = lead.require_memory()
    clocks = lead.clocks()
    pairs = list(combinations(range(endpoint.size), 2))
    computed = lead.computed(seconds * (_COMPUTES if pairs else _ALONE_COMPUTES), weight_bytes)
    pair_s = min(_MOST_PAIR_S, seconds * (1 - _COMPUTES) / max(1, len(pairs)))
    links = [link for number, pair in enumerate(pairs) for link in lead.pair(*pair, pair_s, number, len(pairs))]
    lead.leave()
    devices = [FoundDevice(rank, one) for rank, one in zip(lead.greetings, computed, strict=True)]
    links.sort(key=lambda link: (link.source, link.target))
    return Probed(devices, links, clocks, time.time(), time.monotonic() - begin_s, emulated)


class _Lead:
    """Rank 0's side."""

    def __init__(self, endpoint: Endpoint, own: Greeting, say: Say) -> None:
        self._endpoint, self._say = endpoint, say
        self._encode = msgspec.msgpack.Encoder().encode
        self._decoder: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
        self.greetings = [own, *(self._answer(rank, Greeting) for rank in self._others)]

    @property
    def _others(self) -> Sequence[int]:
        return range(1, self._endpoint.size)

    def require_memory(self) -> int:
        """Bytes of weights of each dtype in each rank. Errors: CapacityError where a machine has no room for them."""
        machines: dict[int, list[Greeting]] = {}
        for one in self.greetings:
            machines.setdefault(one.machine, []).append(one)
        for ranks in machines.values():
            require_memory(len(ranks), min(one.free_bytes for one in ranks), ranks[0].name)
        return weight_bytes_of(max(map(len, machines.values())))

    def clocks(self) -> Mapping[int, Clock]:
        """Of the first rank of every host but rank 0's, against rank 0."""
        firsts: dict[int, int] = {}
        for one in self.greetings:
            firsts.setdefault(one.host, one.rank)
        return {host: self._clock(rank) for host, rank in firsts.items() if rank}

    def computed(self, budget_s: float, weight_bytes: int) -> Sequence[Computed]:
        """All devices at once."""
        ranks = self._endpoint.size
        self._say("measuring the device" if ranks == 1 else f"measuring {ranks} devices, all at the same time")
        order = Compute(budget_s, weight_bytes)
        for rank in self._others:
            self._post(rank, order)
        own = probe_device(self._endpoint, order, self.greetings[0].threads, self.greetings[0].cores)
        return [own, *(self._answer(rank, Computed) for rank in self._others)]

    def pair(self, low: int, high: int, budget_s: float, number: int, count: int) -> Sequence[FoundLink]:
        """Both links between two ranks."""
        self._say(f"measuring links between ranks {low} and {high} (pair {number + 1} of {count})")
        for rank, peer in ((low, high), (high, low)):
            if rank:
                self._post(rank, Pair(peer, budget_s))
        there = probe_pair(self._endpoint, high, budget_s) if low == 0 else self._answer(low, PairDone)
        back = self._answer(high, PairDone)
        return _link(low, high, there, back), _link(high, low, back, there)

    def leave(self) -> None:
        """Let the others go."""
        for rank in self._others:
            self._post(rank, Leave())

    def _clock(self, rank: int) -> Clock:
        return offset_from_exchanges([self._exchange(rank) for _ in range(_ROUND_TRIPS)])

    def _exchange(self, rank: int) -> Exchange:
        sent_s = time.time()
        self._post(rank, Ping())
        return Exchange(sent_s, self._answer(rank, Pong).clock_s, time.time())

    def _post(self, rank: int, order: Order) -> None:
        self._endpoint.post(rank, self._encode(order))

    def _answer(self, rank: int, kind: type[Kind]) -> Kind:
        endpoint = self._endpoint
        answer = self._decoder.decode(
            endpoint.wait(lambda: endpoint.poll(rank), f"an answer of rank {rank}", _ANSWER_S, (rank,))
        )
        if not isinstance(answer, kind):
            raise RunError(f"rank {rank} answered with {type(answer).__name__}, not {kind.__name__}")
        return answer


def _link(source: int, target: int, sender: PairDone, receiver: PairDone) -> FoundLink:
    return FoundLink(source, target, sender.sent.latency_s, receiver.received_bytes_per_s, sender.sent.points)


def require_memory(ranks: int, free_bytes: int, name: str) -> None:
    """Errors: CapacityError where so many ranks of a machine cannot be measured at the same time."""
    each = _rank_bytes(ranks)
    if ranks * each <= free_bytes:
        return
    raise CapacityError(
        f"measuring {ranks} rank{'s' if ranks > 1 else ''} of {name} at the same time needs "
        f"{format_bytes(ranks * each)} of memory ({format_bytes(each)} each), and {format_bytes(free_bytes)} are free: "
        f"{format_bytes(ranks * each - free_bytes)} short; {_instead(free_bytes)}"
    )


def _instead(free_bytes: int) -> str:
    fitting = _fitting(free_bytes)
    return f"measure no more than {fitting}, as in --ranks {fitting}" if fitting else "end other programs first"


def _fitting(free_bytes: int) -> int:
    ranks = 0
    while (ranks + 1) * _rank_bytes(ranks + 1) <= free_bytes:
        ranks += 1
    return ranks


def _rank_bytes(ranks: int) -> int:
    """Of each of so many ranks of a machine."""
    return PROCESS_BYTES + measured_bytes(ranks) + (ranks - 1) * LINK_BYTES
