"""Messages between hosts that are not there: over local sockets, each held back until it would have come.

A message keeps its link for bytes ÷ bandwidth, after those that were sent before it, and is there a latency later. Its
bytes go to the other process at once, with the moment from which they may be seen (all processes of a host have one
clock); who reads them waits until then. So what this machine itself takes to carry them is a part of what was asked
for, but for the hand-over at the end: that is known (`HandOver`), and taken off.

It is the frames of `wire` that are held back: their heads, counters and answers travel as slowly as payloads. What is
not emulated: losses, and the slow start of TCP.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
import time
import weakref
from typing import NamedTuple, Protocol

from plait.spec.cluster import Wire


class Clock(Protocol):
    """Until when a directed link is busy."""

    def occupy(self, seconds: float) -> float:
        """Keep the link for so long, once it is free; the moment when that ends."""


class SharedClocks:
    """The links between `hosts` hosts: until when each is busy, in a file that all ranks have open.

    Ranks of one host send over one wire, and wait for each other on it.
    """

    def __init__(self, descriptor: int, hosts: int) -> None:
        self._descriptor, self._hosts = descriptor, hosts
        self._map = mmap.mmap(descriptor, clocks_bytes(hosts))
        self._free_s = memoryview(self._map).cast("d")
        self._lock = threading.Lock()  # the file's locks are between processes alone
        weakref.finalize(self, os.close, descriptor)

    def of(self, source: int, target: int) -> Clock:
        """That of the link between two hosts."""
        return _SharedClock(self, source * self._hosts + target)

    def occupy(self, at: int, seconds: float) -> float:
        """See `Clock`, of link number `at`."""
        with self._lock:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX, 8, 8 * at)
            try:
                end_s = max(time.monotonic(), self._free_s[at]) + seconds
                self._free_s[at] = end_s
            finally:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 8, 8 * at)
        return end_s


def clocks_bytes(hosts: int) -> int:
    """Size of the file of `SharedClocks`."""
    return 8 * hosts * hosts


class _SharedClock:
    """One of them."""

    def __init__(self, clocks: SharedClocks, at: int) -> None:
        self._clocks, self._at = clocks, at

    def occupy(self, seconds: float) -> float:
        """See `Clock`."""
        return self._clocks.occupy(self._at, seconds)


class HandOver(NamedTuple):
    """What this machine itself takes of a message's time: to hand it over at its due moment, and to copy each byte."""

    seconds: float = 0.0
    byte_s: float = 0.0


NO_HAND_OVER = HandOver()


class WirePace:
    """`Pace` of a link: when what is sent now may be seen at its other end, so that the rank has it when it should."""

    def __init__(self, wire: Wire, clock: Clock, own: HandOver) -> None:
        self._wire, self._clock, self._own = wire, clock, own

    def due_s(self, size_bytes: int) -> float:
        """On the clock of this host."""
        end_s = self._clock.occupy(size_bytes / self._wire.bandwidth)
        return end_s + self._wire.latency_s - self._own.seconds - size_bytes * self._own.byte_s
