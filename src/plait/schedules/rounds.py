"""One round after another while requests come, grow and end. The run and its prediction use the same source."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from plait.plans.action import Action, Kind
from plait.plans.plan import Plan
from plait.plans.round import Carried, Round
from plait.schedules.batching import Batcher
from plait.schedules.generation import make_round

Receive = Callable[[Action], None]


class RoundSource:
    """Makes the next round from what the batcher plans and what is still in flight."""

    def __init__(self, plan: Plan, batcher: Batcher) -> None:
        self._stages = len(plan.layout.stages)
        self._schedule = plan.schedule
        self._batcher = batcher
        self._number = 0
        self._carried: tuple[Carried, ...] = ()

    def next(self, receive: Receive) -> tuple[Round, int] | None:
        """The next round, and how many of the first stage's actions `receive` has done already; None when idle.

        A round begins with the token messages that its first forward needs. They are received while the round
        is made, since what they hold may end a request and so change the work; what was received stays in front.
        """
        front = 0
        while True:
            work = self._batcher.plan()
            if not work and not self._carried:
                return None
            made = make_round(self._number, self._stages, work, self._carried, self._schedule, front)
            leading = _leading_receives(made.actions[0])
            if leading == front:
                break
            for action in made.actions[0][front:leading]:
                receive(action)
            front = leading
        self._batcher.commit(work)
        self._number += 1
        self._carried = made.carried_out
        return made, front


def _leading_receives(actions: Sequence[Action]) -> int:
    for index, action in enumerate(actions):
        if action.kind is not Kind.RECEIVE_TOKENS:
            return index
    return len(actions)
