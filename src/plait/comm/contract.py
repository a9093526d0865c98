"""How ranks talk: one small contract, that every transport keeps and every contract test tries.

Messages between two ranks are tensors with a `Tag`; they are matched by tag, never by order alone. At most
`capacity` messages of one directed link lie unreceived (the plan's k); a further one is not taken yet, so that
the caller can go on with something else. Control messages are small bytes beside them, in order, without that limit.

Reductions add in rank order: every rank gets the same bits, every run the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import torch

from plait.errors import WaitTimeout

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
    """What one directed link carried, counted where the transport writes. Bytes are payload; control apart."""

    messages: int
    payload_bytes: int
    control_bytes: int
    dropped: int


class Endpoint(ABC):
    """One rank's side of a transport. Used by one thread only."""

    rank: int
    size: int
    capacity: int

    # --- messages between two ranks ---------------------------------------------------------------------

    @abstractmethod
    def try_send(self, to: int, tag: Tag, tensor: torch.Tensor) -> bool:
        """Copy `tensor` onto the link and return True, or return False where it has no room yet.

        After True the caller may reuse the tensor. A message larger than the transport's buffers may need several
        calls, with the same arguments, until it returns True.
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
    def wait(self, ready: Callable[[], T | None], what: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> T:
        """Call `ready` until it returns something other than None: spin at most 200 µs, then sleep in the kernel.

        Errors: PeerLost when any rank of the mesh dies meanwhile, WaitTimeout (naming `what`) when time is up.
        """

    def send(self, to: int, tag: Tag, tensor: torch.Tensor, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Send, waiting for room on the link."""
        if not self.try_send(to, tag, tensor):
            self.wait(lambda: self.try_send(to, tag, tensor) or None, f"room on link {self.rank}→{to}", timeout_s)

    def receive(self, source: int, tag: Tag, timeout_s: float = DEFAULT_TIMEOUT_S) -> torch.Tensor:
        """Receive, waiting for the message."""
        message = self.try_receive(source, tag)
        if message is not None:
            return message
        return self.wait(lambda: self.try_receive(source, tag), f"{tag} from rank {source}", timeout_s)

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
    def close(self) -> None:
        """Leave in order: peers that wait for this rank afterwards get PeerLost. Idempotent."""


def timed_out(rank: int, what: str, timeout_s: float) -> WaitTimeout:
    """The error of a wait that took too long."""
    return WaitTimeout(f"rank {rank} waited {timeout_s:g} s for {what}, and it did not come")
