"""Noticing that the other machine is gone without a word: power, cable, kernel. Only TCP itself can ask it.

torch.distributed asks for nothing of the kind, and does not give its sockets away; so they are found among the
descriptors that this process opens meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

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


@contextlib.contextmanager
def kept_alive() -> Iterator[None]:
    """Connections that are opened in this block end within 10 s after the other machine does."""
    before = _descriptors()
    yield
    for descriptor, _ in _descriptors() - before:
        with contextlib.suppress(OSError):  # no socket, or closed again
            _keep_alive(descriptor)


def _descriptors() -> set[tuple[int, int]]:
    """This process's descriptors, and what each is: numbers are used again."""
    found = set()
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # that of the listing itself
            found.add((int(name), os.fstat(int(name)).st_ino))
    return found


def _keep_alive(descriptor: int) -> None:
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
            return
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _OPTIONS:
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
