"""An action: one atomic thing that a rank does in a round, and the lane it runs in."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Lane(Enum):
    """Where order holds. Waits go across lanes."""

    COMPUTE = "compute"
    P2P = "p2p"


class Kind(Enum):
    """What an action does. The value is its letters in the notation."""

    FORWARD = "F"
    SEND_FORWARD = "SF"
    RECEIVE_FORWARD = "RF"
    SEND_TOKENS = "ST"
    RECEIVE_TOKENS = "RT"

    @property
    def lane(self) -> Lane:
        """The lane that keeps this kind in order."""
        return Lane.COMPUTE if self is Kind.FORWARD else Lane.P2P

    @property
    def sends(self) -> bool:
        """True for the kinds that put a message on a link."""
        return self in (Kind.SEND_FORWARD, Kind.SEND_TOKENS)

    @property
    def receives(self) -> bool:
        """True for the kinds that take a message off a link."""
        return self in (Kind.RECEIVE_FORWARD, Kind.RECEIVE_TOKENS)


class Action(NamedTuple):
    """`stage` does `kind` for `micro_batch` of `round`; `part` where a pass cut the action into several.

    A token message is named by the round that made the tokens, on both its ends, also where its receiver takes it
    in a later round (it is carried over).
    """

    round: int
    stage: int
    kind: Kind
    micro_batch: int
    part: int | None = None
