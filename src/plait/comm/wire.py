"""One link over torch.distributed: a stream of frames to and from one other rank.

Gloo can neither poll a receive nor end its wait without breaking the connection, so a thread of each link waits in it
for ever; it keeps several receives open, so that the other side's sends leave at once. Sends start from the caller's
thread and are never waited for: their memory is kept until the other side says that it has the frame.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

import torch

from plait.comm.calls import DTYPES, code_of
from plait.comm.frames import FRAME_BYTES, INLINE_BYTES, NOTHING, Counters, Frame, Kind, chunks, pack, unpack
from plait.comm.link import new_tensor
from plait.errors import RunError

FRAMES, PAYLOADS = 1, 2
"""Gloo matches by tag, in order: frames and the payloads that follow them never meet."""

DEPTH = 8
"""Receives that are open at once."""

UNSEEN = 16
"""Frames after which their receiver says so, if nothing else goes the other way."""

BYTES = code_of(torch.uint8)
FOREVER = timedelta(days=365)


class Work(Protocol):
    """A send or receive on its way."""

    def wait(self, timeout: timedelta) -> bool:
        """Wait for its end. Errors: RuntimeError where the connection is lost."""


class Messages(Protocol):
    """What a link needs of a torch.distributed process group."""

    def send(self, tensors: list[torch.Tensor], dstRank: int, tag: int) -> Work:  # noqa: N803
        """Start a send."""

    def recv(self, tensors: list[torch.Tensor], srcRank: int, tag: int) -> Work:  # noqa: N803
        """Start a receive."""


class Nobody:
    """The connection of who has left."""

    def send(self, tensors: list[torch.Tensor], dstRank: int, tag: int) -> Work:  # noqa: N803
        """See `Messages`."""
        raise RuntimeError("closed")

    recv = send


class Wire:
    """The frames between this rank and `peer`. `lock` guards it, and what `heard` and `counters` touch.

    `heard(frame, payload)` is called for every frame that comes, with the lock held, in a thread of the wire, which
    ends when it returns False. `lost(text)` is called there when the connection breaks. `counters` gives what was
    taken and dropped.
    """

    def __init__(
        self,
        group: Messages,
        peer: int,
        counters: Callable[[], tuple[int, int]],
        heard: Callable[[Frame, torch.Tensor], bool],
        lost: Callable[[str], None],
    ) -> None:
        self.lock = threading.RLock()
        self.acked = 0
        """Messages that the other side knows to be taken."""
        self._group, self._peer = group, peer
        self._counters, self._heard, self._lost = counters, heard, lost
        self._kept: deque[tuple[int, list[Work], list[torch.Tensor]]] = deque()
        self._ring = [bytearray(FRAME_BYTES) for _ in range(DEPTH)]
        self._open: list[Work] = []
        self._sent = self._seen = self._said = 0
        self._closed = False
        self._thread = threading.Thread(target=self._listen, name=f"wire-{peer}", daemon=True)

    def start(self) -> None:
        """Begin to listen, and to talk."""
        try:
            self._open = [self._receive(memory) for memory in self._ring]
        except RuntimeError:
            self._lost("")
            return
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Whether nothing comes any more."""
        return not self._thread.is_alive()

    def release(self, timeout_s: float) -> None:
        """Once nothing comes any more: let go of the connection, when our last frame is on its way."""
        if not self.ended:
            return
        with contextlib.suppress(RuntimeError):
            for _, works, _ in self._kept:
                for work in works:
                    work.wait(timedelta(seconds=timeout_s))
        self._kept.clear()
        self._open.clear()
        self._group = Nobody()

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

        The tensor is copied unless it is `owned`: then nobody may change it any more. Where the connection is broken
        or closed, nothing happens: whoever waits hears of it.
        """
        with self.lock:
            if self._closed:
                return
            self._closed = kind in (Kind.FAIL, Kind.BYE)
            taken, dropped = self._counters()
            parts = [pack(kind, Counters(self._seen, taken, dropped), words, code, tensor)]
            if tensor.nbytes > INLINE_BYTES:
                parts += chunks(tensor if owned else tensor.clone())
            self._said, self.acked = self._seen, taken
            self._sent += 1
            self._start(parts)

    def _start(self, parts: list[torch.Tensor]) -> None:
        try:
            works = [
                self._group.send([part], self._peer, FRAMES if index == 0 else PAYLOADS)
                for index, part in enumerate(parts)
            ]
        except RuntimeError:
            return  # the listening thread finds the same, after what had still arrived
        self._kept.append((self._sent, works, parts))

    def _forget(self, seen: int) -> None:
        """The other side has the first `seen` frames."""
        while self._kept and self._kept[0][0] <= seen:
            for work in self._kept.popleft()[1]:
                work.wait(FOREVER)

    # --- receiving --------------------------------------------------------------------------------------

    def _receive(self, memory: bytearray) -> Work:
        return self._group.recv([torch.frombuffer(memory, dtype=torch.uint8)], self._peer, FRAMES)

    def _listen(self) -> None:
        try:
            while self._round():
                pass
        except RunError as error:
            self._lost(str(error))
        except RuntimeError:
            self._lost("")

    def _round(self) -> bool:
        """Hear as many frames as receives are open; False after the last of all."""
        for index, memory in enumerate(self._ring):
            self._open[index].wait(FOREVER)
            frame = unpack(memory)
            payload = self._payload(frame, memory)
            with self.lock:
                self._seen += 1
                self._forget(frame.counters.seen)
                if not self._heard(frame, payload):
                    return False
                if self._seen - self._said >= UNSEEN or frame.payload_bytes > INLINE_BYTES:
                    self.send(Kind.NOTE)
            self._open[index] = self._receive(memory)
        return True

    def _payload(self, frame: Frame, memory: bytearray) -> torch.Tensor:
        size, start, dtype = frame.payload_bytes, frame.payload_at, DTYPES[frame.code]
        if not size:
            return torch.empty(frame.shape, dtype=dtype)
        if start:
            flat = torch.frombuffer(memory, dtype=dtype, count=size // dtype.itemsize, offset=start)
            return flat.clone().view(frame.shape)
        tensor = new_tensor(size, dtype, list(frame.shape))
        for part in chunks(tensor):
            self._group.recv([part], self._peer, PAYLOADS).wait(FOREVER)
        return tensor
