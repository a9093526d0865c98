"""Runs a program on every rank of a mesh, for any transport: the contract tests know no transport.

A program is a function `program(endpoint, **given)` of a test module; what it returns must be JSON. A transport that is
to pass the contract tests adds a class with `run` here, and its name in `TRANSPORTS`.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch.distributed as dist

from plait.comm.contract import Endpoint
from plait.comm.emulated_mesh import EmulatedMesh
from plait.comm.shm import ShmMesh
from plait.comm.threads import thread_mesh
from plait.spec.cluster import Wire
from plait.spec.emulation import Emulation

Program = Callable[..., Any]
WORKER = Path(__file__).with_name("worker.py")
DIED = "died"


class Ranks(Protocol):
    """A transport under test."""

    deaths: tuple[str, ...]
    """How its ranks can die: arguments of `die`."""

    def run(self, program: Program, size: int, *, capacity: int = 2, **given: Any) -> list[Any]:
        """What each rank's program returned, or DIED. A program that raises fails the test with its traceback."""

    def close(self) -> None: ...


def die(endpoint: Endpoint, how: str) -> str:
    """End this rank badly."""
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    endpoint.fail("ValueError: a fault of the test")
    return DIED


def no_failures(outcomes: Sequence[Any]) -> list[Any]:
    for rank, outcome in enumerate(outcomes):
        if isinstance(outcome, dict) and "traceback" in outcome:
            raise AssertionError(f"rank {rank} failed:\n{outcome['traceback']}")
    return list(outcomes)


class ThreadRanks:
    deaths = ("fail",)

    def __init__(self, workers: Workers | None = None) -> None:
        pass  # none are needed

    def run(self, program: Program, size: int, *, capacity: int = 2, **given: Any) -> list[Any]:
        endpoints = thread_mesh(size, capacity)
        outcomes: list[Any] = [None] * size

        def main(endpoint: Endpoint) -> None:
            try:
                with endpoint:
                    outcomes[endpoint.rank] = program(endpoint, **given)
            except BaseException:
                outcomes[endpoint.rank] = {"traceback": traceback.format_exc()}

        threads = [threading.Thread(target=main, args=(endpoint,)) for endpoint in endpoints]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return no_failures(outcomes)

    def close(self) -> None:
        pass


class Worker:
    """A process that runs one rank's program after the other, since starting torch takes seconds."""

    def __init__(self) -> None:
        self.channel, theirs = socket.socketpair()
        command = [sys.executable, str(WORKER), str(theirs.fileno())]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()

    def start(self, request: dict[str, Any], descriptors: Sequence[int]) -> None:
        socket.send_fds(self.channel, [json.dumps(request).encode()], descriptors)

    def outcome(self) -> Any:
        data = b""
        while not data.endswith(b"\n"):
            piece = self.channel.recv(1 << 16)
            if not piece:
                return DIED
            data += piece
        return json.loads(data)

    def close(self) -> None:
        self.channel.close()
        self.process.wait()


class Workers:
    """The processes of all transports, kept from one run to the next."""

    def __init__(self) -> None:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo" if sys.platform == "linux" else "lo0"
        self._workers: dict[int, Worker] = {}

    def of(self, rank: int) -> Worker:
        worker = self._workers.get(rank)
        if worker is None or worker.process.poll() is not None:
            if worker is not None:
                worker.close()
            worker = self._workers[rank] = Worker()
        return worker

    def close(self) -> None:
        for worker in self._workers.values():
            worker.channel.close()
        for worker in self._workers.values():
            worker.close()


class ProcessRanks:
    """Ranks as processes; `workers` may serve other transports too."""

    deaths: tuple[str, ...] = ("kill", "fail")

    def __init__(self, workers: Workers | None = None) -> None:
        self._owned = workers is None
        self._workers = Workers() if workers is None else workers

    def requests(self, size: int, capacity: int) -> Iterator[tuple[dict[str, Any], Sequence[int]]]:
        """What each rank needs to make its endpoint, and the descriptors with it."""
        raise NotImplementedError

    def run(self, program: Program, size: int, *, capacity: int = 2, **given: Any) -> list[Any]:
        workers = [self._workers.of(rank) for rank in range(size)]
        file, name = program.__code__.co_filename, program.__name__
        for worker, (request, descriptors) in zip(workers, self.requests(size, capacity), strict=True):
            worker.start({"file": file, "program": name, "given": given, **request}, descriptors)
        outcomes = [worker.outcome() for worker in workers]
        for worker, outcome in zip(workers, outcomes, strict=True):
            if outcome == DIED and given.get("how") == "kill":
                worker.process.wait()
        return no_failures(outcomes)

    def close(self) -> None:
        if self._owned:
            self._workers.close()


class ShmRanks(ProcessRanks):
    def requests(self, size: int, capacity: int) -> Iterator[tuple[dict[str, Any], Sequence[int]]]:
        mesh = ShmMesh.create(size, capacity)
        for rank in range(size):
            yield {"description": mesh.description(rank)}, mesh.descriptors(rank)
        mesh.close_parent()


class C10dRanks(ProcessRanks):
    """Over gloo on the loopback; the store is in this process."""

    def __init__(self, workers: Workers | None = None) -> None:
        super().__init__(workers)
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._runs = itertools.count()

    def requests(self, size: int, capacity: int) -> Iterator[tuple[dict[str, Any], Sequence[int]]]:
        where = {"size": size, "capacity": capacity, "port": self._store.port, "run": str(next(self._runs))}
        for rank in range(size):
            yield {"c10d": {"rank": rank, **where}}, ()


class JoinedRanks(C10dRanks):
    """As under torchrun, over two hosts where there are more than two ranks: even ones on the first, odd ones not."""

    deaths = ("fail",)  # kill is in test_joined.py: a new process for each takes seconds

    def requests(self, size: int, capacity: int) -> Iterator[tuple[dict[str, Any], Sequence[int]]]:
        hosts = [rank % 2 if size > 2 else 0 for rank in range(size)]
        where = {"hosts": hosts, "capacity": capacity, "port": self._store.port, "run": str(next(self._runs))}
        for rank in range(size):
            yield {"joined": {"rank": rank, **where}}, ()


class EmulatedRanks(ProcessRanks):
    """Two emulated hosts where there are more than two ranks, else one for each, over a link that is fast to test on:
    even ranks on the first, odd ones not."""

    deaths = ("fail",)  # kill is in test_emulated.py

    def requests(self, size: int, capacity: int) -> Iterator[tuple[dict[str, Any], Sequence[int]]]:
        hosts = tuple(rank % 2 if size > 2 else rank for rank in range(size))
        wire = Wire(100e-6, 1e9)
        mesh = EmulatedMesh.create(capacity, Emulation(hosts, {(0, 1): wire, (1, 0): wire}))
        for rank in range(size):
            yield {"mesh": mesh.description(rank)}, mesh.descriptors(rank)
        mesh.close_parent()


TRANSPORTS: dict[str, Callable[[Workers], Ranks]] = {
    "threads": ThreadRanks,
    "shm": ShmRanks,
    "c10d": C10dRanks,
    "joined": JoinedRanks,
    "emulated": EmulatedRanks,
}
