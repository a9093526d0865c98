"""Ranks as threads of one process: for tests over many meshes and for `certify`.

Every rank has a condition and a version that counts what has happened to it. A wait notes the version, calls `ready`
without the lock, and sleeps only while the version is still the same: nothing is missed, nothing spins.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

import torch
from typing_extensions import override

from plait.comm.calls import NO_DTYPE, Call, Op, add_in_order, code_of, cut_of, mismatch, row_bytes
from plait.comm.contract import DEFAULT_TIMEOUT_S, Endpoint, Group, Tag, Traffic, timed_out
from plait.comm.inbox import Inbox
from plait.comm.lost import LEFT, Gone, check_alive
from plait.errors import RunError
from plait.plans.exchanges import AT_ONCE_BYTES, BLOCK_BYTES

T = TypeVar("T")

LOOK_AGAIN_S = 0.5
"""How long a wait may sleep: `idle` is called at least so often."""


class _Link:
    """One directed link, both its sides; guarded by the mesh's lock."""

    def __init__(self) -> None:
        self.inbox = Inbox()
        self.control: deque[bytes] = deque()
        self.unreceived = 0
        self.messages = self.payload_bytes = self.control_bytes = self.dropped = 0


class _Meeting:
    """One collective call of a group: what each rank brought."""

    def __init__(self) -> None:
        self.brought: dict[int, tuple[Call, list[torch.Tensor]]] = {}
        self.left = 0


class _Mesh:
    """What the threads share."""

    def __init__(self, size: int) -> None:
        self.lock = threading.RLock()
        self.changed = [threading.Condition(self.lock) for _ in range(size)]
        self.versions = [0] * size
        self.gone: dict[int, Gone] = {}
        self.links = {(a, b): _Link() for a in range(size) for b in range(size) if a != b}
        self.meetings: dict[tuple[tuple[int, ...], int], _Meeting] = {}

    def tell(self, ranks: Sequence[int]) -> None:
        """Something has happened to `ranks`. Called with the lock held."""
        for rank in ranks:
            self.versions[rank] += 1
            self.changed[rank].notify()


