"""One link between two processes: a stream of frames to and from one other rank, over a connection of its own.

Sends start in the caller's thread and never wait (`outbox`). What has come is heard by whoever looks: the rank's own
thread where it waits or asks, and `ears` while it computes.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import torch

from plait.comm.calls import code_of
from plait.comm.frames import NOTHING, Counters, Frame, Kind, head_bytes, pack
from plait.comm.intake import Intake, bytes_of
from plait.comm.outbox import Outbox
from plait.errors import RunError

BYTES = code_of(torch.uint8)


class Pace(Protocol):
    """How an emulated link holds frames back."""

    def due_s(self, size_bytes: int) -> float:
        """When a frame that is sent now may be seen, on the monotonic clock of this host."""


class Wire:
    """The frames between this rank and another over a connected stream socket, which it takes over.

    `counters` gives what was taken and dropped. `heard(frame, payload)` is called for every frame that comes, with
    `lock` held, by whoever looks; nothing is heard any more after it has returned False. `lost(text)` is called where
    the connection breaks. `pace`: None sends as fast as the connection can.
    """

    def __init__(
        self,
        connection: socket.socket,
        counters: Callable[[], tuple[int, int]],
        heard: Callable[[Frame, torch.Tensor], bool],
        lost: Callable[[str], None],
        pace: Pace | None = None,
    ) -> None:
        self.lock = threading.RLock()
        self.acked = 0
        """Messages that the other side knows to be taken."""
        self.ended = False
        """Nothing comes any more."""
        self.sent_frames = 0
        self._connection, self._pace = connection, pace
        self._counters, self._heard, self._lost = counters, heard, lost
        self._outbox, self._intake = Outbox(connection), Intake(connection)
        self._coming: deque[tuple[Frame, torch.Tensor]] = deque()
        self._closed = False
        self._broke: str | None = None

    @property
    def descriptor(self) -> int:
        """What can be read when something comes."""
        return self._connection.fileno()

    @property
    def read_bytes(self) -> int:
        """All that has come so far."""
        return self._intake.read_bytes

    # --- sending ----------------------------------------------------------------------------------------

    def send(
        self,
        kind: Kind,
        words: tuple[int, int, int] = (0, 0, 0),
        code: int = BYTES,
        tensor: torch.Tensor = NOTHING,
        *,
        owned: bool = False,
    ) -> None:
        """Send a frame with a contiguous tensor of host memory. It never waits.

        The caller may change the tensor afterwards unless it is `owned`. Where the connection is broken or closed,
        nothing happens: whoever waits hears of it.
        """
        with self.lock:
            if self._closed:
                return
            self._closed = kind in (Kind.FAIL, Kind.BYE)
            counters = Counters(*self._counters())
            due_ns = 0
            if self._pace is not None:
                due_ns = int(1e9 * self._pace.due_s(head_bytes(tensor.dim()) + tensor.nbytes))
            self.acked = counters.taken
            self.sent_frames += 1
            self._outbox.put(pack(kind, due_ns, counters, words, code, tensor), bytes_of(tensor), owned=owned)

    # --- receiving --------------------------------------------------------------------------------------

    def look(self) -> bool:
        """Hear what has come, without waiting; whether more may come. One thread at a time."""
        if self.ended:
            return False
        while self._broke is None and (came := self._next()) is not None:
            self._coming.append(came)
            self._hear()
        self._hear()
        if self._broke is not None and not self._coming and not self.ended:  # all that had come before is heard first
            self.ended = True
            self._lost(self._broke)
        return not self.ended

    def _next(self) -> tuple[Frame, torch.Tensor] | None:
        try:
            return self._intake.take()
        except (EOFError, OSError):
            self._broke = ""
        except RunError as error:
            self._broke = str(error)
        return None

    def due_s(self) -> float | None:
        """When the next of the frames that are held back may be seen."""
        return 1e-9 * self._coming[0][0].due_ns if self._coming else None

    def _hear(self) -> None:
        coming = self._coming
        while coming and not self.ended and (not coming[0][0].due_ns or coming[0][0].due_ns <= time.monotonic_ns()):
            frame, payload = coming.popleft()
            with self.lock:
                self.ended = not self._heard(frame, payload)

    def close(self, timeout_s: float) -> None:
        """Let go of the connection, when our last frame is on its way."""
        self._outbox.flush(timeout_s)
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
