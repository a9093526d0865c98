"""Starts the ranks of a plan on this host, a process each, linked by shared memory or as if over a network."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from plait.plans.layout import Layout
from plait.prober.host import rank_environment
from plait.ranks.channel import Channel
from plait.spec.emulation import Emulation

if TYPE_CHECKING:
    from plait.comm.mesh import Mesh

ToRank = TypeVar("ToRank")
ToFront = TypeVar("ToFront")

EXIT_WAIT_S = 5.0
"""How long ranks have to end by themselves."""


class RankProcesses(Generic[ToRank, ToFront]):
    """Each rank a process of `module`, whose only argument is the descriptor of its socket to us.

    `setup(rank, mesh)` is the first word to a rank: with `mesh` it attaches (`comm.attach`). `incoming` is the
    union of what ranks say. `beside`: so many ranks, one after the other, compute at the same time, and are bound to
    cores of their own where there are enough. `descriptors` are inherited by every process. `emulation`: they talk as
    if over such links.
    """

    def __init__(
        self,
        module: str,
        layout: Layout,
        incoming: Any,
        setup: Callable[[int, Mapping[str, object]], ToRank],
        *,
        beside: int = 1,
        descriptors: Sequence[int] = (),
        emulation: Emulation | None = None,
    ) -> None:
        self.channels: list[Channel[ToRank, ToFront]] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        self._module, self._layout, self._incoming, self._beside = module, layout, incoming, beside
        mesh = _mesh(layout, emulation)
        try:
            for rank in range(layout.ranks):
                self._start(rank, (*mesh.descriptors(rank), *descriptors))
            for rank, channel in enumerate(self.channels):
                with suppress(EOFError):  # who listens to the ranks sees that it died, and says how
                    channel.send(setup(rank, dict(mesh.description(rank))))
        except BaseException:
            self.stop()
            raise
        finally:
            mesh.close_parent()

    def _start(self, rank: int, descriptors: Sequence[int]) -> None:
        mine, theirs = socket.socketpair()
        threads = rank_threads(self._layout, rank)
        environment = rank_environment(threads, all_threads(self._layout), rank % self._beside, self._beside)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", self._module, str(theirs.fileno())],
                pass_fds=(*descriptors, theirs.fileno()),
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the front, which ends its ranks
            )
        self.processes.append(process)
        self.channels.append(Channel(mine, self._incoming))

    @property
    def process_ids(self) -> list[int]:
        """Each rank's process."""
        return [process.pid for process in self.processes]

    def death(self, rank: int) -> str | None:
        """How a rank ended where it did not end well, in words; None while it lives or where it ended as it should."""
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
        """End what still runs, and wait for it."""
        for channel in self.channels:
            channel.close()
        deadline_s = time.monotonic() + EXIT_WAIT_S
        for process in self.processes:
            try:
                process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _mesh(layout: Layout, emulation: Emulation | None) -> Mesh:
    """Shared memory, or links that are emulated. Errors: SpecError where this machine is slower than those."""
    if emulation is None:
        from plait.comm.shm import ShmMesh

        return ShmMesh.create(layout.ranks, layout.link_capacity, threads=all_threads(layout))
    from plait.comm.emulated_mesh import EmulatedMesh
    from plait.prober.emulated import own_link, require_possible

    threads = all_threads(layout)
    own = own_link(threads)
    for wire in set(emulation.wires.values()):
        require_possible(wire, own)
    return EmulatedMesh.create(layout.link_capacity, emulation, threads=threads, own=own.hand_over)


def rank_threads(layout: Layout, rank: int) -> int:
    """Threads that a rank computes with: those of the first stage that it holds."""
    return layout.stages[layout.stage_of(rank)].threads


def all_threads(layout: Layout) -> int:
    """Threads of all ranks; a rank of several stages counts once."""
    return sum(rank_threads(layout, rank) for rank in {rank for stage in layout.stages for rank in stage.ranks})
