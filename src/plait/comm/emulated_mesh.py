"""A mesh of hosts that are not there, on this one: as over shared memory the launcher makes it, and processes attach.

    mesh = EmulatedMesh.create(capacity, emulation)
    for rank in range(size):
        Popen([..., json.dumps(mesh.description(rank))], pass_fds=mesh.descriptors(rank))
    mesh.close_parent()

and each of them calls `attach.attach(json.loads(...))`. Ranks of one emulated host talk over shared memory, others over
sockets that the launcher connects: no address, no port, nobody else can come in.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple, TypedDict

from plait.comm.c10d import C10dEndpoint
from plait.comm.contract import Endpoint
from plait.comm.emulated import NO_HAND_OVER, HandOver, SharedClocks, WirePace, clocks_bytes
from plait.comm.joined import Joined
from plait.comm.region import anonymous_file
from plait.comm.shm import ShmDescription, ShmEndpoint, ShmMesh, available_cores
from plait.errors import RunError
from plait.spec.cluster import Wire
from plait.spec.emulation import Emulation

CONNECT_TIMEOUT_S = 300.0
_HOLD_BYTES = 1 << 22


class EmulatedDescription(TypedDict):
    """What a rank's process needs, besides the descriptors themselves, to attach. Plain data.

    `crowded`: whether ranks compute with more threads than there are cores. `wires`: of each host that ranks of this
    one's send to, its number, latency and bandwidth. `near`: the shared memory with the other ranks of the host, where
    there are some.
    """

    emulated: bool
    rank: int
    capacity: int
    hosts: list[int]
    wires: list[tuple[int, float, float]]
    own: tuple[float, float]
    clocks: int
    sockets: list[int]
    crowded: bool
    near: ShmDescription | None


class _Place(NamedTuple):
    """A rank's host, its number among the host's ranks, and how many those are."""

    host: int
    local: int
    ranks: tuple[int, ...]


class EmulatedMesh:
    """The launcher's side: what the ranks share, before they have it."""

    def __init__(
        self,
        capacity: int,
        emulation: Emulation,
        sockets: dict[tuple[int, int], socket.socket],
        near: dict[int, ShmMesh],
        clocks: int,
        own: HandOver,
        crowded: bool,
    ) -> None:
        self._capacity, self._emulation, self._sockets = capacity, emulation, sockets
        self._near, self._clocks, self._own_times, self._crowded = near, clocks, own, crowded

    @staticmethod
    def create(
        capacity: int, emulation: Emulation, *, threads: int | None = None, own: HandOver = NO_HAND_OVER
    ) -> EmulatedMesh:
        """A mesh of the emulation's ranks, whose links hold `capacity` messages.

        `threads`: how many all ranks compute with, taken together; one each where it is not given. `own`: what this
        machine takes itself (`prober.emulated` measures it).
        """
        hosts, size = emulation.hosts, len(emulation.hosts)
        if size < 1 or capacity < 1:
            raise RunError(f"a mesh of {size} ranks with capacity {capacity} cannot work: both must be at least 1")
        sockets: dict[tuple[int, int], socket.socket] = {}
        for low, high in combinations(range(size), 2):
            sockets[low, high], sockets[high, low] = _pair()
        clocks = anonymous_file()
        os.ftruncate(clocks, clocks_bytes(max(hosts) + 1))
        threads = size if threads is None else threads
        near = {
            host: ShmMesh.create(hosts.count(host), capacity, threads=threads)
            for host in set(hosts)
            if hosts.count(host) > 1
        }
        return EmulatedMesh(capacity, emulation, sockets, near, clocks, own, threads > available_cores())

    @property
    def size(self) -> int:
        """Ranks."""
        return len(self._emulation.hosts)

    def _place(self, rank: int) -> _Place:
        return _place(self._emulation.hosts, rank)

    def _own(self, rank: int) -> list[socket.socket]:
        return [self._sockets[rank, other] for other in range(self.size) if other != rank]

    def descriptors(self, rank: int) -> tuple[int, ...]:
        """The descriptors that the rank's process must inherit (`pass_fds`)."""
        place = self._place(rank)
        near = self._near.get(place.host)
        shared = () if near is None else near.descriptors(place.local)
        return (self._clocks, *(one.fileno() for one in self._own(rank)), *shared)

    def description(self, rank: int) -> EmulatedDescription:
        """What the rank's process gives to `attach`."""
        place, wires = self._place(rank), self._emulation.wires
        near = self._near.get(place.host)
        return {
            "emulated": True,
            "rank": rank,
            "capacity": self._capacity,
            "hosts": list(self._emulation.hosts),
            "wires": [
                (target, wire.latency_s, wire.bandwidth)
                for (source, target), wire in wires.items()
                if source == place.host
            ],
            "own": self._own_times,
            "clocks": self._clocks,
            "sockets": [one.fileno() for one in self._own(rank)],
            "crowded": self._crowded,
            "near": None if near is None else near.description(place.local),
        }

    def threads(self, timeout_s: float = CONNECT_TIMEOUT_S) -> list[Endpoint]:
        """The endpoints of all ranks, each to be used by a thread of this process. They take the mesh over."""
        clocks = SharedClocks(self._clocks, max(self._emulation.hosts) + 1)
        self._clocks = -1
        found: dict[int, Endpoint] = {}
        failed: list[BaseException] = []

        def connect(rank: int, description: EmulatedDescription, near: ShmEndpoint | None) -> None:
            try:
                found[rank] = _endpoint(description, clocks, near, timeout_s)
            except BaseException as error:
                failed.append(error)

        started = []
        for rank in range(self.size):
            place, description = self._place(rank), self.description(rank)
            description["sockets"] = [one.detach() for one in self._own(rank)]
            mesh = self._near.get(place.host)
            near = None if mesh is None else mesh.attach(place.local)
            started.append(threading.Thread(target=connect, args=(rank, description, near)))
            started[-1].start()
        for one in started:
            one.join()
        self.close_parent()
        if failed:
            raise failed[0]
        return [found[rank] for rank in sorted(found)]

    def close_parent(self) -> None:
        """Close the launcher's copies, once all processes are started. Idempotent."""
        if self._clocks >= 0:
            os.close(self._clocks)
            self._clocks = -1
        for one in self._sockets.values():
            one.close()
        for mesh in self._near.values():
            mesh.close_parent()


