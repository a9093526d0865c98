"""A measuring process, seen from the prober."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from plait.errors import RunError
from plait.prober.host import rank_environment
from plait.prober.messages import Alone, Job, Request, Timed

T = TypeVar("T")


class MeasuringProcess:
    """A fresh process of `plait.prober.child`, with a job; it inherits the `descriptors` of its mesh."""

    def __init__(
        self, job: Job, all_threads: int, descriptors: Sequence[int] = (), index: int = 0, tp: int = 1
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "plait.prober.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=tuple(descriptors),
            env=rank_environment(job.threads, all_threads, index, tp),
        )
        self._say(job)

    def ready(self) -> None:
        """Wait until the model is there."""
        self.answer(bool)

    def alone(self, request: Alone) -> list[Timed]:
        """Measure, and wait for the answer."""
        self.ask(request)
        return self.answer(list[Timed])

    def ask(self, request: Request) -> None:
        """Begin a measurement."""
        self._say(request)

    def answer(self, kind: type[T]) -> T:
        """Wait for the next answer. Errors: RunError with what the process said, where it died."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RunError(f"measuring this host failed: {self._last_words()}")
        return msgspec.json.decode(line, type=kind)

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def _say(self, message: object) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(message) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise RunError(f"measuring this host failed: {self._last_words()}") from None

    def _last_words(self) -> str:
        self._process.kill()
        _, errors = self._process.communicate()
        lines = errors.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"its process ended with status {self._process.returncode}"
