"""Ranks on a virtual clock: the executor's own code runs, and time passes only where a test says so.

One global clock. Each rank is a thread, but only one runs at a time: it has the baton until it computes for some
virtual seconds or waits for a message; then the rank whose moment comes first goes on. Runs are exact and
repeatable, and take no real time.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from plait.comm.contract import Tag, Traffic
from plait.errors import RunError

T = TypeVar("T")

TransferTime = Callable[[int, int, int], tuple[float, float]]
"""(source, to, bytes) to (seconds on the link, latency)."""


class VirtualWorld:
    """`size` ranks on one virtual clock, links of `capacity` messages with the given transfer times."""

    def __init__(self, size: int, capacity: int, transfer: TransferTime) -> None:
        self.size, self.capacity, self.transfer = size, capacity, transfer
        self.now = 0.0
        self._order = itertools.count()
        self._events: list[tuple[float, int, int]] = []
        self._batons = [threading.Semaphore(0) for _ in range(size)]
        self._idle = threading.Semaphore(0)
        self._blocked: set[int] = set()
        self._finished: set[int] = set()
        self._failure: BaseException | None = None
        self.links: dict[tuple[int, int], VirtualLink] = {}

    def link(self, source: int, to: int) -> VirtualLink:
        """The directed link between two ranks."""
        return self.links.setdefault((source, to), VirtualLink())

    def run(self, bodies: Sequence[Callable[[], None]]) -> None:
        """Run one body a rank to its end. Errors: the first error of a body; RunError where all wait for ever."""
        threads = [threading.Thread(target=self._body, args=(rank, body)) for rank, body in enumerate(bodies)]
        for rank, thread in enumerate(threads):
            thread.start()
            self.at(0.0, rank)
        while len(self._finished) < self.size and self._failure is None:
            if not self._events:
                self._failure = RunError(f"deadlock: ranks {sorted(self._blocked)} wait for messages that nobody sends")
                break
            moment, _, rank = heapq.heappop(self._events)
            if rank in self._finished:
                continue
            self.now = max(self.now, moment)
            self._batons[rank].release()
            self._idle.acquire()
        for baton in self._batons:
            baton.release()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def at(self, moment: float, rank: int) -> None:
        """Give `rank` the baton at a moment."""
        heapq.heappush(self._events, (moment, next(self._order), rank))

    def sleep(self, rank: int, duration_s: float) -> None:
        """`rank` computes for some virtual seconds."""
        moment = self.now + duration_s
        while self.now < moment:
            self.at(moment, rank)
            self.hand_over(rank)

    def hand_over(self, rank: int) -> None:
        """Let others run until an event wakes `rank`."""
        self._blocked.add(rank)
        self._idle.release()
        self._batons[rank].acquire()
        self._blocked.discard(rank)
        if self._failure is not None:
            raise _Abandoned

    def _body(self, rank: int, body: Callable[[], None]) -> None:
        self._batons[rank].acquire()
        try:
            if self._failure is None:
                body()
        except _Abandoned:
            return
        except BaseException as error:
            self._failure = self._failure or error
        self._finished.add(rank)
        self._idle.release()


class _Abandoned(Exception):
    """Ends a thread of a world that failed; nobody sees it."""


class VirtualLink:
    """What lies on a directed link, and when it arrives."""

    def __init__(self) -> None:
        self.free_at = 0.0
        self.messages: dict[Tag, tuple[float, torch.Tensor]] = {}
        self.sent = Traffic(0, 0, 0, 0)


class VirtualMessages:
    """One rank's side of a virtual world; the executor's `Messages`."""

    def __init__(self, world: VirtualWorld, rank: int) -> None:
        self._world, self._rank = world, rank
        self.idle: Callable[[], None] | None = None

    def clock(self) -> float:
        """Virtual seconds."""
        return self._world.now

    def try_send(self, to: int, tag: Tag, tensor: torch.Tensor) -> bool:
        """False while the link holds `capacity` messages."""
        world, link = self._world, self._world.link(self._rank, to)
        if len(link.messages) >= world.capacity:
            return False
        on_link, latency = world.transfer(self._rank, to, tensor.numel() * tensor.element_size())
        link.free_at = max(world.now, link.free_at) + on_link
        arrival = link.free_at + latency
        link.messages[tag] = (arrival, tensor.clone())
        size = link.sent.payload_bytes + tensor.numel() * tensor.element_size()
        link.sent = Traffic(link.sent.messages + 1, size, 0, 0)
        world.at(arrival, to)
        return True

    def traffic(self, to: int) -> Traffic:
        """What went to `to` so far."""
        return self._world.link(self._rank, to).sent

    def try_receive(self, source: int, tag: Tag) -> torch.Tensor | None:
        """The message, once its time has come."""
        link = self._world.link(source, self._rank)
        arrival, tensor = link.messages.get(tag, (float("inf"), None))
        if arrival > self._world.now or tensor is None:
            return None
        del link.messages[tag]
        self._world.at(self._world.now, source)
        return tensor

    def wait(self, ready: Callable[[], T | None], what: str, timeout_s: float = 0.0, peers: Sequence[int] = ()) -> T:
        """Wait in virtual time, which has no limit: a wait for ever ends the world."""
        while (result := ready()) is None:
            self._world.hand_over(self._rank)
        return result
