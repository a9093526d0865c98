"""Samples what a rank's process holds in memory while it works: a thread that looks every 20 ms, and sends nothing.

A look reads one short file of the system, 5 µs; with the thread's waking it took 70 µs on two cores that eight others
shared, which is 0.35 % of a core. Where the samples become too many, neighbours are put together, their lowest and
highest kept (`timeline.memory.thin`).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from types import TracebackType

import psutil

from plait.timeline.memory import thin
from plait.timeline.timeline import MemoryTrack

EVERY_S = 0.02
MOST_SAMPLES = 4096
"""Held at a time: 80 s of them before the first are put together."""

Read = Callable[[], int]


class ResidentMemory:
    """Bytes of this process that are in memory: shared ones, and files that are mapped, among them."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        try:
            self._file: int | None = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = None  # not Linux

    def __call__(self) -> int:
        """Now."""
        if self._file is None:
            return int(self._process.memory_info().rss)
        return int(os.pread(self._file, 64, 0).split()[1]) * self._page_bytes

    def close(self) -> None:
        """Let the file go."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


class MemorySampler:
    """The memory of one process over time. Use it as a context manager: leaving ends its thread.

    Made after the imports and before anything is loaded: what the process holds then is `MemoryTrack.base_bytes`.
    `free_bytes`: what is free for it then; with what it holds it is the track's limit. Times are those of the tracer's
    clock. `read`: the bytes held, at a time.
    """

    def __init__(self, free_bytes: int | None = None, read: Read | None = None, every_s: float = EVERY_S) -> None:
        self._own = ResidentMemory() if read is None else None
        self._read: Read = read or self._own or (lambda: 0)
        self._every_s, self._lock, self._over = every_s, threading.Lock(), threading.Event()
        self._times_s: list[float] = []
        self._used_bytes: list[int] = []
        self.base_bytes = self._read()
        self._limit = None if free_bytes is None else self.base_bytes + free_bytes
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)

    def __enter__(self) -> MemorySampler:
        self.sample()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if self._own is not None:
            self._own.close()

    def sample(self) -> None:
        """Look once, now."""
        with self._lock:
            self._times_s.append(time.perf_counter())
            self._used_bytes.append(self._read())
            if len(self._times_s) > MOST_SAMPLES:
                self._times_s, self._used_bytes = thin(self._times_s, self._used_bytes, MOST_SAMPLES // 2)

    def take(self) -> MemoryTrack:
        """What was seen since this was last asked, and now; the next track begins with the last sample of this one."""
        self.sample()
        with self._lock:
            times_s, used_bytes = thin(self._times_s, self._used_bytes)
            self._times_s, self._used_bytes = self._times_s[-1:], self._used_bytes[-1:]
        return MemoryTrack(tuple(times_s), tuple(used_bytes), self._limit, self.base_bytes)

    def _run(self) -> None:
        while True:
            time.sleep(self._every_s)  # an Event's wait takes half as much again
            if self._over.is_set():
                return
            self.sample()
