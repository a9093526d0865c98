"""The frames that come over a connection, read without waiting."""

from __future__ import annotations

import socket

import torch

from plait.comm.calls import DTYPES
from plait.comm.frames import HEADER_BYTES, LONGEST_HEAD_BYTES, Frame, dimensions_of, head_bytes, unpack
from plait.comm.link import new_tensor
from plait.errors import RunError

_MEMORY_BYTES = 1 << 16


class Intake:
    """Reads a stream socket: heads, and payloads that came with them, through one buffer; what follows of a payload
    goes straight into its tensor."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._memory = memoryview(bytearray(_MEMORY_BYTES))
        self._start = self._end = 0
        self._begun: tuple[Frame, torch.Tensor] | None = None
        self._rest = memoryview(b"")
        self.read_bytes = 0
        """All that has come."""

    def take(self) -> tuple[Frame, torch.Tensor] | None:
        """The next frame with its payload, if all of it is here.

        Errors: EOFError where the connection has ended, OSError where it broke, RunError where no frame comes, or
        one that is too large.
        """
        while True:
            if self._begun is not None and not self._rest:
                begun, self._begun = self._begun, None
                return begun
            if self._begun is None and self._begin():
                continue
            if not (self._read_payload() if self._rest else self._read()):
                return None

    def _begin(self) -> bool:
        """Begin with the frame at the start of the buffer, if its head is whole."""
        here = self._end - self._start
        if here < HEADER_BYTES:
            return False
        memory = self._memory[self._start : self._end]
        head = head_bytes(dimensions_of(memory))
        if here < head:
            return False
        frame = unpack(memory)
        tensor = _room_for(frame)
        into = bytes_of(tensor)
        came = min(here - head, frame.payload_bytes)
        if came:
            into[:came] = memory[head : head + came]
        self._start += head + came
        self._begun, self._rest = (frame, tensor), into[came:]
        return True

    def _read(self) -> bool:
        """Fill the buffer; False where nothing is there."""
        if self._start == self._end:
            self._start = self._end = 0
        elif len(self._memory) - self._start < LONGEST_HEAD_BYTES:
            left = self._end - self._start
            self._memory[:left] = bytes(self._memory[self._start : self._end])
            self._start, self._end = 0, left
        count = self._receive(self._memory[self._end :])
        self._end += count
        return bool(count)

    def _read_payload(self) -> bool:
        count = self._receive(self._rest)
        self._rest = self._rest[count:]
        return bool(count)

    def _receive(self, into: memoryview) -> int:
        """Bytes that were there; 0 where none are."""
        try:
            count = self._connection.recv_into(into, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        if not count:
            raise EOFError
        self.read_bytes += count
        return count


def _room_for(frame: Frame) -> torch.Tensor:
    try:
        return new_tensor(frame.payload_bytes, DTYPES[frame.code], list(frame.shape))
    except (RuntimeError, OSError, OverflowError) as error:
        raise RunError(f"a message of {frame.payload_bytes} bytes came, and there is no memory for it") from error


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor on this host."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data if tensor.nbytes else memoryview(b"")
