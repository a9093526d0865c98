"""Who reads a rank's connections: its own thread while it waits, and another thread while it computes.

Handing what has come from one thread to another costs two wake-ups and the interpreter: some 100 µs, more than a
small message takes over a network. So a rank that waits reads for itself. While it computes, nobody waits for what
comes, but somebody must take it: or its sender could not go on, and a large message would only begin to move when it
is asked for. That thread looks every 5 ms, more often while much comes, and rests where the rank's own waits long.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

from plait.comm.sleeper import Sleeper
from plait.comm.wire import Wire

_TURN_S = 5e-3
_BUSY_TURN_S = 0.5e-3
_MUCH_BYTES = 1 << 16
"""So much in a turn, and it comes back soon: sockets between processes of a host hold not much more."""


class Ears:
    """One rank's reading of its wires. `spin_s`: for how long it looks for what is due before it sleeps."""

    def __init__(self, wires: Sequence[Wire], spin_s: float = 0.0) -> None:
        self._wires, self._spin_s = list(wires), spin_s
        self._turn = threading.Lock()
        self._waits = self._waiting = 0
        """How often the rank's thread has begun to wait, and how many of those waits, one in the other, go on."""
        self._resting = False
        self._rested = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="ears", daemon=True)
        self._sleeper = Sleeper()
        self.sleep_in(self._sleeper)

    def start(self) -> None:
        """From here on what comes is heard also while nobody waits."""
        if self._wires:
            self._thread.start()

    def sleep_in(self, sleeper: Sleeper) -> None:
        """Whoever sleeps in it hears what comes."""
        self._sleeper = sleeper
        for wire in self._wires:
            sleeper.watch(wire.descriptor, lambda wire=wire: self._look_again(wire))  # type: ignore[misc]
            sleeper.watch_clock(wire.due_s, lambda wire=wire: self._look_again(wire), self._spin_s)  # type: ignore[misc]

    def look(self, wire: Wire) -> None:
        """Hear what has come on a wire, unless another thread is just about it."""
        if self._turn.acquire(blocking=False):
            try:
                wire.look()
            finally:
                self._turn.release()

    def _look_again(self, wire: Wire) -> bool:
        self.look(wire)
        return not wire.ended

    def sleep(self, timeout_s: float) -> None:
        """Sleep until something comes, or time is up. Only while `attending`."""
        self._sleeper.sleep(timeout_s)

    @contextlib.contextmanager
    def attending(self) -> Iterator[None]:
        """The rank's own thread reads meanwhile, and no other: what that had heard before can be seen."""
        self._waits += 1
        self._waiting += 1
        with self._turn:
            pass
        try:
            yield
        finally:
            self._waiting -= 1
            if self._resting:
                self._rested.set()

    # --- the other thread -------------------------------------------------------------------------------

    def _listen(self) -> None:
        pause_s, seen = _TURN_S, -1
        while not self._ended.wait(pause_s):
            if self._waiting and self._waits == seen:  # still in the same wait
                self._rest()
            seen = self._waits
            pause_s = _BUSY_TURN_S if self._look_at_all() > _MUCH_BYTES else _TURN_S

    def _look_at_all(self) -> int:
        """Bytes that have come."""
        if self._waiting:
            return 0
        with self._turn:
            if self._waiting:
                return 0
            before = sum(wire.read_bytes for wire in self._wires)
            for wire in self._wires:
                wire.look()
            return sum(wire.read_bytes for wire in self._wires) - before

    def _rest(self) -> None:
        """Until the rank's own thread does not wait any more."""
        self._rested.clear()
        self._resting = True
        if self._waiting and not self._ended.is_set():
            self._rested.wait()
        self._resting = False

    def close(self) -> None:
        """Nothing is heard any more. Not while `attending`."""
        self._ended.set()
        self._rested.set()
        for wire in self._wires:
            self._sleeper.forget(wire.descriptor)
        if self._thread.is_alive():
            self._thread.join()
        self._wires.clear()
