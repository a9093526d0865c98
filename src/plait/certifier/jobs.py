"""Cases over several processes, since the threads of one share its interpreter. This module is such a process, too."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec

from plait.certifier.case import Case
from plait.certifier.certify import Outcome, Watch, compared
from plait.certifier.compare import bounds
from plait.certifier.planned import plan_of
from plait.certifier.reference import work_of
from plait.errors import RunError


def share(cases: Sequence[Case], jobs: int, watch: Watch | None) -> list[Outcome]:
    """The outcomes, in the order of the cases. Each process takes the next case when it is done with one.

    Errors: RunError where a process dies.
    """
    return _Shared(cases, jobs, watch).run()


class _Shared:
    def __init__(self, cases: Sequence[Case], jobs: int, watch: Watch | None) -> None:
        self._cases, self._watch = cases, watch
        self._outcomes: dict[int, Outcome] = {}
        self._next = iter(range(len(cases)))
        self._lock = threading.Lock()
        self._errors: list[str] = []
        self._processes = [_start() for _ in range(min(jobs, len(cases)))]

    def run(self) -> list[Outcome]:
        """See `share`."""
        threads = [threading.Thread(target=self._feed, args=(process,)) for process in self._processes]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            for process in self._processes:
                process.kill()
                process.wait()
        if self._errors:
            raise RunError(self._errors[0])
        return [self._outcomes[index] for index in range(len(self._cases))]

    def _feed(self, process: subprocess.Popen[bytes]) -> None:
        """Give a process one case after the other."""
        assert process.stdin is not None
        assert process.stdout is not None
        while not self._errors:
            with self._lock:
                index = next(self._next, None)
            if index is None:
                return
            with suppress(BrokenPipeError):
                process.stdin.write(msgspec.json.encode(self._cases[index]) + b"\n")
                process.stdin.flush()
            line = process.stdout.readline()
            if not line:
                self._errors.append(f"a process that compares meshes ended at: {self._cases[index].command()}")
                return
            with self._lock:
                self._outcomes[index] = outcome = msgspec.json.decode(line, type=Outcome)
                if self._watch is not None:
                    self._watch(outcome)


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "plait.certifier.jobs"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,  # Ctrl-C is for us, who end them
    )


def _outcomes(lines: Iterator[bytes]) -> Iterator[Outcome]:
    for line in lines:
        case = msgspec.json.decode(line, type=Case)
        try:
            yield compared(case, plan_of(case))
        except Exception as error:
            yield Outcome(case, bounds(work_of(case)), {}, failure=f"{type(error).__name__}: {error}")


def main() -> None:
    """A case a line comes in, an outcome a line goes out."""
    for outcome in _outcomes(iter(sys.stdin.buffer.readline, b"")):
        sys.stdout.buffer.write(msgspec.json.encode(outcome) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