class ThreadEndpoint(Endpoint):
    """One rank's side. `thread_mesh` makes all of a mesh at once."""

    def __init__(self, mesh: _Mesh, rank: int, size: int, capacity: int) -> None:
        self.rank, self.size, self.capacity = rank, size, capacity
        self._mesh = mesh
        self._calls: Counter[tuple[int, ...]] = Counter()

    def _link(self, source: int, to: int) -> _Link:
        if self.rank in self._mesh.gone:
            raise RunError(f"rank {self.rank} has left the mesh and cannot talk any more")
        link = self._mesh.links.get((source, to))
        if link is None:
            other = to if source == self.rank else source
            raise RunError(f"rank {self.rank} has no link with rank {other}: its mesh has ranks 0 to {self.size - 1}")
        return link

    # --- messages between two ranks ---------------------------------------------------------------------

    @override
    def try_send(self, to: int, tag: Tag, tensor: torch.Tensor) -> bool:
        link = self._link(self.rank, to)
        code_of(tensor.dtype)
        with self._mesh.lock:
            if link.unreceived >= self.capacity:
                return False
            link.unreceived += 1
            link.messages += 1
            link.payload_bytes += tensor.nbytes
            if not link.inbox.put(tag, _copy(tensor)):
                self._drop(link, 1)
            self._mesh.tell((to,))
        return True

    @override
    def try_receive(self, source: int, tag: Tag) -> torch.Tensor | None:
        link = self._link(source, self.rank)
        with self._mesh.lock:
            if tag.epoch > link.inbox.epoch:
                self._drop(link, link.inbox.move_to(tag.epoch))
                self._mesh.tell((source,))
            tensor = link.inbox.take(tag)
            if tensor is not None:
                link.unreceived -= 1
                self._mesh.tell((source,))
        return tensor

    def _drop(self, link: _Link, count: int) -> None:
        link.dropped += count
        link.unreceived -= count

    @override
    def post(self, to: int, message: bytes) -> None:
        link = self._link(self.rank, to)
        with self._mesh.lock:
            link.control.append(bytes(message))
            link.control_bytes += len(message)
            self._mesh.tell((to,))

    @override
    def poll(self, source: int) -> bytes | None:
        control = self._link(source, self.rank).control
        return control.popleft() if control else None

    @override
    def wait(
        self,
        ready: Callable[[], T | None],
        what: str,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        peers: Sequence[int] = (),
    ) -> T:
        deadline = time.monotonic() + timeout_s
        mesh, rank = self._mesh, self.rank
        while True:
            version = mesh.versions[rank]
            gone = dict(mesh.gone)
            result = ready()
            if result is not None:
                return result
            # what had arrived before the death was still returned: `gone` is older than that look
            check_alive(rank, self.size, gone, what, peers)
            with mesh.lock:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise timed_out(rank, what, timeout_s)
                if mesh.versions[rank] == version:
                    mesh.changed[rank].wait(min(remaining, LOOK_AGAIN_S))

    # --- collectives ------------------------------------------------------------------------------------

    @override
    def all_reduce(self, group: Group, tensor: torch.Tensor) -> torch.Tensor:
        call = Call(Op.ALL_REDUCE, code_of(tensor.dtype), tensor.nbytes)
        if tensor.nbytes <= AT_ONCE_BYTES or len(group.ranks) <= 2:
            total = add_in_order([piece for (piece,) in self._meet(group, call, [_copy(tensor)])])
        else:
            blocks = torch.split(_copy(tensor).view(-1), BLOCK_BYTES // tensor.element_size() * len(group.ranks))
            total = torch.cat([self._reduce_pieces(group, call, block) for block in blocks]).view(tensor.shape)
        with torch.no_grad():
            tensor.copy_(total)
        return tensor

    def _reduce_pieces(self, group: Group, call: Call, block: torch.Tensor) -> torch.Tensor:
        """The sum of a block of a larger tensor: each rank adds one piece and hands it round."""
        ranks, mine = len(group.ranks), group.ranks.index(self.rank)
        bounds = [len(block) * index // ranks for index in range(ranks + 1)]
        pieces = list(torch.split(block, [end - start for start, end in pairwise(bounds)]))
        met = self._meet(group, call, pieces, to_each=True)
        return torch.cat([piece for (piece,) in self._meet(group, call, [add_in_order([p[mine] for p in met])])])

    @override
    def reduce_scatter(self, group: Group, tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        call = Call(Op.REDUCE_SCATTER, code_of(tensor.dtype), tensor.nbytes, cut_of(sizes))
        met = self._meet(group, call, list(torch.split(_copy(tensor), list(sizes))), to_each=True)
        mine = group.ranks.index(self.rank)
        return add_in_order([pieces[mine] for pieces in met])

    @override
    def all_gather(self, group: Group, tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        call = Call(Op.ALL_GATHER, code_of(tensor.dtype), sum(sizes) * row_bytes(tensor), cut_of(sizes))
        return torch.cat([piece for (piece,) in self._meet(group, call, [_copy(tensor)])])

    @override
    def all_to_all(self, group: Group, pieces: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        met = self._meet(group, Call(Op.ALL_TO_ALL, NO_DTYPE, 0), [_copy(piece) for piece in pieces], to_each=True)
        mine = group.ranks.index(self.rank)
        return [theirs[mine] for theirs in met]

    @override
    def broadcast(self, group: Group, tensor: torch.Tensor, source: int) -> torch.Tensor:
        call = Call(Op.BROADCAST, code_of(tensor.dtype), tensor.nbytes)
        met = self._meet(group, call, [_copy(tensor)] if self.rank == source else [])
        with torch.no_grad():
            tensor.copy_(met[group.ranks.index(source)][0])
        return tensor

    @override
    def barrier(self, group: Group) -> None:
        self._meet(group, Call(Op.BARRIER, NO_DTYPE, 0), [])

    def _meet(
        self, group: Group, call: Call, brought: list[torch.Tensor], *, to_each: bool = False
    ) -> list[list[torch.Tensor]]:
        """Bring tensors to the group's next meeting: all to everyone, or one `to_each` rank.

        Returns what everyone brought, in rank order.
        """
        ranks = group.ranks
        others = [rank for rank in ranks if rank != self.rank]
        for other in others:
            self._link(self.rank, other)
        key = (ranks, self._calls[ranks])
        self._calls[ranks] += 1
        self._count(group, brought, to_each)
        with self._mesh.lock:
            meeting = self._mesh.meetings.setdefault(key, _Meeting())
            meeting.brought[self.rank] = (call, brought)
            if len(meeting.brought) == len(ranks):
                self._mesh.tell(others)  # earlier it would wake each of them for nothing, once for every other
        what = f"{call} of ranks {', '.join(map(str, ranks))}"
        self.wait(lambda: self._met(meeting, len(ranks)), what, peers=others)
        with self._mesh.lock:
            meeting.left += 1
            if meeting.left == len(ranks):
                del self._mesh.meetings[key]
        for rank in ranks:
            if meeting.brought[rank][0] != call:
                raise mismatch(call, self.rank, meeting.brought[rank][0], rank)
        return [meeting.brought[rank][1] for rank in ranks]

    def _met(self, meeting: _Meeting, size: int) -> bool | None:
        """Whether everyone has come. Until then what this rank has queued moves on."""
        if len(meeting.brought) < size and self.idle is not None:
            self.idle()
        return len(meeting.brought) == size or None

    def _count(self, group: Group, brought: list[torch.Tensor], to_each: bool) -> None:
        """Payload bytes: what each other rank is given to read."""
        for index, other in enumerate(group.ranks):
            if other != self.rank:
                given = brought[index : index + 1] if to_each else brought
                self._mesh.links[self.rank, other].payload_bytes += sum(tensor.nbytes for tensor in given)

    # --- life -------------------------------------------------------------------------------------------

    @override
    def traffic(self, to: int) -> Traffic:
        link = self._mesh.links[self.rank, to]
        return Traffic(link.messages, link.payload_bytes, link.control_bytes, link.dropped)

    @override
    def fail(self, reason: str, culprit: int | None = None) -> None:
        self._leave(Gone(self.rank if culprit is None else culprit, reason, in_order=False))

    @override
    def close(self) -> None:
        self._leave(Gone(self.rank, LEFT, in_order=True))

    def _leave(self, how: Gone) -> None:
        with self._mesh.lock:
            if self._mesh.gone.setdefault(self.rank, how) is how:
                self._mesh.tell(range(self.size))


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy in host memory that nobody else holds."""
    return tensor.detach().to("cpu", copy=True).contiguous()


def thread_mesh(size: int, capacity: int) -> list[Endpoint]:
    """The endpoints of `size` ranks, one for each thread of this process."""
    if size < 1 or capacity < 1:
        raise RunError(f"a mesh of {size} ranks with capacity {capacity} cannot work: both must be at least 1")
    mesh = _Mesh(size)
    return [ThreadEndpoint(mesh, rank, size, capacity) for rank in range(size)]
