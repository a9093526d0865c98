"""Noticing that the other machine is gone without a word: power, cable, kernel. Only TCP itself can ask it."""

from __future__ import annotations

import socket

SILENCE_S = 3
"""After so long without a word the other side's kernel is asked, every `ASK_S`; `ASK_TIMES` without answer end it."""

ASK_S = 2
ASK_TIMES = 2
UNACKNOWLEDGED_S = 8
"""So long may sent bytes stay unacknowledged."""

_OPTIONS = (
    ("TCP_KEEPIDLE", SILENCE_S),
    ("TCP_KEEPALIVE", SILENCE_S),  # the same on macOS
    ("TCP_KEEPINTVL", ASK_S),
    ("TCP_KEEPCNT", ASK_TIMES),
    ("TCP_USER_TIMEOUT", UNACKNOWLEDGED_S * 1000),
)


def keep_alive(connection: socket.socket) -> None:
    """The TCP connection ends within 10 s after the other machine does."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS:
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
