"""Control messages of one directed link: a stream of bytes through a ring, each message behind its length.

What the ring does not hold waits at the sender, in order, until the sender's endpoint does anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from plait.comm.region import CONTROL_BYTES, STRONG_ORDER, Place, Region

_LENGTH_BYTES = 4


class ControlOut:
    """The sender's side."""

    def __init__(self, region: Region, place: Place, tell: Callable[[], None], fence: Callable[[], None]) -> None:
        self._words, self._bytes = region.words, region.bytes
        self._tell, self._fence = tell, fence
        self._at_written, self._at_read = place.control_written >> 3, place.control_read >> 3
        self._ring = place.control_ring
        self.written_bytes = 0
        self.backlog = bytearray()

    def post(self, message: bytes) -> bool:
        """Send a message; False if a part of it has to wait."""
        self.backlog += len(message).to_bytes(_LENGTH_BYTES, "little") + message
        return self.flush()

    def flush(self) -> bool:
        """Write what fits; False if something is left."""
        room = CONTROL_BYTES - (self.written_bytes - self._words[self._at_read])
        count = min(room, len(self.backlog))
        if count:
            self._write(self.backlog[:count])
            del self.backlog[:count]
        return not self.backlog

    def _write(self, data: bytearray) -> None:
        if not STRONG_ORDER:
            self._fence()
        at = self.written_bytes % CONTROL_BYTES
        first = min(len(data), CONTROL_BYTES - at)
        self._bytes[self._ring + at : self._ring + at + first] = data[:first]
        self._bytes[self._ring : self._ring + len(data) - first] = data[first:]
        if not STRONG_ORDER:
            self._fence()
        self.written_bytes += len(data)
        self._words[self._at_written] = self.written_bytes
        self._tell()


class ControlIn:
    """The receiver's side."""

    def __init__(self, region: Region, place: Place, tell: Callable[[], None], fence: Callable[[], None]) -> None:
        self._words, self._bytes = region.words, region.bytes
        self._tell, self._fence = tell, fence
        self._at_written, self._at_read = place.control_written >> 3, place.control_read >> 3
        self._ring = place.control_ring
        self._read = 0
        self._stream = bytearray()
        self._messages: deque[bytes] = deque()

    def poll(self) -> bytes | None:
        """The next message, if all of it has come."""
        self.pump()
        return self._messages.popleft() if self._messages else None

    def pump(self) -> None:
        """Take what has arrived off the ring."""
        written = self._words[self._at_written]
        if written == self._read:
            return
        if not STRONG_ORDER:
            self._fence()
        at = self._read % CONTROL_BYTES
        count = written - self._read
        first = min(count, CONTROL_BYTES - at)
        self._stream += self._bytes[self._ring + at : self._ring + at + first]
        self._stream += self._bytes[self._ring : self._ring + count - first]
        if not STRONG_ORDER:
            self._fence()
        self._read = written
        self._words[self._at_read] = written
        self._tell()
        self._split()

    def _split(self) -> None:
        stream, start = self._stream, 0
        while len(stream) - start >= _LENGTH_BYTES:
            first = start + _LENGTH_BYTES
            end = first + int.from_bytes(stream[start:first], "little")
            if end > len(stream):
                break
            self._messages.append(bytes(stream[first:end]))
            start = end
        del stream[:start]
