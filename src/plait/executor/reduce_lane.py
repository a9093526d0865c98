"""The reduce lane of a rank: one reduction after the other, each moved on whenever the executor lets it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from plait.comm.contract import Tag
from plait.executor.lane import Messages, action_code
from plait.executor.program import Program, Reduce
from plait.executor.reducing import Reducing
from plait.executor.step_worker import StepWorker
from plait.plans.action import Action, Kind
from plait.plans.round import Round
from plait.timeline.observer import Observer


class ReduceLane:
    """Reductions of rank `rank` in order. `done` counts those of the round that have ended.

    `sent` tells how many messages of the p2p lane have moved in the round. A reduction sends to a rank only when all
    that the p2p lane has for it is on its way: else its chunks could fill a link whose other end begins that reduction
    only after it has received those messages.
    """

    def __init__(
        self,
        rank: int,
        epoch: int,
        capacity: int,
        messages: Messages,
        worker: StepWorker,
        sent: Callable[[], int],
        observer: Observer | None,
        clock: Callable[[], float],
    ) -> None:
        self._rank, self._epoch, self._capacity = rank, epoch, capacity
        self._messages, self._worker = messages, worker
        self._sent, self._observer, self._clock = sent, observer, clock
        self._queue: Sequence[Reduce] = ()
        self._running: Reducing | None = None
        self._begun = False
        self._start = 0.0
        self.done = 0

    def begin(self, one: Round, actions: Sequence[Action], program: Program) -> None:
        """The reductions of a round; those of the one before have all ended."""
        self._one, self._actions = one, actions
        self._queue, self._last_sends = program.reduces, program.last_sends
        self.done = 0

    @property
    def head(self) -> tuple[Action, int]:
        """The first that has not ended, and the rank that it waits for: this one itself before it has begun."""
        waits_for = self._rank if self._running is None else self._running.waits_for
        return self._actions[self._queue[self.done].place], waits_for

    @property
    def moved(self) -> int:
        """A number that changes when something moves."""
        return -1 if self._running is None else self._running.moved

    def progress(self, computed: int) -> None:
        """Move on as far as it goes now, when so many computations have ended."""
        while self.done < len(self._queue):
            index, needed = self._queue[self.done]
            if needed > computed:
                return
            action = self._actions[index]
            if not self._begun:
                self._begin(action)
            if self._running is not None and not self._running.advance():
                return
            self._end(action)

    def _begin(self, action: Action) -> None:
        self._begun = True
        self._start = self._clock()
        reduction = self._worker.reduction(self._one, action)
        if reduction is not None:
            tag = Tag(self._epoch, self._one.number, action_code(_shared(action)))
            self._running = Reducing(
                reduction,
                self._rank,
                tag,
                self._messages,
                self._may_send,
                self._capacity,
                measured=self._observer is not None,
            )

    def _may_send(self, peer: int) -> bool:
        return self._sent() >= self._last_sends.get(peer, 0)

    def _end(self, action: Action) -> None:
        sent_bytes = 0 if self._running is None else self._running.sent_bytes
        self._begun, self._running = False, None
        self.done += 1
        self._worker.reduced(self._one, action)
        if self._observer is not None:
            self._observer.finished(action, self._start, self._start, self._clock(), sent_bytes)


def _shared(action: Action) -> Action:
    """What all ranks of a reduction call it: the two ends of a model call that of its tied embedding by their stage."""
    return action._replace(stage=0) if action.kind is Kind.REDUCE_TIED else action
