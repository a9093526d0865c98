"""The memory that the ranks of one host share: one anonymous file, mapped by each, and what lies where in it.

The file has no name, so nothing is left of it when the last process that holds its descriptor ends, however it ends.
It is sparse: pages that no message ever touched take no memory, so that slots can be generous.

# What orders loads and stores between processes

Counters are 8-byte words, aligned, each written by one rank only, and accessed through a memoryview of 64-bit words:
one machine load or store each. Three orders matter.

1. *Publish*: a writer fills a slot, then raises a counter; a reader sees the counter, then reads the slot. x86 keeps
   stores in order and loads in order, so plain accesses do. ARM keeps neither: there both sides put a fence between.
2. *Reuse*: a reader reads a slot, then raises its own counter, which lets the writer fill the slot again. x86 never
   moves a store before an earlier load; ARM needs the same fence.
3. *Sleep*: a sleeper stores "I sleep", then looks at the counters a last time; a writer raises its counter, then looks
   whether someone sleeps. If either's load overtook its own store, both would miss each other. x86 does allow that one,
   so here a full fence stands on both sides, on every machine.

Python has no fence, but releasing and taking a lock that nobody else wants is one: on x86 both are locked
instructions, on ARM a store-release followed by a load-acquire, which the architecture keeps in order (RCsc). It takes
80 ns. As belt and braces a sleeper looks again every 20 ms anyway.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import tempfile
import threading
from collections.abc import Callable
from typing import NamedTuple

LINE_BYTES = 128  # two cache lines: processors fetch them in pairs
PAGE_BYTES = 4096
CONTROL_BYTES = 1 << 16
RANK_BYTES = 1024

STRONG_ORDER = platform.machine().lower() in ("x86_64", "amd64", "i686")
"""Whether the processor itself keeps orders 1 and 2."""

move: Callable[[int, int, int], None] = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(
    ctypes.cast(ctypes.memmove, ctypes.c_void_p).value or 0
)
"""memmove(to, from, bytes) by address, the GIL kept: 60 ns less than ctypes.memmove, and our pieces are small."""


def make_fence(lock: threading.Lock) -> Callable[[], None]:
    """A full memory fence (see above), by a lock that this takes for ever and nobody else wants."""
    lock.acquire()
    release, take = lock.release, lock.acquire

    def fence() -> None:
        release()
        take()

    return fence


class Place(NamedTuple):
    """Where the parts of one directed link lie, in bytes from the start of the region."""

    base: int
    capacity: int
    slot_bytes: int

    # counters, each side's in its own line; the producer is the rank that sends
    @property
    def started(self) -> int:
        """Messages that the producer has put on the link."""
        return self.base

    @property
    def taken(self) -> int:
        """Messages that the consumer has received or dropped, and behind it how many it dropped."""
        return self.base + LINE_BYTES

    @property
    def control_written(self) -> int:
        """Bytes of control messages that the producer has written."""
        return self.base + 2 * LINE_BYTES

    @property
    def control_read(self) -> int:
        """Bytes of control messages that the consumer has read."""
        return self.base + 3 * LINE_BYTES

    @property
    def call(self) -> int:
        """Number of the producer's last collective step with the consumer, and behind it what the step is."""
        return self.base + 4 * LINE_BYTES

    def slot(self, index: int) -> int:
        """Of message slot `index`: bytes written, in the next line bytes read, in the one after it the header."""
        return self.base + (5 + 3 * index) * LINE_BYTES

    @property
    def control_ring(self) -> int:
        """The bytes of control messages."""
        return _page(self.slot(self.capacity))

    def call_slot(self, parity: int) -> int:
        """The payload of collective steps, of which two lie side by side."""
        return self.control_ring + CONTROL_BYTES + parity * self.slot_bytes

    def slot_data(self, index: int) -> int:
        """The payload of message slot `index`."""
        return self.call_slot(2 + index)

    @property
    def end(self) -> int:
        """The first byte behind the link."""
        return self.slot_data(self.capacity)


class Layout(NamedTuple):
    """What lies where in the region of a mesh."""

    size: int
    capacity: int
    slot_bytes: int

    def sleeps(self, rank: int) -> int:
        """Whether the rank sleeps and wants to be woken."""
        return rank * RANK_BYTES

    def state(self, rank: int) -> int:
        """How the rank has left, in words as `bells` writes them."""
        return rank * RANK_BYTES + LINE_BYTES

    def link(self, source: int, to: int) -> Place:
        """The directed link between two ranks."""
        first = Place(_page(self.size * RANK_BYTES), self.capacity, self.slot_bytes)
        return first._replace(base=first.base + (source * self.size + to) * (first.end - first.base))

    @property
    def total_bytes(self) -> int:
        """Size of the region."""
        return self.link(self.size, 0).base


class Region:
    """The mapped memory: `words` for counters, `bytes` for headers, `address` for payloads."""

    def __init__(self, descriptor: int, layout: Layout) -> None:
        self._map = mmap.mmap(descriptor, layout.total_bytes)
        self._anchor = ctypes.c_char.from_buffer(self._map)
        self.address = ctypes.addressof(self._anchor)
        self.bytes = memoryview(self._map)
        self.words = self.bytes.cast("q")


def create_region(layout: Layout) -> int:
    """The descriptor of a new region, zeroed."""
    descriptor = anonymous_file()
    os.ftruncate(descriptor, layout.total_bytes)
    return descriptor


def anonymous_file() -> int:
    """The descriptor of a new empty file without a name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("plait")
    # macOS: a temporary file that is unlinked at once has no name either; its pages may reach the disk
    descriptor, path = tempfile.mkstemp(prefix="plait")
    os.unlink(path)
    return descriptor


def _page(offset: int) -> int:
    return -(-offset // PAGE_BYTES) * PAGE_BYTES
