"""What a replay runs: lanes of steps in columns, and the links between positions.

A lane does its steps in order, so that its ends never decrease: to wait for several steps of another lane is to wait
for the last of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from plait.costs.protocol import LinkCost, Load
from plait.plans.action import Action
from plait.plans.rules import Link


@dataclass(slots=True)
class Channel:
    """A directed link while it is simulated.

    `arrives_s[i]` is when the i-th message that was sent is there, `taken_s[i]` when the i-th receive ended. `receiver`
    waits for message `wanted`, `sender` for room. `free_s`: when a buffered link has sent all that it was given.
    """

    name: Link
    cost: LinkCost
    messages: int = 0
    arrives_s: list[float] = field(default_factory=list)
    taken_s: list[float] = field(default_factory=list)
    receiver: LaneState | None = None
    wanted: int = 0
    sender: LaneState | None = None
    free_s: float = 0.0


@dataclass(slots=True)
class Meeting:
    """Actions of several positions that begin and end together (`rules.meetings`): none goes on before all are there.

    `ready_s`: of those that have arrived, by action, when all that they themselves wait for was done. `waiting`: their
    lanes, until the last one comes.
    """

    actions: tuple[Action, ...]
    ready_s: dict[Action, float] = field(default_factory=dict)
    waiting: list[LaneState] = field(default_factory=list)

    @property
    def missing(self) -> Action | None:
        """The first that has not arrived."""
        return next((action for action in self.actions if action not in self.ready_s), None)

    def arrive(self, action: Action, ready_s: float) -> float | None:
        """When all are there; None as long as one is missing."""
        self.ready_s[action] = ready_s
        return max(self.ready_s.values()) if self.missing is None else None


class Work(NamedTuple):
    """A step of a compute or reduce lane: seconds alone, of which it exchanges some at its end, and bytes sent.

    `each`: bytes of each rank of a tensor group, where they differ.
    """

    seconds: float
    load: Load = 0
    exchange_s: float = 0.0
    sent_bytes: int = 0
    each: tuple[int, ...] = ()


class Move(NamedTuple):
    """A step of a p2p lane: a send, which keeps its link for some seconds, or a receive.

    `each`: bytes of each rank of a tensor group, where they differ; the longest message counts.
    """

    channel: Channel
    sends: bool
    seconds: float
    payload_bytes: int
    each: tuple[int, ...] = ()


@dataclass(slots=True)
class LaneState:
    """A lane of one position. Its columns hold one entry a step; `starts_s` and `ends_s` of those that are done.

    `needs[i]` are the steps of lane `others[i]` waited for: the last one's index, or -1; empty where none ever is. A
    compute or reduce lane has `works`, the p2p lane `moves` with each one's number among the messages of its channel,
    and `moved_s`: when the link was there for a send, or the message for a receive. `sent_s`: of buffered sends, by
    index, when the link has sent them; `ends_s` is when the lane went on. `waiting`: lanes that wait for one of this
    lane's steps. `shares`: the step at the head runs on a shared host, its end is not known yet. `meets`: steps that
    wait for those of other positions, by index; `met_s`: when these were all there.
    """

    position: int
    actions: list[Action] = field(default_factory=list)
    needs: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))
    works: list[Work] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    starts_s: list[float] = field(default_factory=list)
    moved_s: list[float] = field(default_factory=list)
    sent_s: dict[int, float] = field(default_factory=dict)
    ends_s: list[float] = field(default_factory=list)
    others: tuple[LaneState, ...] = ()
    waiting: list[tuple[int, LaneState]] = field(default_factory=list)
    shares: bool = False
    meets: dict[int, Meeting] = field(default_factory=dict)
    met_s: dict[int, float] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        """True when no step is left."""
        return len(self.ends_s) == len(self.actions)
