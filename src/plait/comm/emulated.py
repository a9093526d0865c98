"""Messages between hosts that are not there: over local sockets, each held back until it would have come.

A message keeps its link for bytes ÷ bandwidth, after those that were sent before it, and is there a latency later. Its
bytes go to the other process at once, with the moment from which they may be seen (all processes of a host have one
clock); the thread that reads them sleeps until then. So what this machine itself takes to carry them is a part of what
was asked for, but for the hand-over at the end: that is known (`HandOver`), and taken off.

The wire is shaped beneath the frames of `wire`: their headers, counters and answers travel as slowly as payloads. What
is not emulated: losses, the slow start of TCP, and the turn that gloo takes before a payload above 64 KiB.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import socket
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping
from datetime import timedelta
from struct import Struct
from typing import NamedTuple, Protocol

import torch

from plait.comm.wire import Work
from plait.errors import RunError
from plait.spec.cluster import Wire

_HEADER = Struct("<dqq")
"""Before every message: when it may be seen, its tag, its bytes."""

_TIMER_SLACK = 29
"""PR_SET_TIMERSLACK of prctl(2)."""


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


class Pace:
    """When what is sent now over a link may be seen at its other end, so that the rank has it when it should."""

    def __init__(self, wire: Wire, clock: Clock, own: HandOver) -> None:
        self._wire, self._clock, self._own = wire, clock, own

    def due_s(self, size_bytes: int) -> float:
        """On the clock of this host."""
        end_s = self._clock.occupy(size_bytes / self._wire.bandwidth)
        return end_s + self._wire.latency_s - self._own.seconds - size_bytes * self._own.byte_s


class ShapedMessages:
    """`Messages` (of `wire`) over a line to each other rank, which it takes over."""

    def __init__(self, lines: Mapping[int, Line]) -> None:
        self._lines = lines

    def send(self, tensors: list[torch.Tensor], dstRank: int, tag: int) -> Work:  # noqa: N803
        """See `Messages`."""
        return self._lines[dstRank].send(tensors[0], tag)

    def recv(self, tensors: list[torch.Tensor], srcRank: int, tag: int) -> Work:  # noqa: N803
        """See `Messages`. Receives of a rank are waited for in the order in which it sends."""
        return _Receive(self._lines[srcRank], tensors[0], tag)


class Line:
    """Both directions between this rank and another, over a connected local stream socket that becomes its own.

    `pace`: that of what is sent; None sends as fast as this machine can.
    """

    def __init__(self, connection: socket.socket, pace: Pace | None = None) -> None:
        self._connection, self._pace = connection, pace
        self._outbox = _Outbox(connection)
        self._precise = False
        weakref.finalize(self, connection.close)

    def send(self, tensor: torch.Tensor, tag: int) -> Work:
        """Begin to send the bytes of a tensor (uint8), which may not change until it is done. It never waits."""
        due_s = 0.0 if self._pace is None else self._pace.due_s(tensor.nbytes)
        return self._outbox.put(_HEADER.pack(due_s, tag, tensor.nbytes), tensor.numpy().data)

    def take(self, tensor: torch.Tensor, tag: int) -> None:
        """Wait for the next message, which fits into the tensor. Errors: RuntimeError where the connection is lost."""
        header = bytearray(_HEADER.size)
        self._read(memoryview(header))
        due_s, came, size = _HEADER.unpack(header)
        if came != tag or size > tensor.nbytes:
            raise RunError("what arrived is not what was to come: do all ranks run the same version of Plait?")
        self._read(tensor.numpy().data[:size])
        self._hold(due_s)

    def _read(self, into: memoryview) -> None:
        while into:
            try:
                count = self._connection.recv_into(into)
            except OSError as error:
                raise RuntimeError(str(error)) from error
            if not count:
                raise RuntimeError("the connection has ended")
            into = into[count:]

    def _hold(self, due_s: float) -> None:
        """Sleep until that moment."""
        if not self._precise:
            self._precise = True
            sleep_precisely()
        while (left_s := due_s - time.monotonic()) > 0:
            time.sleep(left_s)


class _Receive:
    """A receive that happens when it is waited for."""

    def __init__(self, line: Line, tensor: torch.Tensor, tag: int) -> None:
        self._line, self._tensor, self._tag = line, tensor, tag

    def wait(self, timeout: timedelta) -> bool:
        """See `Work`. Only the end of the connection ends it."""
        self._line.take(self._tensor, self._tag)
        return True


class _Sent:
    """A send, done once all of it is with the system. `error`: why it never will be."""

    def __init__(self, *parts: memoryview) -> None:
        self.left = [part for part in parts if part]
        self.done = threading.Event()
        self.error: OSError | None = None

    def wait(self, timeout: timedelta) -> bool:
        """See `Work`."""
        done = self.done.wait(timeout.total_seconds())
        if self.error is not None:
            raise RuntimeError(str(self.error)) from self.error
        return done

    def went(self, count: int) -> None:
        """So many bytes are with the system."""
        while self.left and count >= len(self.left[0]):
            count -= len(self.left.pop(0))
        if self.left:
            self.left[0] = self.left[0][count:]
        else:
            self.done.set()


class _Outbox:
    """Writes to a socket and never waits: what the system does not take at once is written by a thread, in order."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._queue: deque[_Sent] = deque()

    def put(self, *parts: bytes | memoryview) -> Work:
        """Write these one after another. Errors: RuntimeError where the connection is lost."""
        one = _Sent(*[memoryview(part) for part in parts])
        with self._lock:
            if not self._queue:
                self._try(one)
            if one.left:
                self._queue.append(one)
                if len(self._queue) == 1:
                    threading.Thread(target=self._write, name="outbox", daemon=True).start()
        return one

    def _try(self, one: _Sent) -> None:
        try:
            one.went(self._connection.sendmsg(one.left, (), socket.MSG_DONTWAIT))
        except BlockingIOError:
            pass
        except OSError as error:
            raise RuntimeError(str(error)) from error

    def _write(self) -> None:
        """Write what is queued; the thread ends with it."""
        while True:
            one = self._queue[0]
            try:
                while one.left:
                    one.went(self._connection.sendmsg(one.left))
            except OSError as error:
                self._give_up(error)
                return
            with self._lock:
                self._queue.popleft()
                if not self._queue:
                    return

    def _give_up(self, error: OSError) -> None:
        with self._lock:
            for one in self._queue:
                one.error = error
                one.done.set()
            self._queue.clear()


def sleep_precisely() -> None:
    """Let this thread sleep as long as it asks for: Linux lets others sleep up to 50 µs longer, to save power."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_TIMER_SLACK, ctypes.c_ulong(1), 0, 0, 0)
