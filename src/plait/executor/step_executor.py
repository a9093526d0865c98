"""Reader 2 of a plan, for training: runs the steps of one rank, whose position may hold several stages.

Compute runs in the caller's thread. The p2p lane and the reduce lane are queues beside it, made of messages that nobody
waits for; they move on whenever they can: after each computation, and while compute waits for a message, a reduction or
the other ranks of its tensor group. The executor decides nothing: what waits for what is `plans.rules`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from plait.comm.contract import DEFAULT_TIMEOUT_S, Tag
from plait.executor.lane import Address, MessageLane, Messages, Post
from plait.executor.program import NOWHERE, Compute, Program, Shape, compile_program, shape_of
from plait.executor.reduce_lane import ReduceLane
from plait.executor.step_worker import StepWorker
from plait.executor.waiting import Blocked, GroupWatch, Waiting
from plait.plans.action import Action
from plait.plans.layout import Layout
from plait.plans.round import Round
from plait.timeline.observer import Observer


class StepExecutor:
    """Interprets the actions of rank `rank`'s position, in order in each lane, over `messages`.

    `stalled(text)` is called once each `stall_s` while this rank waits and nothing moves; after `timeout_s` of that it
    gives up.
    """

    def __init__(
        self,
        layout: Layout,
        rank: int,
        messages: Messages,
        worker: StepWorker,
        observer: Observer | None = None,
        clock: Callable[[], float] = time.perf_counter,
        *,
        stalled: Callable[[str], None] | None = None,
        stall_s: float = 20.0,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self._layout, self._position = layout, _position_of(layout, rank)
        self._messages, self._worker, self._observer, self._clock = messages, worker, observer, clock
        self._post = Post(layout, rank)
        self._values: list[torch.Tensor | None] = []
        self._lane = MessageLane(messages, self._put, observer, clock)
        links = layout.epoch, layout.link_capacity
        self._reduces = ReduceLane(rank, *links, messages, worker, self._moved, observer, clock)
        self._waiting = Waiting(rank, messages, stalled, stall_s, timeout_s)
        self._watch = GroupWatch(layout, rank, messages, stalled, stall_s)
        self._programs: dict[Shape, Program] = {}
        self._program = Program(0, (), (), (), {})
        self._number = self._computed = self._queued = 0
        self._actions: Sequence[Action] = ()
        self._passes = {"F": worker.forward, "B": worker.backward, "I": worker.backward}
        self._others = {"W": worker.weigh, "N": worker.norm, "O": worker.update}
        messages.idle = self._idle

    def run(self, one: Round) -> None:
        """Do all of the position's actions of a round, to the end of all lanes. Errors: PeerLost, WaitTimeout."""
        self._actions, self._number = one.actions[self._position], one.number
        program = self._program = self._compiled(self._actions)
        self._values = [None] * program.size
        self._computed = self._queued = self._lane.done = 0
        self._reduces.begin(one, self._actions, program)
        self.progress()
        for step in program.computes:
            if step.moves > self._lane.done or step.reductions > self._reduces.done:
                self._wait(step.moves, step.reductions)
            self._compute(one, step)
            self._computed += 1
            self.progress()
        self._wait(len(program.moves), len(program.reduces))
        self._watch.action = None

    def progress(self) -> None:
        """Move the lanes on as far as they go now. A worker may call it in the middle of a long computation."""
        moves = self._program.moves
        while self._queued < len(moves) and moves[self._queued].computed <= self._computed:
            index, _, source, peer, code = moves[self._queued]
            tensor = None if source == NOWHERE else self._get(source)
            address = Address(peer, Tag(self._layout.epoch, self._number, code))
            self._lane.add(self._actions[index], index, address, tensor)
            self._queued += 1
        self._lane.progress()
        self._reduces.progress(self._computed)

    def _compiled(self, actions: Sequence[Action]) -> Program:
        shape = shape_of(actions)
        known = self._programs.get(shape)
        if known is None:
            known = self._programs[shape] = compile_program(actions, self._post, len(self._layout.stages))
        return known

    def _compute(self, one: Round, step: Compute) -> None:
        action = self._watch.action = self._actions[step.place]
        message = None if step.source == NOWHERE else self._get(step.source)
        start = self._clock() if self._observer is not None else 0.0
        passes = self._passes.get(step.letters)
        if passes is None:
            self._others[step.letters](one, action)
        else:
            output = passes(one, action, message)
            if step.keeps:
                assert output is not None, action
                self._values[step.place] = output
        if self._observer is not None:
            end = self._clock()
            sent_bytes, exchanges = self._worker.exchanged()
            self._observer.finished(action, start, start, end, sent_bytes, exchanges)

    def _put(self, index: int, tensor: torch.Tensor) -> None:
        self._values[index] = tensor

    def _get(self, index: int) -> torch.Tensor:
        tensor = self._values[index]
        assert tensor is not None, self._actions[index]
        self._values[index] = None
        return tensor

    def _moved(self) -> int:
        return self._lane.done

    def _idle(self) -> None:
        """Called while a collective of a computation waits for other ranks."""
        self.progress()
        self._watch.look()

    def _wait(self, moves: int, reductions: int) -> None:
        """Until so many messages have moved, and so many reductions have ended."""
        lane, reduces = self._lane, self._reduces

        def blocked() -> Blocked | None:
            self.progress()
            if lane.done < moves:
                return Blocked(*lane.head, lane.done, reduces.moved)
            if reduces.done < reductions:
                return Blocked(*reduces.head, lane.done, reduces.moved)
            return None

        self._waiting.until_free(blocked)


def _position_of(layout: Layout, rank: int) -> int:
    stage = layout.stage_of(rank)
    return next(position for position, stages in enumerate(layout.positions) if stage in stages)
