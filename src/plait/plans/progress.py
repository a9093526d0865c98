"""Freedom from deadlock for the plan's k.

The lanes are replayed without time: every lane goes on as far as it can, a send completes while fewer than k messages
lie unreceived on its link. More progress of one lane never takes a possibility from another, so one greedy replay
decides: what is stuck in it is stuck in every run.

An action that meets others (`rules.meetings`) arrives when all that it waits for is done, and ends when all of them
have arrived. It stays at the head of its lane until then, so an arrival too is never taken back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from plait.errors import PlanError
from plait.plans.action import Action, Kind, Lane
from plait.plans.notation import format_action
from plait.plans.round import Round
from plait.plans.rules import Link, link, meetings, partner, waits

_Waiting = tuple[Action, tuple[Action, ...]]
"""An action, and the actions of other lanes that it waits for."""


def check_progress(
    rounds: Sequence[Round], stages: int, capacity: int, position_of: Sequence[int] | None = None
) -> None:
    """Consecutive rounds run to their end on links of `capacity` messages. Errors: PlanError.

    `position_of`: the position of each stage; without it every stage is a position of its own.
    """
    _Replay(rounds, stages, capacity, position_of).run()


@dataclass(slots=True)
class _LaneReplay:
    """One lane of one position: its actions over all rounds. `at` is the first that is not done."""

    actions: list[_Waiting] = field(default_factory=list)
    at: int = 0

    @property
    def head(self) -> _Waiting | None:
        return self.actions[self.at] if self.at < len(self.actions) else None


class _Replay:
    """What is done, and what lies unreceived on each link."""

    def __init__(self, rounds: Sequence[Round], stages: int, capacity: int, position_of: Sequence[int] | None) -> None:
        self._stages, self._capacity, self._position_of = stages, capacity, position_of
        self._lanes = _lanes(rounds)
        self._done: set[Action] = set()
        self._meetings = {action: all_ for one in rounds for action, all_ in meetings(one.actions).items()}
        self._arrived: set[Action] = set()
        self._unreceived: dict[Link, int] = defaultdict(int)
        for carried in rounds[0].carried_in if rounds else ():
            # sent before these rounds began
            self._do(Action(carried.round, stages - 1, Kind.SEND_TOKENS, carried.micro_batch))

    def run(self) -> None:
        moved = True
        while moved:
            moved = False
            for lane in self._lanes.values():
                while lane.head is not None and self._can(lane.head):
                    self._do(lane.head[0])
                    lane.at += 1
                    moved = True
        stuck = [lane.head for lane in self._lanes.values() if lane.head is not None]
        if stuck:
            raise PlanError("deadlock: " + "; ".join(map(self._why, stuck)))

    def _link(self, action: Action) -> Link:
        return link(action, self._stages, self._position_of)

    def _can(self, head: _Waiting) -> bool:
        action, waited = head
        if any(other not in self._done for other in waited):
            return False
        if action.kind.sends:
            return self._unreceived[self._link(action)] < self._capacity
        if action in self._meetings:
            return self._have_met(action)
        return not action.kind.receives or partner(action, self._stages) in self._done

    def _have_met(self, action: Action) -> bool:
        self._arrived.add(action)
        return self._arrived.issuperset(self._meetings[action])

    def _do(self, action: Action) -> None:
        self._done.add(action)
        if action.kind.sends:
            self._unreceived[self._link(action)] += 1
        elif action.kind.receives:
            self._unreceived[self._link(action)] -= 1

    def _why(self, head: _Waiting) -> str:
        action, waited = head
        name = format_action(action)
        missing = next((other for other in waited if other not in self._done), None)
        if missing is None and action.kind.receives:
            missing = partner(action, self._stages)
        if missing is None and action in self._meetings:
            missing = next(other for other in self._meetings[action] if other not in self._arrived)
        if missing is not None:
            return f"{name} waits for {format_action(missing)}"
        source, to = self._link(action)
        return f"{name} waits for room on link {source}→{to}, which holds {self._capacity} unreceived"


def _lanes(rounds: Sequence[Round]) -> dict[tuple[int, Lane], _LaneReplay]:
    lanes: dict[tuple[int, Lane], _LaneReplay] = defaultdict(_LaneReplay)
    for one in rounds:
        for position, actions in enumerate(one.actions):
            for action, waited in zip(actions, waits(actions), strict=True):
                if -1 in waited:
                    raise PlanError(
                        f"round {one.number}: {format_action(action)} waits for an action that is not there"
                    )
                lanes[position, action.kind.lane].actions.append((action, tuple(actions[i] for i in waited)))
    return lanes
