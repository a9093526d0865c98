"""Sleeping in the kernel until something is there to be heard, from other processes or at a moment that is known."""

from __future__ import annotations

import ctypes
import select
import sys
import time
from collections.abc import Callable

_LONGEST_S = 1e6
"""poll() counts milliseconds in 32 bits: who sleeps longer wakes, looks, and sleeps again."""

_TIMER_SLACK = 29
"""PR_SET_TIMERSLACK of prctl(2)."""


class Sleeper:
    """What one thread sleeps on: descriptors, and whoever knows a moment at which there will be something."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._heard: dict[int, Callable[[], bool]] = {}
        self._timed: list[tuple[Callable[[], float | None], Callable[[], bool]]] = []
        self._spin_s = 0.0
        self._precise = False

    def watch(self, descriptor: int, heard: Callable[[], bool]) -> None:
        """Wake when the descriptor can be read and call `heard`, until that returns False."""
        self._heard[descriptor] = heard
        self._poll.register(descriptor, select.POLLIN)

    def forget(self, descriptor: int) -> None:
        """Do not watch it any more, if it was watched."""
        if self._heard.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    def watch_clock(self, due_s: Callable[[], float | None], heard: Callable[[], bool], spin_s: float = 0.0) -> None:
        """Wake when the monotonic clock is where `due_s` says (None: nothing is due), and call `heard`.

        For the last `spin_s` before that moment it does not sleep: waking up takes some 50 µs.
        """
        self._timed.append((due_s, heard))
        self._spin_s = max(self._spin_s, spin_s)

    def sleep(self, timeout_s: float) -> None:
        """Sleep until something was heard, or time is up; 11 days at most."""
        due = [at for due_s, _ in self._timed if (at := due_s()) is not None]
        if not due:
            readable = [descriptor for descriptor, _ in self._poll.poll(min(timeout_s, _LONGEST_S) * 1e3)]
        else:
            readable = self._sleep_until(min(due), timeout_s)
            now_s = time.monotonic()
            for due_s, heard in self._timed:
                if (at := due_s()) is not None and at <= now_s:
                    heard()
        for descriptor in readable:
            if (heard_of := self._heard.get(descriptor)) is not None and not heard_of():
                self.forget(descriptor)

    def _sleep_until(self, due_s: float, timeout_s: float) -> list[int]:
        """select() counts microseconds, where poll() counts milliseconds."""
        if not self._precise:
            self._precise = True
            let_sleep_precisely()
        left_s = min(due_s - time.monotonic(), timeout_s)
        readable: list[int] = select.select(list(self._heard), (), (), max(0.0, left_s - self._spin_s))[0]
        if not readable and due_s - time.monotonic() <= self._spin_s:
            while time.monotonic() < due_s:
                pass
        return readable


def let_sleep_precisely() -> None:
    """Let this thread sleep as long as it asks for: Linux lets others sleep up to 50 µs longer, to save power."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_TIMER_SLACK, ctypes.c_ulong(1), 0, 0, 0)
