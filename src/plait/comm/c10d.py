"""Ranks anywhere that a launcher of torch.distributed connects, on CPUs: the contract over a connection a pair.

Every directed link is a stream of frames (`frames`, `wire`); collectives are made of them too (`framed`). So bytes are
counted where they are written, sums are added in rank order, and a death is noticed in one way. Groups of GPUs use
NCCL of torch.distributed.

Nothing is encrypted, and the launcher's store has no authentication: trusted networks only.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NoReturn, TypeVar

import torch
from typing_extensions import override

from plait.comm.contract import DEFAULT_TIMEOUT_S, Group, Tag, Traffic, timed_out
from plait.comm.ears import Ears
from plait.comm.framed import FramedCollectives
from plait.comm.frames import NOTHING, Frame, Kind, dtype_code
from plait.comm.inbox import Inbox
from plait.comm.link import host_tensor
from plait.comm.lost import LEFT, SILENT, Gone, check_alive
from plait.comm.nccl import DeviceGroup, NcclCollectives
from plait.comm.routed import Collecting, Routed
from plait.comm.sleeper import Sleeper
from plait.comm.wire import Pace, Wire
from plait.errors import RunError

T = TypeVar("T")

VERSION = 2
HELLO_TIMEOUT_S = 60.0
LAST_WORDS_S = 2.0
LOOK_AGAIN_S = 0.02
SPIN_S = 100e-6
LARGE_BYTES = 1 << 16


class _Link:
    """Both directions between this rank and another: what was sent, and what has arrived and is not claimed yet."""

    def __init__(self, endpoint: C10dEndpoint, connection: socket.socket, peer: int, pace: Pace | None) -> None:
        self.peer = peer
        self.inbox = Inbox()
        self.control: deque[bytes] = deque()
        self.steps: deque[tuple[int, torch.Tensor]] = deque()
        self.hello: tuple[int, int, int] | None = None
        self.device = ""
        self.arrived = self.taken = self.dropped = 0
        self.messages = self.payload_bytes = self.control_bytes = 0
        self.taken_there = self.dropped_there = 0
        self._endpoint, self._capacity = endpoint, endpoint.capacity
        self.wire = Wire(connection, lambda: (self.taken, self.dropped), self._heard, self._broke, pace)

    def try_send(self, tag: Tag, tensor: torch.Tensor) -> bool:
        """See `Endpoint.try_send`."""
        code = dtype_code(tensor)
        with self.wire.lock:
            if self.messages - self.taken_there >= self._capacity:
                return False
            self.messages += 1
            self.payload_bytes += tensor.nbytes
            self.wire.send(Kind.MESSAGE, tag, code, tensor)
        return True

    def try_receive(self, tag: Tag) -> torch.Tensor | None:
        """See `Endpoint.try_receive`."""
        inbox = self.inbox
        with self.wire.lock:
            if tag.epoch > inbox.epoch:
                self._drop(inbox.move_to(tag.epoch))
            tensor = inbox.take(tag) if inbox else None
            if tensor is not None:
                self.taken += 1
            self._give_room(large=tensor is not None and tensor.nbytes > LARGE_BYTES)
        return tensor

    def _drop(self, count: int) -> None:
        self.dropped += count
        self.taken += count

    def _give_room(self, *, large: bool = False) -> None:
        """Tell the sender what was taken, as soon as it may have no room: any other frame says it too.

        Of a large message at once: beside it a frame is nothing, and the next one need not wait for a turn of the link.
        """
        if self.taken > self.wire.acked and (large or self.arrived - self.wire.acked >= self._capacity):
            self.wire.send(Kind.NOTE)

    def _heard(self, frame: Frame, payload: torch.Tensor) -> bool:
        """Keep what has come, with the wire's lock."""
        self.taken_there, self.dropped_there = frame.counters.taken, frame.counters.dropped
        kind = frame.kind
        if kind is Kind.MESSAGE:
            self.arrived += 1
            if not self.inbox.put(Tag(*frame.words), payload):
                self._drop(1)
            self._give_room()
        elif kind is Kind.STEP:
            self.steps.append((frame.words[0], payload))
        elif kind is Kind.CONTROL:
            self.control.append(payload.numpy().tobytes())
        elif kind is Kind.HELLO:
            self.device, self.hello = text_of(payload), frame.words
        elif kind is not Kind.NOTE:
            self._left(frame, payload)
            return False
        return True

    def _left(self, frame: Frame, reason: torch.Tensor) -> None:
        if frame.kind is Kind.BYE:
            how = Gone(self.peer, LEFT, in_order=True)
        else:
            how = Gone(frame.words[0], text_of(reason), in_order=False)
        self.wire.send(Kind.BYE)  # unless our own last frame is on its way
        self._endpoint.lose(self.peer, how)

    def _broke(self, text: str) -> None:
        self._endpoint.lose(self.peer, Gone(self.peer, text or SILENT, in_order=False))


