"""What a thread sleeps on until another one has something for it: a descriptor, so that it may sleep on others too."""

from __future__ import annotations

import contextlib
import os
import select

_LONGEST_S = 1e6
"""poll() counts milliseconds in 32 bits: who sleeps longer wakes, looks, and sleeps again."""


class Waker:
    """A bell between the threads of a process."""

    def __init__(self) -> None:
        self.descriptor, self._write = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._write, False)
        self._rung = False
        self._poll = select.poll()
        self._poll.register(self.descriptor, select.POLLIN)

    def ring(self) -> None:
        """Wake who sleeps, or keep it from falling asleep. Call it after what it shall see has been done."""
        if not self._rung:
            self._rung = True
            with contextlib.suppress(OSError):  # full: it will wake; closed: nobody sleeps any more
                os.write(self._write, b"!")

    def hear(self) -> None:
        """Take what was rung. Whoever calls this looks once more before it sleeps."""
        with contextlib.suppress(OSError):  # nothing there, or closed
            os.read(self.descriptor, 64)
        self._rung = False

    def sleep(self, timeout_s: float) -> None:
        """Sleep until the bell rings or has rung, or time is up; 11 days at most."""
        if self._poll.poll(min(timeout_s, _LONGEST_S) * 1e3):
            self.hear()

    def close(self) -> None:
        """Give the descriptors back."""
        if self.descriptor >= 0:
            descriptors, self.descriptor, self._write = (self.descriptor, self._write), -1, -1
            for descriptor in descriptors:
                os.close(descriptor)
