"""Ranks as processes of one Linux or macOS host, on its CPU: shared memory, and sockets only to wake and to mourn.

The launching process creates a `ShmMesh` and starts one process for each rank:

    mesh = ShmMesh.create(size, capacity)
    for rank in range(size):
        Popen([..., json.dumps(mesh.description(rank))], pass_fds=mesh.descriptors(rank))
    mesh.close_parent()

and each of them calls `ShmEndpoint.attach(json.loads(...))`. Without `close_parent` nobody would notice a death.
A launcher that is itself a rank takes `mesh.attach(rank)` first.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import NoReturn, TypedDict, TypeVar

import torch
from typing_extensions import override

from plait.comm.bells import Bells
from plait.comm.collectives import Collectives
from plait.comm.contract import DEFAULT_TIMEOUT_S, Endpoint, Group, Tag, Traffic, timed_out
from plait.comm.control import ControlIn, ControlOut
from plait.comm.exchange import Pair, Steps
from plait.comm.link import Incoming, Outgoing
from plait.comm.lost import Gone, check_alive
from plait.comm.region import PAGE_BYTES, Layout, Region, create_region
from plait.comm.sleeper import Sleeper
from plait.errors import RunError

T = TypeVar("T")

SLOT_BYTES = 1 << 23
SPIN_S = 200e-6
CROWDED_SPIN_S = 50e-6
LOOK_AGAIN_S = 0.02
LAST_WORDS_S = 2.0
SPINS = 400  # looks at a counter, about 20 µs, before a collective calls `wait`
_PROGRESS_EVERY = 8


class ShmDescription(TypedDict):
    """What a rank's process needs, besides the descriptors themselves, to attach. Plain data."""

    rank: int
    size: int
    capacity: int
    slot_bytes: int
    crowded: bool
    memory: int
    sockets: list[int]


class ShmMesh:
    """The launcher's side: what the ranks share, before they have it."""

    def __init__(
        self, layout: Layout, memory: int, sockets: dict[tuple[int, int], socket.socket], crowded: bool
    ) -> None:
        self._layout, self._memory, self._sockets, self._crowded = layout, memory, sockets, crowded

    @staticmethod
    def create(size: int, capacity: int, slot_bytes: int = SLOT_BYTES, threads: int | None = None) -> ShmMesh:
        """Shared memory for `size` ranks, whose links hold `capacity` messages.

        `threads`: how many all ranks compute with, taken together; one each where it is not given. Messages above
        `slot_bytes` (a power of two) need their receiver's help to pass. All is sparse: only what messages touch takes
        memory.
        """
        if size < 1 or capacity < 1:
            raise RunError(f"a mesh of {size} ranks with capacity {capacity} cannot work: both must be at least 1")
        if slot_bytes < PAGE_BYTES or slot_bytes & (slot_bytes - 1):
            raise RunError(f"slot_bytes must be a power of two and at least {PAGE_BYTES}, not {slot_bytes}")
        layout = Layout(size, capacity, slot_bytes)
        sockets = {}
        for low in range(size):
            for high in range(low + 1, size):
                sockets[low, high], sockets[high, low] = socket.socketpair()
        crowded = (size if threads is None else threads) > available_cores()
        return ShmMesh(layout, create_region(layout), sockets, crowded)

    def _own(self, rank: int) -> list[socket.socket]:
        return [self._sockets[rank, other] for other in range(self._layout.size) if other != rank]

    def descriptors(self, rank: int) -> tuple[int, ...]:
        """The descriptors that the rank's process must inherit (`pass_fds`)."""
        return (self._memory, *(bell.fileno() for bell in self._own(rank)))

    def description(self, rank: int) -> ShmDescription:
        """What the rank's process gives to `ShmEndpoint.attach`."""
        memory, *sockets = self.descriptors(rank)
        return {**self._layout._asdict(), "rank": rank, "crowded": self._crowded, "memory": memory, "sockets": sockets}  # type: ignore[typeddict-item]

    def attach(self, rank: int) -> ShmEndpoint:
        """The endpoint of a rank that lives in the launching process."""
        description = self.description(rank)
        description["memory"] = os.dup(self._memory)
        description["sockets"] = [bell.detach() for bell in self._own(rank)]
        return ShmEndpoint.attach(description)

    def close_parent(self) -> None:
        """Close the launcher's copies, once all processes are started. Idempotent."""
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1
        for bell in self._sockets.values():
            bell.close()


