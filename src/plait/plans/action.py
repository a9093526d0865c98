"""An action: one atomic thing that a rank does in a round, and the lane it runs in."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Lane(Enum):
    """Where order holds. Waits go across lanes."""

    COMPUTE = "compute"
    P2P = "p2p"
    REDUCE = "reduce"


class Kind(Enum):
    """What an action does. The value is its letters in the notation.

    A schedule uses `BACKWARD`, or its two halves: `BACKWARD_INPUT` (the gradient that the stage before waits for) and
    `BACKWARD_WEIGHT` (which only the reduction and the optimizer wait for). `REDUCE_GRADIENTS`, `REDUCE_TIED` (the
    gradient of an embedding that the first and the last stage both hold), `OPTIMIZER` and `GATHER_PARAMETERS` (what
    ZeRO-1 sharded) are of a whole stage: their micro-batch is 0. `NORM` (the gradient norm of the whole mesh, and the
    guards that ride with it) is of a position: it has the position's first stage, and micro-batch 0.
    """

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"
    OPTIMIZER = "O"
    SEND_FORWARD = "SF"
    RECEIVE_FORWARD = "RF"
    SEND_BACKWARD = "SB"
    RECEIVE_BACKWARD = "RB"
    SEND_TOKENS = "ST"
    RECEIVE_TOKENS = "RT"
    REDUCE_GRADIENTS = "G"
    GATHER_PARAMETERS = "A"
    REDUCE_TIED = "T"
    NORM = "N"

    @property
    def lane(self) -> Lane:
        """The lane that keeps this kind in order."""
        return _LANE_OF[self.value]

    @property
    def sends(self) -> bool:
        """True for the kinds that put a message on a link."""
        return self in (Kind.SEND_FORWARD, Kind.SEND_BACKWARD, Kind.SEND_TOKENS)

    @property
    def receives(self) -> bool:
        """True for the kinds that take a message off a link."""
        return self in (Kind.RECEIVE_FORWARD, Kind.RECEIVE_BACKWARD, Kind.RECEIVE_TOKENS)


_LANE_OF = (
    dict.fromkeys(("F", "B", "I", "W", "O", "N"), Lane.COMPUTE)
    | dict.fromkeys(("SF", "RF", "SB", "RB", "ST", "RT"), Lane.P2P)
    | dict.fromkeys(("G", "A", "T"), Lane.REDUCE)
)


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
