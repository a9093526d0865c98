"""What is on its way out of a connection, without its sender ever waiting."""

from __future__ import annotations

import socket
import threading
from collections import deque


class Outbox:
    """Writes to a stream socket and never waits: what the system does not take at once a thread writes, in order.

    Nothing is said of a connection that is lost: who reads it hears of that, after all that had still arrived.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._queue: deque[list[memoryview]] = deque()
        self._empty = threading.Event()
        self._empty.set()

    def put(self, head: bytes, payload: memoryview, *, owned: bool) -> None:
        """Write these one after the other. What is left of the payload is copied unless `owned`: nobody changes it."""
        with self._lock:
            parts = [memoryview(head), payload] if payload.nbytes else [memoryview(head)]
            if not self._queue and self._writes(parts, socket.MSG_DONTWAIT):
                return
            if payload.nbytes and not owned:
                parts[-1] = memoryview(bytes(parts[-1]))
            self._queue.append(parts)
            if len(self._queue) == 1:
                self._empty.clear()
                threading.Thread(target=self._write, name="outbox", daemon=True).start()

    def flush(self, timeout_s: float) -> None:
        """Wait until all is with the system, or lost, or time is up."""
        self._empty.wait(timeout_s)

    def _writes(self, parts: list[memoryview], flags: int = 0) -> bool:
        """Write what goes, and take it off the parts; whether nothing is left."""
        try:
            count = self._connection.sendmsg(parts, (), flags)
        except BlockingIOError:
            return False
        except OSError:
            return True
        while parts and count >= parts[0].nbytes:
            count -= parts.pop(0).nbytes
        if parts and count:
            parts[0] = parts[0][count:]
        return not parts

    def _write(self) -> None:
        """Write what is queued; the thread ends with it."""
        while True:
            parts = self._queue[0]
            while not self._writes(parts):
                pass
            with self._lock:
                self._queue.popleft()
                if not self._queue:
                    self._empty.set()
                    return