class ShmEndpoint(Endpoint):
    """One rank's side."""

    def __init__(self, description: ShmDescription) -> None:
        self.rank, self.size, self.capacity = description["rank"], description["size"], description["capacity"]
        layout = Layout(self.size, self.capacity, description["slot_bytes"])
        region = Region(description["memory"], layout)
        os.close(description["memory"])
        others = [rank for rank in range(self.size) if rank != self.rank]
        sockets = [socket.socket(fileno=descriptor) for descriptor in description["sockets"]]
        self._bells = Bells(region, layout, self.rank, dict(zip(others, sockets, strict=True)))
        self._left: str | None = None
        # more threads than cores: who spins takes the core from the one it waits for, so it yields, and not for long
        self._crowded = description["crowded"]
        self._spin_s = CROWDED_SPIN_S if self._crowded else SPIN_S
        self._outgoing = _Links[Outgoing](self)
        self._incoming = _Links[Incoming](self)
        self._control_out = _Links[ControlOut](self)
        self._control_in = _Links[ControlIn](self)
        self._pairs = _Links[Pair](self)
        for other in others:
            self._connect(region, layout, other)
        self._backlog = False
        self._collectives = Collectives(self._steps)

    @staticmethod
    def attach(description: ShmDescription) -> ShmEndpoint:
        """The endpoint of the rank that this process is. It takes the descriptors over."""
        return ShmEndpoint(description)

    def _connect(self, region: Region, layout: Layout, other: int) -> None:
        tell, fence = self._bells.teller(other), self._bells.fence
        mine, theirs = layout.link(self.rank, other), layout.link(other, self.rank)
        self._outgoing[other] = Outgoing(region, mine, tell, fence)
        self._incoming[other] = Incoming(region, theirs, tell, fence)
        self._control_out[other] = ControlOut(region, mine, tell, fence)
        self._control_in[other] = ControlIn(region, theirs, tell, fence)
        self._pairs[other] = Pair(other, region, mine, theirs, tell, self._outgoing[other])

    # --- as a part of a larger mesh ---------------------------------------------------------------------

    @property
    def gone(self) -> dict[int, Gone]:
        """Who has left, and how. Another transport of the larger mesh adds to it what it notices."""
        return self._bells.gone

    def renumber(self, ranks: Sequence[int], size: int) -> None:
        """Before anything is sent: this mesh's ranks are ranks `ranks` of a larger mesh of `size`."""
        for links in (self._outgoing, self._incoming, self._control_out, self._control_in, self._pairs):
            links.rename(ranks)
        for other, pair in self._pairs.items():
            pair.rank = other
        self.rank, self.size = ranks[self.rank], size
        self._bells.rename(ranks)

    @property
    def sleeper(self) -> Sleeper:
        """What a wait sleeps in: it wakes also for what others watch there."""
        return self._bells.sleeper

    def wait_asleep(self, ready: Callable[[], T | None], what: str, timeout_s: float, peers: Sequence[int]) -> T:
        """`wait` without looking first: for what does not come through this memory."""
        return self._sleep(ready, what, timeout_s, time.perf_counter() + timeout_s, peers)

    # --- messages between two ranks ---------------------------------------------------------------------

    @override
    def try_send(self, to: int, tag: Tag, tensor: torch.Tensor) -> bool:
        if self._backlog:
            self._flush()
        return self._outgoing[to].try_send(tag, tensor)

    @override
    def try_receive(self, source: int, tag: Tag) -> torch.Tensor | None:
        if self._backlog:
            self._flush()
        return self._incoming[source].try_receive(tag)

    @override
    def post(self, to: int, message: bytes) -> None:
        if not self._control_out[to].post(message):
            self._backlog = True

    @override
    def poll(self, source: int) -> bytes | None:
        if self._backlog:
            self._flush()
        return self._control_in[source].poll()

    def _flush(self) -> None:
        """Write the control messages that had to wait, as far as they fit now."""
        done = [control.flush() for control in self._control_out.values()]
        self._backlog = not all(done)

    def _progress(self) -> None:
        """What must go on while this rank waits for something else, or both sides of a link would wait forever."""
        if self._backlog:
            self._flush()
        for outgoing in self._outgoing.values():
            outgoing.push()
        for incoming in self._incoming.values():
            incoming.pump()
        for control in self._control_in.values():
            control.pump()

    @override
    def wait(
        self,
        ready: Callable[[], T | None],
        what: str,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        peers: Sequence[int] = (),
    ) -> T:
        clock = time.perf_counter
        start = clock()
        spin_end = start + min(self._spin_s, timeout_s)
        turn = 0
        while True:
            result = ready()
            if result is not None:
                return result
            turn += 1
            if turn % _PROGRESS_EVERY == 0:
                self._progress()
            if self._crowded:
                yield_core()
            if clock() >= spin_end:
                return self._sleep(ready, what, timeout_s, start + timeout_s, peers)

    def _sleep(
        self, ready: Callable[[], T | None], what: str, timeout_s: float, deadline: float, peers: Sequence[int]
    ) -> T:
        bells = self._bells
        try:
            while True:
                bells.raise_flag()
                gone = dict(bells.gone)
                self._progress()
                result = ready()
                if result is not None:
                    return result
                if gone:  # older than that look: what had arrived before the death was still returned
                    check_alive(self.rank, self.size, gone, what, peers)
                remaining = deadline - time.perf_counter()
                if remaining <= 0:
                    raise timed_out(self.rank, what, timeout_s)
                bells.listen(min(remaining, LOOK_AGAIN_S))
        finally:
            bells.lower_flag()

    # --- collectives ------------------------------------------------------------------------------------

    def _steps(self, ranks: tuple[int, ...]) -> Steps:
        """The steps of a group that is seen for the first time."""
        if self._left is not None:
            raise self.unknown(self.rank)
        if self.rank not in ranks or list(ranks) != sorted(set(ranks)):
            raise RunError(f"rank {self.rank} needs a group of ascending ranks with itself in it, not {ranks}")
        pairs = [self._pairs[rank] for rank in ranks if rank != self.rank]

        spins = 0 if self._crowded else SPINS
        return Steps(self.rank, ranks, pairs, spins, self._wait_idly, self._bells.fence)

    def _wait_idly(self, came: Callable[[], bool | None], what: str, peers: Sequence[int]) -> bool:
        """Wait inside a collective, as long as it takes: meanwhile what this rank has queued moves on."""
        idle = self.idle
        if idle is None:
            return self.wait(came, what, DEFAULT_TIMEOUT_S, peers)

        def ready() -> bool | None:
            if came():
                return True
            idle()
            return came()

        return self.wait(ready, what, DEFAULT_TIMEOUT_S, peers)

    @override
    def all_reduce(self, group: Group, tensor: torch.Tensor) -> torch.Tensor:
        return self._collectives.all_reduce(group, tensor)

    @override
    def reduce_scatter(self, group: Group, tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        return self._collectives.reduce_scatter(group, tensor, sizes)

    @override
    def all_gather(self, group: Group, tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        return self._collectives.all_gather(group, tensor, sizes)

    @override
    def all_to_all(self, group: Group, pieces: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return self._collectives.all_to_all(group, pieces)

    @override
    def broadcast(self, group: Group, tensor: torch.Tensor, source: int) -> torch.Tensor:
        return self._collectives.broadcast(group, tensor, source)

    @override
    def barrier(self, group: Group) -> None:
        self._collectives.barrier(group)

    # --- life -------------------------------------------------------------------------------------------

    @override
    def traffic(self, to: int) -> Traffic:
        return self._outgoing[to].traffic(self._control_out[to].written_bytes)

    @override
    def fail(self, reason: str, culprit: int | None = None) -> None:
        self._leave(reason, self.rank if culprit is None else culprit)

    @override
    def close(self) -> None:
        self._leave(None, self.rank)

    def _leave(self, reason: str | None, culprit: int) -> None:
        if self._left is not None:
            return
        if reason is None and self._backlog:
            self._last_words()
        self._left = reason or "in order"
        self._bells.leave(reason, culprit)
        self._collectives.forget()
        for links in (self._outgoing, self._incoming, self._control_out, self._control_in, self._pairs):
            links.clear()

    def _last_words(self) -> None:
        """Control messages are never lost while both ranks live: write what waits, if its receivers still read."""
        with contextlib.suppress(RunError):
            self.wait(lambda: not self._backlog or None, "its control messages to be read", LAST_WORDS_S)

    def unknown(self, other: int) -> RunError:
        """The error of talking to a rank that is not there, or after having left."""
        if self._left is not None:
            return RunError(f"rank {self.rank} has left the mesh and cannot talk any more")
        return RunError(f"rank {self.rank} has no link with rank {other}: its mesh has ranks 0 to {self.size - 1}")


class _Links(dict[int, T]):
    """One thing for each other rank, by its number."""

    def __init__(self, owner: ShmEndpoint) -> None:
        super().__init__()
        self._owner = owner

    def rename(self, ranks: Sequence[int]) -> None:
        """Rank i is rank `ranks[i]` from here on."""
        renamed = {ranks[rank]: one for rank, one in self.items()}
        self.clear()
        self.update(renamed)

    def __missing__(self, rank: int) -> NoReturn:
        raise self._owner.unknown(rank)


def yield_core() -> None:
    """Let another process run, if one wants to."""
    if hasattr(os, "sched_yield"):
        os.sched_yield()
    else:
        time.sleep(0)


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
