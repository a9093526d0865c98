"""A span: when one action ran on one rank. Predicted and measured spans are the same thing."""

from __future__ import annotations

from typing import NamedTuple

from plait.plans.action import Action


class Part(NamedTuple):
    """A piece of a span: "compute", "transfer" or "wait". Times as in the span."""

    what: str
    start_s: float
    end_s: float


class Span(NamedTuple):
    """An action on a rank, from `start_s` to `end_s` seconds of the rank's host's clock.

    A compute action's span begins when its inputs are there. A send's begins when it is first in its lane and its
    message exists, and ends when the link has taken it. A receive's begins when it is first in its lane and ends when
    the message is there; its parts divide that into wait and transfer. A span without parts is one part: "compute" on
    the compute lane, "transfer" on the others. `payload_bytes` is what a send put on the link.
    """

    epoch: int
    action: Action
    rank: int
    start_s: float
    end_s: float
    payload_bytes: int = 0
    parts: tuple[Part, ...] = ()
