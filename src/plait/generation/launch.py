"""Starts the ranks of a plan on this host: a process each, or a thread each where a test wants it small and quick."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from plait.generation.places import HERE, Places
from plait.generation.protocol import Setup, ToFront, ToRank
from plait.plans.file import dump_plan
from plait.plans.layout import Layout
from plait.plans.plan import Plan
from plait.prober.host import rank_environment
from plait.ranks.channel import Channel
from plait.weights.index import WeightsIndex

if TYPE_CHECKING:
    from plait.comm.threads import ThreadEndpoint

RankChannel = Channel[ToRank, ToFront]
FrontChannel = Channel[ToFront, ToRank]

_EXIT_WAIT_S = 5.0


class Ranks(Protocol):
    """Started ranks, and the channels to them, rank by rank; `places` are known once all have finished."""

    channels: list[RankChannel]

    @property
    def places(self) -> Places:
        """Where they run."""

    def death(self, rank: int) -> str | None:
        """How a rank ended where it did not end well, in words; None while it lives or where it ended as it should."""

    def stop(self) -> None:
        """End what still runs, and wait for it."""


class ProcessRanks:
    """Each rank a process of this host, linked by shared memory."""

    places = HERE

    def __init__(self, plan: Plan, index: WeightsIndex, *, trace: bool = True) -> None:
        from plait.comm.shm import ShmMesh

        self.channels: list[RankChannel] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        size = plan.layout.ranks
        mesh = ShmMesh.create(size, plan.layout.link_capacity, threads=all_threads(plan.layout))
        try:
            for rank in range(size):
                self._start(plan.layout, rank, mesh.descriptors(rank))
            for rank, channel in enumerate(self.channels):
                with suppress(EOFError):  # the session sees that it died, and says how
                    channel.send(Setup(rank, dump_plan(plan), index.to_bytes(), dict(mesh.description(rank)), trace))
        except BaseException:
            self.stop()
            raise
        finally:
            mesh.close_parent()

    def _start(self, layout: Layout, rank: int, descriptors: tuple[int, ...]) -> None:
        mine, theirs = socket.socketpair()
        threads = layout.stages[layout.stage_of(rank)].threads
        with theirs:
            command = [sys.executable, "-m", "plait.generation.rank", str(theirs.fileno())]
            process = subprocess.Popen(
                command,
                pass_fds=(*descriptors, theirs.fileno()),
                env=dict(rank_environment(threads, all_threads(layout), rank % layout.tp, layout.tp)),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the front, which ends its ranks
            )
        self.processes.append(process)
        self.channels.append(Channel(mine, ToFront))

    @property
    def process_ids(self) -> list[int]:
        """Each rank's process."""
        return [process.pid for process in self.processes]

    def death(self, rank: int) -> str | None:
        """See `Ranks`."""
        process = self.processes[rank]
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
        if process.returncode is None or process.returncode == 0:
            return None
        if process.returncode < 0:
            number = -process.returncode
            return f"was killed by signal {number} ({signal.Signals(number).name})"
        return f"ended with exit status {process.returncode}"

    def stop(self) -> None:
        """See `Ranks`."""
        for channel in self.channels:
            channel.close()
        deadline_s = time.monotonic() + _EXIT_WAIT_S
        for process in self.processes:
            try:
                process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def all_threads(layout: Layout) -> int:
    """Threads of all ranks."""
    return sum(stage.threads * len(stage.ranks) for stage in layout.stages)


class ThreadRanks:
    """Each rank a thread of this process: no start-up, no isolation. torch computes with one thread then."""

    places = HERE

    def __init__(self, plan: Plan, index: WeightsIndex, *, trace: bool = True) -> None:
        import torch

        from plait.comm.threads import thread_mesh

        torch.set_num_threads(1)
        self.channels: list[RankChannel] = []
        self._threads: list[threading.Thread] = []
        for rank, endpoint in enumerate(thread_mesh(plan.layout.ranks, plan.layout.link_capacity)):
            mine, theirs = socket.socketpair()
            self.channels.append(Channel(mine, ToFront))
            channel: FrontChannel = Channel(theirs, ToRank)
            arguments = (rank, plan, index, endpoint, channel, trace)
            self._threads.append(threading.Thread(target=_thread_rank, args=arguments, daemon=True))
        for thread in self._threads:
            thread.start()

    def death(self, rank: int) -> str | None:
        """See `Ranks`: a thread's failure is always told."""
        return None

    def stop(self) -> None:
        """See `Ranks`."""
        for channel in self.channels:
            channel.shut_down()
        for thread in self._threads:
            thread.join(_EXIT_WAIT_S)
        for channel in self.channels:
            channel.close()


def _thread_rank(
    rank: int, plan: Plan, index: WeightsIndex, endpoint: ThreadEndpoint, channel: FrontChannel, trace: bool
) -> None:
    from plait.generation.rank import failure, run_rank

    try:
        run_rank(rank, plan, index, endpoint, channel, trace=trace)
    except BaseException as error:
        endpoint.fail(str(error))
        with suppress(EOFError):
            channel.send(failure(rank, error))
    finally:
        endpoint.close()
        channel.close()
