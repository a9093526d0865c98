"""The memory of a rank's process, from before it loads anything to its last word."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from plait.prober.host import free_memory_here
from plait.tracer.memory import MemorySampler


@contextmanager
def sampled(wanted: bool = True) -> Iterator[MemorySampler | None]:
    """Of this process, whose limit is what is free on the host now; None where it is not `wanted`."""
    if not wanted:
        yield None
        return
    with MemorySampler(free_memory_here()) as sampler:
        yield sampler
