"""One endpoint for a mesh over several hosts: ranks of one host talk over shared memory, others over connections.

A group that lies wholly on this host uses the collectives of shared memory, any other those over frames, between all
its ranks: both add in rank order, so the bits are the same wherever the ranks are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from typing_extensions import override

from plait.comm.c10d import C10dEndpoint
from plait.comm.contract import DEFAULT_TIMEOUT_S, Endpoint, Group, Tag, Traffic
from plait.comm.framed import FramedCollectives
from plait.comm.routed import Collecting, Routed
from plait.comm.shm import ShmEndpoint

T = TypeVar("T")


class Joined(Routed):
    """`near`, a mesh of the ranks `ranks` (ascending) on this host, as a part of `far`, that of all ranks.

    It takes both over. Numbers of ranks are those of `far`, in every error too.
    """

    def __init__(self, near: ShmEndpoint, far: C10dEndpoint, ranks: Sequence[int]) -> None:
        near.renumber(ranks, far.size)
        self.rank, self.size, self.capacity = far.rank, far.size, far.capacity
        self._near, self._far = near, far
        self._here = frozenset(ranks)
        far.sleep_in(near.sleeper)
        far.report_to(near.gone, self._here)
        self._framed = FramedCollectives(self)
        self._idle: Callable[[], None] | None = None

    @property
    def idle(self) -> Callable[[], None] | None:
        """See `Endpoint.idle`."""
        return self._idle

    @idle.setter
    def idle(self, value: Callable[[], None] | None) -> None:
        self._idle = self._near.idle = value

    def _way(self, rank: int) -> Endpoint:
        return self._near if rank in self._here else self._far

    # --- messages between two ranks ---------------------------------------------------------------------

    @override
    def try_send(self, to: int, tag: Tag, tensor: torch.Tensor) -> bool:
        return self._way(to).try_send(to, tag, tensor)

    @override
    def try_receive(self, source: int, tag: Tag) -> torch.Tensor | None:
        return self._way(source).try_receive(source, tag)

    @override
    def post(self, to: int, message: bytes) -> None:
        self._way(to).post(to, message)

    @override
    def poll(self, source: int) -> bytes | None:
        return self._way(source).poll(source)

    @override
    def wait(
        self,
        ready: Callable[[], T | None],
        what: str,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        peers: Sequence[int] = (),
    ) -> T:
        if peers and self._here.isdisjoint(peers):
            with self._far.attending():
                return self._near.wait_asleep(ready, what, timeout_s, peers)
        return self._near.wait(ready, what, timeout_s, peers)

    # --- collectives ------------------------------------------------------------------------------------

    def give(self, to: int, call: int, tensor: torch.Tensor) -> None:
        """See `framed.Steps`."""
        self._far.give(to, call, tensor)

    def came(self, source: int) -> tuple[int, torch.Tensor] | None:
        """See `framed.Steps`."""
        return self._far.came(source)

    @override
    def collectives_of(self, group: Group) -> Collecting:
        usual = self._near if self._here.issuperset(group.ranks) else self._framed
        return self._far.on_devices(group, usual)

    # --- life -------------------------------------------------------------------------------------------

    @override
    def traffic(self, to: int) -> Traffic:
        far = self._far.traffic(to)
        if to not in self._here:
            return far
        near = self._near.traffic(to)
        return Traffic(*(one + other for one, other in zip(near, far, strict=True)))

    @override
    def fail(self, reason: str, culprit: int | None = None) -> None:
        self._near.fail(reason, culprit)
        self._far.fail(reason, culprit)

    @override
    def close(self) -> None:
        # first far: ranks of this host that wait for frames of ours must not hear of our end before them
        self._far.close()
        self._near.close()
