"""Doorbells and death notices: one socket pair for each pair of ranks.

A byte on it wakes a rank that sleeps; nothing is sent to one that does not. A process that ends, however it ends,
closes its side, which wakes the other and says who it was.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum

from plait.comm.lost import LEFT, SILENT, Gone
from plait.comm.region import RANK_BYTES, Layout, Region, make_fence
from plait.comm.sleeper import Sleeper

_REASON_BYTES = RANK_BYTES - 256


class _State(IntEnum):
    """How a rank left: the first word of its state. Behind it: the rank to name, and the length of the reason."""

    DIED = 0
    LEFT = 1
    FAILED = 2


class Bells:
    """One rank's doorbells to all others."""

    def __init__(self, region: Region, layout: Layout, rank: int, sockets: Mapping[int, socket.socket]) -> None:
        self.rank = rank
        self.gone: dict[int, Gone] = {}
        self._names: Sequence[int] = range(layout.size)
        lock = threading.Lock()
        self.fence = make_fence(lock)
        self._lock = lock
        self._region, self._layout = region, layout
        self._sockets = dict(sockets)
        self._own_flag = layout.sleeps(rank) >> 3
        self.sleeper = Sleeper()
        for other, bell in sockets.items():
            bell.setblocking(False)
            self.sleeper.watch(bell.fileno(), lambda other=other: self._hear(other))  # type: ignore[misc]

    def rename(self, names: Sequence[int]) -> None:
        """Whoever is gone from here on is named by its number in a larger mesh."""
        self._names = names

    def teller(self, rank: int) -> Callable[[], None]:
        """A function that wakes `rank` if it sleeps: to be called after a counter was raised."""
        words, flag = self._region.words, self._layout.sleeps(rank) >> 3
        release, take = self._lock.release, self._lock.acquire

        def tell() -> None:
            release()  # the fence, written out: this is in every message
            take()
            if words[flag]:
                words[flag] = 0  # one bell is enough; the sleeper sets it again before it looks
                self._ring(rank)

        return tell

    def _ring(self, rank: int) -> None:
        try:
            self._sockets[rank].send(b"!")
        except BlockingIOError:
            pass  # unheard bells fill the socket: it will wake
        except OSError:
            pass  # it is gone: the next wait says so

    def raise_flag(self) -> None:
        """From here on others ring. The caller looks at what it waits for once more before it sleeps."""
        self._region.words[self._own_flag] = 1
        self.fence()

    def lower_flag(self) -> None:
        """Others need not ring any more."""
        self._region.words[self._own_flag] = 0

    def listen(self, timeout_s: float) -> None:
        """Sleep until a bell rings, a rank is gone, or time is up."""
        self.sleeper.sleep(timeout_s)

    def _hear(self, rank: int) -> bool:
        """Take what a rank has rung; False if it is gone."""
        if self._drain(self._sockets[rank]):
            return True
        self.gone[self._names[rank]] = self._how(rank)
        self._look_for_culprits()
        return False

    def _drain(self, bell: socket.socket) -> bool:
        """Take what was rung; False if the other side is closed."""
        try:
            while bell.recv(64):
                pass
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def _look_for_culprits(self) -> None:
        """A rank that fails says so before it closes one bell after the other: another's end may be heard first."""
        for other in self._sockets:
            name = self._names[other]
            if name not in self.gone and self._region.words[self._layout.state(other) >> 3] == _State.FAILED:
                self.gone[name] = self._how(other)

    def _how(self, rank: int) -> Gone:
        at = self._layout.state(rank)
        state, culprit, length = self._region.words[at >> 3 : (at >> 3) + 3]
        if state == _State.FAILED:
            reason = bytes(self._region.bytes[at + 24 : at + 24 + length]).decode(errors="replace")
            return Gone(culprit, reason, in_order=False)
        if state == _State.LEFT:
            return Gone(self._names[rank], LEFT, in_order=True)
        return Gone(self._names[rank], SILENT, in_order=False)

    def leave(self, reason: str | None, culprit: int) -> None:
        """Say how this rank leaves (a reason means that it failed), and close the bells."""
        at = self._layout.state(self.rank)
        text = (reason or "").encode()[:_REASON_BYTES]
        self._region.bytes[at + 24 : at + 24 + len(text)] = text
        self._region.words[(at >> 3) + 1] = culprit
        self._region.words[(at >> 3) + 2] = len(text)
        self._region.words[at >> 3] = _State.LEFT if reason is None else _State.FAILED
        self.fence()
        for bell in self._sockets.values():
            bell.close()
