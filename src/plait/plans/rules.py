"""The one place that knows what an action waits for, who its peer is, and how many bytes it moves.

Checker, passes, simulator and executor call this module. Order within a lane is not a wait: every reader keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from plait.plans.action import Action, Kind, Lane
from plait.plans.layout import Layout
from plait.plans.round import MicroBatch

DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float64": 8}
TOKEN_BYTES = 8
"""A sampled token travels as an int64."""


def waits(actions: Sequence[Action]) -> tuple[tuple[int, ...], ...]:
    """For each of one position's actions, the indices of the actions of other lanes that it waits for.

    A forward of the first stage waits for every token message that stands before it (a pass puts them there because
    the forward, or the schedule, needs them). A forward of a later stage waits for its activations. A send
    waits for the forward that makes its message.
    """
    return tuple(tuple(_waited(actions, index)) for index in range(len(actions)))


def _waited(actions: Sequence[Action], index: int) -> list[int]:
    action = actions[index]
    if action.kind is Kind.FORWARD and action.stage == 0:
        return [i for i in range(index) if actions[i].kind is Kind.RECEIVE_TOKENS]
    if action.kind is Kind.FORWARD:
        return _same(actions, index, Kind.RECEIVE_FORWARD)
    if action.kind.sends:
        return _same(actions, index, Kind.FORWARD)
    return []


def _same(actions: Sequence[Action], index: int, kind: Kind) -> list[int]:
    """Where the `kind` of the same round and micro-batch stands; -1, which no reader accepts, where it is missing."""
    wanted = actions[index]._replace(kind=kind)
    return [next((i for i, action in enumerate(actions) if action == wanted), -1)]


def partner(action: Action, stages: int) -> Action:
    """The other end of a message: the receive of a send, the send of a receive."""
    match action.kind:
        case Kind.SEND_FORWARD:
            return action._replace(kind=Kind.RECEIVE_FORWARD, stage=action.stage + 1)
        case Kind.RECEIVE_FORWARD:
            return action._replace(kind=Kind.SEND_FORWARD, stage=action.stage - 1)
        case Kind.SEND_TOKENS:
            return action._replace(kind=Kind.RECEIVE_TOKENS, stage=0)
        case Kind.RECEIVE_TOKENS:
            return action._replace(kind=Kind.SEND_TOKENS, stage=stages - 1)
        case _:
            raise AssertionError(f"{action} moves no message")


def message_bytes(action: Action, micro_batch: MicroBatch, layout: Layout, hidden: int) -> int:
    """Payload that a send puts on its link, or its receive takes off it; 0 for a compute action.

    Activations are [tokens, hidden] in the sending stage's dtype; tokens are one int64 a sampling row.
    """
    if action.kind.lane is Lane.COMPUTE:
        return 0
    if action.kind in (Kind.SEND_TOKENS, Kind.RECEIVE_TOKENS):
        return micro_batch.sampled * TOKEN_BYTES
    sender = action if action.kind.sends else partner(action, len(layout.stages))
    return micro_batch.tokens * hidden * DTYPE_BYTES[layout.stages[sender.stage].dtype]


class Link(NamedTuple):
    """A directed link between two stages."""

    source: int
    to: int


def link(action: Action, stages: int) -> Link:
    """The link that a send or receive uses."""
    other = partner(action, stages)
    return Link(action.stage, other.stage) if action.kind.sends else Link(other.stage, action.stage)
