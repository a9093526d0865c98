"""A rank's last seconds: a launcher ends all ranks when one dies, and rank 0 still has to say which."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

GRACE_S = 3.0
"""How long a rank lives on after SIGTERM."""


@contextmanager
def grace(first: Callable[[], None] = lambda: None, seconds: float = GRACE_S) -> Iterator[None]:
    """While it is entered, SIGTERM calls `first`, and ends the process only some seconds later."""

    def end() -> None:
        sys.stderr.write("error: stopped by SIGTERM\n")
        sys.stderr.flush()
        os._exit(128 + signal.SIGTERM)

    def on_signal(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        first()

    before = signal.signal(signal.SIGTERM, on_signal)
    yield
    signal.signal(signal.SIGTERM, before)  # not after an error: that has to be told first
