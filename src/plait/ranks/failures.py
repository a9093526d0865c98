"""What a rank tells of an error, and what its process can say of itself."""

from __future__ import annotations

import resource
import sys
import traceback
from contextlib import suppress
from pathlib import Path

import msgspec

from plait.errors import PeerLost, PlaitError


class Failed(msgspec.Struct, tag="failed"):
    """A rank cannot go on. `kind` is an error of `plait.errors`. `lost` is the rank that died, where that is why."""

    rank: int
    kind: str
    message: str
    lost: int | None


def failure(rank: int, error: BaseException) -> Failed:
    """What the front is told of an error."""
    if isinstance(error, PlaitError):
        return Failed(rank, type(error).__name__, str(error), error.rank if isinstance(error, PeerLost) else None)
    return Failed(rank, "RunError", "".join(traceback.format_exception(error)), None)


def peak_memory_bytes() -> int:
    """The most that this process has held resident.

    Linux's ru_maxrss starts with the peak of the process that started this one, so its own high-water mark is read.
    """
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
