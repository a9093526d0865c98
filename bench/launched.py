"""Processes of a variant that is measured: opened once, they wait for work while others have their turn."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from plait.comm.shm import ShmMesh
from plait.prober.host import rank_environment

Calls = Mapping[str, Callable[[int], Any]]
"""What a rank can be asked to do, so many times; the answer goes through JSON."""


class Turn(NamedTuple):
    """One answer: seconds of one of the calls, of the slowest rank, and what every rank told."""

    seconds: float
    told: list[Any]


class Launched:
    """`ranks` processes of `script`, each told its variant, its rank, how the others are met, and what `told` holds."""

    def __init__(
        self, script: str, variant: str, ranks: int, threads: int, folder: str, told: Mapping[str, Any] | None = None
    ) -> None:
        mesh = ShmMesh.create(ranks, capacity=2)
        environment = {**rank_environment(threads, ranks * threads), "GLOO_SOCKET_IFNAME": "lo"}
        self._processes = []
        for rank in range(ranks):
            meeting = str(Path(folder, f"meeting-{id(self)}"))
            common = {"meeting": meeting, "threads": threads, "ranks": ranks, "shm": mesh.description(rank)}
            given = {**(told or {}), **common}
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, script, variant, str(rank), json.dumps(given)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    pass_fds=mesh.descriptors(rank),
                    env=environment,
                )
            )
        mesh.close_parent()

    def ask(self, what: str, count: int = 1) -> Turn:
        """`count` calls of `what`, on all ranks at the same time."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{what} {count}\n")
            process.stdin.flush()
        lines = [process.stdout.readline() for process in self._processes if process.stdout is not None]
        assert all(lines), "a process has ended: its error stands above"
        answers = [json.loads(line) for line in lines]
        return Turn(max(seconds for seconds, _ in answers), [told for _, told in answers])

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.communicate()


def serve(calls: Calls) -> None:
    """In a rank's process: do what the launcher's lines say until they end, and tell seconds and answer of each."""
    for line in sys.stdin:
        what, count = line.split()
        start = time.perf_counter()
        told = calls[what](int(count))
        taken_s = (time.perf_counter() - start) / int(count)
        sys.stdout.write(json.dumps([taken_s, told]) + "\n")
        sys.stdout.flush()
