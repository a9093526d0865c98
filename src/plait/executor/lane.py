"""The p2p lane of a rank, as both executors have it, and what they need of a transport.

The lane is a queue that moves on whenever its executor lets it: when a message is queued, and while compute waits. So
a send never blocks compute, order holds within the lane, and no second thread takes the core away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch

from plait.comm.contract import DEFAULT_TIMEOUT_S, Tag, Traffic
from plait.plans.action import Action, Kind
from plait.plans.layout import Layout
from plait.plans.rules import partner
from plait.timeline.observer import Observer

T = TypeVar("T")
K = TypeVar("K")

_KINDS = tuple(Kind)
_PARTS = 1 << 8
_MICRO_BATCHES = 1 << 16


class Messages(Protocol):
    """What an executor needs of a transport: any `comm.Endpoint`, or a virtual one in tests."""

    idle: Callable[[], None] | None
    """See `comm.Endpoint.idle`."""

    def try_send(self, to: int, tag: Tag, tensor: torch.Tensor) -> bool:
        """See `comm.Endpoint.try_send`."""

    def try_receive(self, source: int, tag: Tag) -> torch.Tensor | None:
        """See `comm.Endpoint.try_receive`."""

    def traffic(self, to: int) -> Traffic:
        """See `comm.Endpoint.traffic`."""

    def wait(
        self, ready: Callable[[], T | None], what: str, timeout_s: float = DEFAULT_TIMEOUT_S, peers: Sequence[int] = ()
    ) -> T:
        """See `comm.Endpoint.wait`."""


def action_code(action: Action) -> int:
    """An action as one number, its round apart."""
    code = (action.stage * len(_KINDS) + _KINDS.index(action.kind)) * _MICRO_BATCHES + action.micro_batch
    return code * _PARTS + (action.part or 0)


def message_tag(epoch: int, action: Action, stages: int) -> Tag:
    """The tag of a message: (epoch, round, the *sending* action as one number), the same on both its ends."""
    sender = action if action.kind.sends else partner(action, stages)
    return Tag(epoch, sender.round, action_code(sender))


class Address(NamedTuple):
    """The rank at the other end of a message, and the message's tag."""

    peer: int
    tag: Tag


class Post:
    """Where the messages of rank `rank` go to and come from: the rank at the same place of the other stage."""

    def __init__(self, layout: Layout, rank: int) -> None:
        self._layout, self._stages = layout, len(layout.stages)
        self._place = layout.stages[layout.stage_of(rank)].ranks.index(rank)

    def peer(self, action: Action) -> int:
        """The rank at the other end of a message."""
        return self._layout.stages[partner(action, self._stages).stage].ranks[self._place]

    def address(self, action: Action) -> Address:
        """Where a message goes to, or comes from."""
        return Address(self.peer(action), message_tag(self._layout.epoch, action, self._stages))


class _Queued(NamedTuple, Generic[K]):
    """A send with its tensor, or a receive without; `key` is what its executor calls it."""

    action: Action
    key: K
    address: Address
    tensor: torch.Tensor | None


class MessageLane(Generic[K]):
    """Sends and receives in order. `took(key, tensor)` is called with what a receive has brought.

    `done` counts the messages that have moved.
    """

    def __init__(
        self,
        messages: Messages,
        took: Callable[[K, torch.Tensor], None],
        observer: Observer | None,
        clock: Callable[[], float],
    ) -> None:
        self._messages, self._took, self._observer, self._clock = messages, took, observer, clock
        self._queue: deque[_Queued[K]] = deque()
        self._head_since = 0.0
        self._written_before: int | None = None
        self.done = 0

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def head(self) -> tuple[Action, int]:
        """The first that has not moved, and the rank at its other end."""
        first = self._queue[0]
        return first.action, first.address.peer

    @property
    def last(self) -> tuple[Action, int]:
        """The last that is queued, and the rank at its other end."""
        last = self._queue[-1]
        return last.action, last.address.peer

    def add(self, action: Action, key: K, address: Address, tensor: torch.Tensor | None) -> None:
        """Queue a send of `tensor`, or a receive. `progress` moves it."""
        if not self._queue:
            self._head_since = self._clock()
        self._queue.append(_Queued(action, key, address, tensor))

    def progress(self) -> None:
        """Move on as far as it goes now."""
        queue = self._queue
        while queue and self._move(queue[0]):
            queue.popleft()
            self.done += 1
            self._head_since = self._clock()

    def _move(self, message: _Queued[K]) -> bool:
        action, key, (peer, tag), tensor = message
        size = 0
        if tensor is not None:
            ready = self._head_since
            written = self._send(peer, tag, tensor)
            if written is None:
                return False
            size = written
        else:
            ready = self._clock()
            received = self._messages.try_receive(peer, tag)
            if received is None:
                return False
            self._took(key, received)
        if self._observer is not None:
            self._observer.finished(action, self._head_since, ready, self._clock(), size)
        return True

    def _send(self, peer: int, tag: Tag, tensor: torch.Tensor) -> int | None:
        """What the transport wrote of a message that it has taken: measured, not computed. None while it has not.

        Only this message uses its link until it is taken, also where that needs several calls.
        """
        if self._observer is None:
            return 0 if self._messages.try_send(peer, tag, tensor) else None
        if self._written_before is None:
            self._written_before = self._messages.traffic(peer).payload_bytes
        if not self._messages.try_send(peer, tag, tensor):
            return None
        written = self._messages.traffic(peer).payload_bytes - self._written_before
        self._written_before = None
        return written