def emulated_threads(emulation: Emulation, capacity: int, *, own: HandOver = NO_HAND_OVER) -> list[Endpoint]:
    """The endpoints of the emulation's ranks, one for each thread of this process: see `EmulatedMesh.create`."""
    crowded = available_cores() + 1  # threads of one process take turns: who looks without a break keeps others off
    return EmulatedMesh.create(capacity, emulation, threads=crowded, own=own).threads()


def attach_emulated(description: EmulatedDescription, timeout_s: float = CONNECT_TIMEOUT_S) -> Endpoint:
    """The endpoint of the rank that this process is, once all others have called this. It takes the descriptors over.

    Errors: WaitTimeout where one has not; PeerLost where one has ended.
    """
    clocks = SharedClocks(description["clocks"], max(description["hosts"]) + 1)
    near = None if description["near"] is None else ShmEndpoint.attach(description["near"])
    return _endpoint(description, clocks, near, timeout_s)


def _endpoint(
    description: EmulatedDescription, clocks: SharedClocks, near: ShmEndpoint | None, timeout_s: float
) -> Endpoint:
    rank, hosts = description["rank"], description["hosts"]
    place, others = _place(hosts, rank), [other for other in range(len(hosts)) if other != rank]
    paces = {
        target: WirePace(Wire(latency_s, bandwidth), clocks.of(place.host, target), HandOver(*description["own"]))
        for target, latency_s, bandwidth in description["wires"]
    }
    connections = {
        other: socket.socket(fileno=descriptor)
        for other, descriptor in zip(others, description["sockets"], strict=True)
    }
    far = C10dEndpoint(
        connections,
        rank,
        len(hosts),
        description["capacity"],
        paces={other: paces[hosts[other]] for other in others if hosts[other] in paces},
        spins=not description["crowded"],
        host=place.host,
        timeout_s=timeout_s,
    )
    return far if near is None else Joined(near, far, place.ranks)


def _pair() -> tuple[socket.socket, socket.socket]:
    """Connected sockets that hold as much as the system lets them: what is on an emulated link lies in them."""
    one, other = socket.socketpair()
    for end in (one, other):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _HOLD_BYTES)
    return one, other


def _place(hosts: Sequence[int], rank: int) -> _Place:
    ranks = tuple(other for other, host in enumerate(hosts) if host == hosts[rank])
    return _Place(hosts[rank], ranks.index(rank), ranks)
