"""Reader 2 of a plan: runs rounds on one rank.

A stage may be a tensor group: all its ranks run the same actions, and their forwards are a rendezvous.

Compute runs in the caller's thread. The p2p lane is a queue beside it that moves on whenever it can: when an action
is queued, and while compute waits for a message or for the other ranks of its tensor group. So a send never blocks
compute, order holds within the lane, and no second thread takes the core away. The executor decides nothing: what waits
for what is `plans.rules`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import torch

from plait.comm.contract import DEFAULT_TIMEOUT_S
from plait.executor.lane import MessageLane, Messages, Post
from plait.plans.action import Action, Kind
from plait.plans.layout import Layout
from plait.plans.notation import format_action
from plait.plans.round import Round
from plait.plans.rules import waits
from plait.timeline.observer import Observer

T = TypeVar("T")

Shape = tuple[tuple[Kind, int, int | None], ...]


class Worker(Protocol):
    """What a stage computes, and who gets the tokens."""

    def forward(self, one: Round, micro_batch: int, message: torch.Tensor | None) -> torch.Tensor:
        """The stage's output for a micro-batch: activations, or sampled tokens int64 [sampled] on the last stage.

        `message` holds the activations of the stage before, None on the first. In a tensor group both are this rank's
        rows of the activations; the tokens are all of them, on every rank.
        """

    def tokens(self, action: Action, tokens: torch.Tensor) -> None:
        """The tokens [sampled] that the receive `action` brought to the first stage."""

    def exchanged(self) -> tuple[int, Sequence[tuple[float, float]]]:
        """What the tensor group exchanged since this was last asked: bytes that this rank sent, begins and ends."""


class Executor:
    """Interprets the actions of rank `rank`'s stage, in order, over `messages`.

    Messages go to the rank at the same place of the other stage.
    """

    def __init__(
        self,
        layout: Layout,
        rank: int,
        messages: Messages,
        worker: Worker,
        observer: Observer | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._stage = layout.stage_of(rank)
        self._messages, self._worker, self._observer, self._clock = messages, worker, observer, clock
        self._post = Post(layout, rank)
        self._lane = MessageLane(messages, self._take, observer, clock)
        self._arrived: dict[Action, torch.Tensor] = {}
        self._receiving: set[Action] = set()
        self._waits: dict[Shape, tuple[tuple[int, ...], ...]] = {}
        messages.idle = self._lane.progress

    def run(self, one: Round, skip: int = 0) -> None:
        """Do this stage's actions of a round, but the first `skip` (received already).

        Returns when all compute is done; receives that no forward needed, and sends that the link has no room for yet,
        go on in the rounds after. Errors: PeerLost, WaitTimeout.
        """
        actions = one.actions[self._stage]
        waited = self._compiled(actions)
        outputs: dict[int, torch.Tensor] = {}
        for index in range(skip, len(actions)):
            action = actions[index]
            if action.kind is Kind.FORWARD:
                message = self._inputs(actions, waited[index])
                outputs[index] = self._compute(one, action, message)
            elif action.kind.sends:
                self._queue(action, outputs[waited[index][0]])
            else:
                self._queue(action, None)

    def receive(self, action: Action) -> None:
        """Do one receive now, after all that its lane holds before it."""
        self._queue(action, None)
        self._wait_for(action)

    def wait(self, ready: Callable[[], T | None], what: str, peer: int, timeout_s: float = DEFAULT_TIMEOUT_S) -> T:
        """Wait for something from rank `peer`, such as the next round, while the lane moves on."""

        def moved() -> T | None:
            self._lane.progress()
            return ready()

        return self._messages.wait(moved, what, timeout_s, (peer,))

    def drain(self) -> None:
        """Wait until the lane is empty."""
        self._lane.progress()
        if self._lane:
            last, peer = self._lane.last
            self.wait(lambda: None if self._lane else True, f"{format_action(last)} to end", peer)

    def _compiled(self, actions: Sequence[Action]) -> tuple[tuple[int, ...], ...]:
        """`rules.waits` of a list, computed once for each shape: waits do not depend on the rounds' numbers."""
        shape = tuple((action.kind, action.micro_batch, action.part) for action in actions)
        known = self._waits.get(shape)
        if known is None:
            known = self._waits[shape] = waits(actions)
        return known

    def _inputs(self, actions: Sequence[Action], waited: tuple[int, ...]) -> torch.Tensor | None:
        message = None
        for index in waited:
            action = actions[index]
            if action in self._receiving:
                self._wait_for(action)
            message = self._arrived.pop(action, None)
        return message

    def _compute(self, one: Round, action: Action, message: torch.Tensor | None) -> torch.Tensor:
        start = self._clock()
        output = self._worker.forward(one, action.micro_batch, message)
        if self._observer is not None:
            end = self._clock()
            sent_bytes, exchanges = self._worker.exchanged()
            self._observer.finished(action, start, start, end, sent_bytes, exchanges)
        return output

    def _queue(self, action: Action, tensor: torch.Tensor | None) -> None:
        self._lane.add(action, action, self._post.address(action), tensor)
        if tensor is None:
            self._receiving.add(action)
        self._lane.progress()

    def _wait_for(self, action: Action) -> None:
        if action in self._receiving:
            done = lambda: None if action in self._receiving else True  # noqa: E731
            self.wait(done, format_action(action), self._post.peer(action))

    def _take(self, action: Action, received: torch.Tensor) -> None:
        self._receiving.discard(action)
        if action.kind is Kind.RECEIVE_TOKENS:
            self._worker.tokens(action, received)
        else:
            self._arrived[action] = received
