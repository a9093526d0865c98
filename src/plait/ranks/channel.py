"""Frames over a stream socket between the front and a rank: four bytes of length, then msgpack."""

from __future__ import annotations

import select
import socket
from contextlib import suppress
from typing import Any, Generic, TypeVar

import msgspec

Incoming = TypeVar("Incoming")
Outgoing = TypeVar("Outgoing")

_LENGTH_BYTES = 4


class Channel(Generic[Outgoing, Incoming]):
    """One side of a connection. Sends structs of one union, receives those of another: `incoming`."""

    def __init__(self, connection: socket.socket, incoming: Any) -> None:
        self._socket = connection
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(incoming)
        self._buffer = bytearray()

    def fileno(self) -> int:
        """For selectors."""
        return self._socket.fileno()

    def send(self, message: Outgoing) -> None:
        """Send a message. Errors: EOFError where the other side is gone."""
        body = self._encoder.encode(message)
        try:
            self._socket.sendall(len(body).to_bytes(_LENGTH_BYTES, "little") + body)
        except (BrokenPipeError, ConnectionResetError):
            raise EOFError("the other side is gone") from None

    def receive(self, *, wait: bool) -> Incoming | None:
        """The next message; None where none is complete yet and `wait` is False. Errors: EOFError at the end."""
        while True:
            message = self._next()
            if message is not None:
                return message
            if not wait and not select.select([self._socket], [], [], 0)[0]:
                return None
            try:
                received = self._socket.recv(1 << 20)
            except ConnectionResetError:
                received = b""
            if not received:
                raise EOFError("the other side is gone")
            self._buffer += received

    def shut_down(self) -> None:
        """Tell the other side that nothing comes any more; it may still read what was sent."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _next(self) -> Incoming | None:
        length = int.from_bytes(self._buffer[:_LENGTH_BYTES], "little")
        end = _LENGTH_BYTES + length
        if len(self._buffer) < _LENGTH_BYTES or len(self._buffer) < end:
            return None
        message: Incoming = self._decoder.decode(self._buffer[_LENGTH_BYTES:end])
        del self._buffer[:end]
        return message