class C10dEndpoint(Routed):
    """One rank's side, on host number `host`, which takes over a connected stream socket to each other rank.

    All ranks make theirs at the same time. `paces`: of the links that are emulated. `spins`: whether a wait looks for
    up to 100 µs before it sleeps, which is good where each rank has a core.
    `device`: what this rank's tensors live on, cpu or cuda. `open_devices` opens NCCL's group of the ranks given, which
    all of them ask for at the same time.
    """

    def __init__(
        self,
        connections: Mapping[int, socket.socket],
        rank: int,
        size: int,
        capacity: int,
        *,
        paces: Mapping[int, Pace] | None = None,
        spins: bool = False,
        host: int = 0,
        device: str = "cpu",
        open_devices: Callable[[tuple[int, ...]], DeviceGroup] | None = None,
        timeout_s: float = HELLO_TIMEOUT_S,
    ) -> None:
        if size < 1 or capacity < 1:
            raise RunError(f"a mesh of {size} ranks with capacity {capacity} cannot work: both must be at least 1")
        self.rank, self.size, self.capacity = rank, size, capacity
        self.gone: dict[int, Gone] = {}
        self._spin_s = SPIN_S if spins else 0.0
        self._elsewhere: frozenset[int] = frozenset()
        self._lock = threading.Lock()
        self.hosts = [host] * size
        """The number of every rank's host."""
        self.devices = [device] * size
        """What every rank's tensors live on: cpu or cuda."""
        self._open_devices = open_devices
        self._device_groups: dict[tuple[int, ...], DeviceGroup] = {}
        self._has_left = False
        self._links = _Links(self)
        for other, connection in sorted(connections.items()):
            self._links[other] = _Link(self, connection, other, (paces or {}).get(other))
        self._ears = Ears([link.wire for link in self._links.values()], self._spin_s)
        self._collectives = FramedCollectives(self)
        try:
            self._greet(timeout_s)
        except BaseException:
            self._let_go(0.0)
            raise
        self._ears.start()

    def _greet(self, timeout_s: float) -> None:
        """Tell all others who we are, and hear it from them: from then on every link is known to work."""
        for link in self._links.values():
            words = (VERSION, self.capacity, self.hosts[self.rank])
            link.wire.send(Kind.HELLO, words, tensor=bytes_tensor(self.devices[self.rank].encode()), owned=True)
        deadline = time.perf_counter() + timeout_s
        with self._ears.attending():
            while missing := {link.peer for link in self._links.values() if not link.hello}:
                lost = {rank: how for rank, how in self.gone.items() if rank in missing}  # others may already be done
                check_alive(self.rank, self.size, lost, "all ranks to connect", tuple(missing))
                if time.perf_counter() > deadline:
                    raise timed_out(self.rank, f"rank {', '.join(map(str, sorted(missing)))} to connect", timeout_s)
                self._ears.sleep(LOOK_AGAIN_S)
        for other, link in self._links.items():
            version, capacity, self.hosts[other] = link.hello or (0, 0, 0)
            self.devices[other] = link.device
            if (version, capacity) != (VERSION, self.capacity):
                raise RunError(
                    f"rank {self.rank} talks version {VERSION} of the frames with capacity {self.capacity}, "
                    f"rank {other} version {version} with {capacity}: "
                    "start all ranks with one version of Plait and one plan"
                )

    # --- messages between two ranks ---------------------------------------------------------------------

    @override
    def try_send(self, to: int, tag: Tag, tensor: torch.Tensor) -> bool:
        link, host = self._links[to], host_tensor(tensor)
        if link.try_send(tag, host):
            return True
        self._ears.look(link.wire)  # for the other side's word that there is room
        return link.try_send(tag, host)

    @override
    def try_receive(self, source: int, tag: Tag) -> torch.Tensor | None:
        link = self._links[source]
        tensor = link.try_receive(tag)
        if tensor is None:
            self._ears.look(link.wire)
            tensor = link.try_receive(tag)
        return tensor

    @override
    def post(self, to: int, message: bytes) -> None:
        link = self._links[to]
        link.control_bytes += len(message)
        link.wire.send(Kind.CONTROL, tensor=bytes_tensor(message), owned=True)

    @override
    def poll(self, source: int) -> bytes | None:
        link = self._links[source]
        if not link.control:
            self._ears.look(link.wire)
        return link.control.popleft() if link.control else None

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
        with self._ears.attending():
            while True:
                gone = dict(self.gone)
                result = ready()
                if result is not None:
                    return result
                if gone:  # older than that look: what had arrived before the death was still returned
                    check_alive(self.rank, self.size, gone, what, peers)
                waited = clock() - start
                if waited >= timeout_s:
                    raise timed_out(self.rank, what, timeout_s)
                if waited >= self._spin_s:
                    self._ears.sleep(timeout_s - waited)

    def sleep_in(self, sleeper: Sleeper) -> None:
        """Whoever sleeps in it hears what comes."""
        self._ears.sleep_in(sleeper)

    def attending(self) -> AbstractContextManager[None]:
        """The rank's own thread reads meanwhile: in a wait that is not this endpoint's own."""
        return self._ears.attending()

    # --- collectives ------------------------------------------------------------------------------------

    def give(self, to: int, call: int, tensor: torch.Tensor) -> None:
        """This rank's part of a collective for rank `to`. Nobody may change the tensor any more."""
        link = self._links[to]
        link.payload_bytes += tensor.nbytes
        link.wire.send(Kind.STEP, (call, 0, 0), dtype_code(tensor), tensor, owned=True)

    def came(self, source: int) -> tuple[int, torch.Tensor] | None:
        """The next part of a collective from rank `source`, with its call."""
        link = self._links[source]
        if not link.steps:
            self._ears.look(link.wire)
        return link.steps.popleft() if link.steps else None

    @override
    def collectives_of(self, group: Group) -> Collecting:
        return self.on_devices(group, self._collectives)

    def on_devices(self, group: Group, usual: Collecting) -> Collecting:
        """The `usual` collectives, or NCCL's where the group is one of CUDA devices."""
        if self._open_devices is None or len(group.ranks) == 1:
            return usual
        if any(self.devices[rank] != "cuda" for rank in group.ranks):
            return usual
        if group.ranks not in self._device_groups:
            self._device_groups[group.ranks] = self._open_devices(group.ranks)
        return NcclCollectives(self._device_groups[group.ranks], group.ranks.index(self.rank), usual, self._count)

    def _count(self, to: int, payload_bytes: int) -> None:
        self._links[to].payload_bytes += payload_bytes

    # --- life -------------------------------------------------------------------------------------------

    @override
    def traffic(self, to: int) -> Traffic:
        link = self._links[to]
        return Traffic(link.messages, link.payload_bytes, link.control_bytes, link.dropped_there)

    def lose(self, rank: int, how: Gone) -> None:
        """Rank `rank` is gone."""
        with self._lock:
            if rank not in self._elsewhere:
                self.gone.setdefault(rank, how)

    def report_to(self, gone: dict[int, Gone], elsewhere: frozenset[int]) -> None:
        """Another transport, which keeps `gone`, reaches the ranks `elsewhere` too, and knows better how they left."""
        with self._lock:
            gone.update({rank: how for rank, how in self.gone.items() if rank not in elsewhere})
            self.gone, self._elsewhere = gone, elsewhere

    @override
    def fail(self, reason: str, culprit: int | None = None) -> None:
        self._leave(Kind.FAIL, reason, self.rank if culprit is None else culprit)

    @override
    def close(self) -> None:
        self._leave(Kind.BYE, "", self.rank)

    def _leave(self, kind: Kind, reason: str, culprit: int) -> None:
        """Say so to all, and stay until they have heard it: the end of the process could overtake it."""
        if self._has_left:
            return
        self._has_left = True
        links = self._links.values()
        text = bytes_tensor(reason.encode())
        for link in links:
            link.wire.send(kind, (culprit, 0, 0), tensor=text, owned=True)
        deadline = time.perf_counter() + LAST_WORDS_S
        with self._ears.attending():
            while not all(link.wire.ended for link in links) and time.perf_counter() < deadline:
                self._ears.sleep(LOOK_AGAIN_S)
        self._let_go(LAST_WORDS_S)

    def _let_go(self, timeout_s: float) -> None:
        """Of all connections, once what was said is on its way."""
        links = list(self._links.values())
        self._links.clear()
        self._device_groups.clear()
        self._ears.close()
        for link in links:
            link.wire.close(timeout_s)

    def unknown(self, other: int) -> RunError:
        """The error of talking to a rank that is not there, or after having left."""
        if self._has_left:
            return RunError(f"rank {self.rank} has left the mesh and cannot talk any more")
        return RunError(f"rank {self.rank} has no link with rank {other}: its mesh has ranks 0 to {self.size - 1}")


class _Links(dict[int, _Link]):
    """The link with each other rank."""

    def __init__(self, owner: C10dEndpoint) -> None:
        super().__init__()
        self._owner = owner

    def __missing__(self, rank: int) -> NoReturn:
        raise self._owner.unknown(rank)


def bytes_tensor(data: bytes) -> torch.Tensor:
    """The bytes as a tensor of their own."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else NOTHING


def text_of(tensor: torch.Tensor) -> str:
    """The text whose bytes these are."""
    return tensor.numpy().tobytes().decode(errors="replace")
