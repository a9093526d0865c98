"""How ranks talk: one small contract, that every transport keeps and every contract test tries.

Messages between two ranks are tensors with a `Tag`; they are matched by tag, never by order alone. At most
`capacity` messages of one directed link lie unreceived (the plan's k); a further one is not taken yet, so that
the caller can go on with something else. A message is received when `try_receive` has returned it (or dropped it,
being of an older epoch): what the transport merely moved nearer still counts, so that k means what the plan's checker
means. Control messages are small bytes beside them, in order, without that limit.

Reductions add in rank order, in the tensor's dtype: every rank gets the same bits, every run the same. The ranks of a
group call its collectives in the same order, with the same sizes; where they differ, `RunError` says how.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

import torch

from plait.errors import PeerLost, WaitTimeout

T = TypeVar("T")

DEFAULT_TIMEOUT_S = 600.0


class Tag(NamedTuple):
    """What a message is: the plan's epoch, the round, and the action that sends it, as three numbers."""

    epoch: int
    round: int
    action: int


class Group(NamedTuple):
    """The ranks of one collective, in ascending order. A value: it is passed down, never looked up."""

    ranks: tuple[int, ...]


class Traffic(NamedTuple):
    """What one directed link carried, counted where the transport writes. Bytes are payload; control apart.

    `messages` are those between two ranks; collectives count in `payload_bytes` only. `dropped` are messages that
    the receiver found to be of an older epoch.
    """

    messages: int
    payload_bytes: int
    control_bytes: int
    dropped: int


class Endpoint(ABC):
    """One rank's side of a transport. Used by one thread only.

    As a context manager it leaves by `close`, or by `fail` when an exception ends the block.
    """

    rank: int
    size: int
    capacity: int
    idle: Callable[[], None] | None = None
    """Called now and then while a collective waits for other ranks. Messages that this rank has queued must move on
    then: the rank it waits for may need them, or the room that they take."""

    # --- messages between two ranks ---------------------------------------------------------------------

    @abstractmethod
    def try_send(self, to: int, tag: Tag, tensor: torch.Tensor) -> bool:
        """Copy `tensor` onto the link and return True, or return False where it has no room yet.

        After True the caller may reuse the tensor. A message larger than the transport's buffers may need several
        calls, with the same arguments, until it returns True; until then a message with another tag on this link
        gets False, and the tensor stays as it is (`wait` may go on copying it).
        """

    @abstractmethod
    def try_receive(self, source: int, tag: Tag) -> torch.Tensor | None:
        """The message with this tag as a tensor that the caller owns, or None where it has not arrived.

        A message of an older epoch than the tag's is dropped and counted.
        """

    @abstractmethod
    def post(self, to: int, message: bytes) -> None:
        """Send a control message. Never blocks, never lost while both ranks live; in order per link."""

    @abstractmethod
    def poll(self, source: int) -> bytes | None:
        """The next control message from `source`, or None."""

    @abstractmethod
    def wait(
        self,
        ready: Callable[[], T | None],
        what: str,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        peers: Sequence[int] = (),
    ) -> T:
        """Call `ready` until it returns something other than None: spin at most 200 µs, then sleep in the kernel.

        Errors: PeerLost when any rank of the mesh dies meanwhile, or when one of `peers` (or everyone else) has left
        in order; WaitTimeout (naming `what`) when time is up. What had arrived before a death is still returned.
        """

    def send(self, to: int, tag: Tag, tensor: torch.Tensor, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Send, waiting for room on the link."""
        if not self.try_send(to, tag, tensor):
            what = f"room on link {self.rank}→{to}"
            self.wait(lambda: self.try_send(to, tag, tensor) or None, what, timeout_s, (to,))

    def receive(self, source: int, tag: Tag, timeout_s: float = DEFAULT_TIMEOUT_S) -> torch.Tensor:
        """Receive, waiting for the message."""
        message = self.try_receive(source, tag)
        if message is not None:
            return message
        return self.wait(lambda: self.try_receive(source, tag), f"{tag} from rank {source}", timeout_s, (source,))

    # --- collectives ------------------------------------------------------------------------------------

    @abstractmethod
    def all_reduce(self, group: Group, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over the group, in place, added in rank order. Returns `tensor`."""

    @abstractmethod
    def reduce_scatter(self, group: Group, tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """Sum of `tensor` [sum(sizes), …] over the group; rank i of the group gets its `sizes[i]` rows."""

    @abstractmethod
    def all_gather(self, group: Group, tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """All ranks' `tensor` [sizes[i], …] one after another: [sum(sizes), …]."""

    @abstractmethod
    def all_to_all(self, group: Group, pieces: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Piece i goes to rank i of the group; returns the pieces that the ranks sent here, in rank order."""

    @abstractmethod
    def broadcast(self, group: Group, tensor: torch.Tensor, source: int) -> torch.Tensor:
        """Copy the tensor of rank `source` into everyone's `tensor`. Returns `tensor`."""

    @abstractmethod
    def barrier(self, group: Group) -> None:
        """Return when all ranks of the group have called it."""

    # --- life -------------------------------------------------------------------------------------------

    @abstractmethod
    def traffic(self, to: int) -> Traffic:
        """What this rank sent to `to` so far."""

    @abstractmethod
    def fail(self, reason: str, culprit: int | None = None) -> None:
        """Leave because of an error: all waits of the mesh end with PeerLost, which gives the reason.

        `culprit` is the rank whose loss made this one fail: others name that one, not this.
        """

    @abstractmethod
    def close(self) -> None:
        """Leave in order: peers that wait for this rank afterwards get PeerLost. Idempotent, also after `fail`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.fail(f"{type(error).__name__}: {error}", error.rank if isinstance(error, PeerLost) else None)
        self.close()


def timed_out(rank: int, what: str, timeout_s: float) -> WaitTimeout:
    """The error of a wait that took too long."""
    return WaitTimeout(f"rank {rank} waited {timeout_s:g} s for {what}, and it did not come")


def peer_lost(rank: int, what: str, lost: int, reason: str) -> PeerLost:
    """The error of a wait that cannot end well, because rank `lost` is gone."""
    return PeerLost(f"rank {lost} is lost, while rank {rank} waited for {what}: {reason}", lost)
