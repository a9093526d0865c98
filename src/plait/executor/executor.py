"""Reader 2 of a plan: runs rounds on one rank.

A stage may be a tensor group: all its ranks run the same actions, and their forwards are a rendezvous.

Compute runs in the caller's thread. The p2p lane is a queue beside it that moves on whenever it can: when an action
is queued, and while compute waits for a message or for the other ranks of its tensor group. So a send never blocks
compute, order holds within the lane, and no second thread takes the core away. The executor decides nothing: what waits
for what is `plans.rules`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import torch

from plait.comm.contract import DEFAULT_TIMEOUT_S, Tag, Traffic
from plait.plans.action import Action, Kind
from plait.plans.layout import Layout
from plait.plans.notation import format_action
from plait.plans.round import Round
from plait.plans.rules import partner, waits
from plait.timeline.observer import Observer

T = TypeVar("T")

Shape = tuple[tuple[Kind, int, int | None], ...]

_KINDS = tuple(Kind)
_PARTS = 1 << 8
_MICRO_BATCHES = 1 << 16


class Messages(Protocol):
    """What the executor needs of a transport: any `comm.Endpoint`, or a virtual one in tests."""

    idle: Callable[[], None] | None
    """See `comm.Endpoint.idle`."""

    def try_send(self, to: int, tag: Tag, tensor: torch.Tensor) -> bool:
        """See `comm.Endpoint.try_send`."""

    def try_receive(self, source: int, tag: Tag) -> torch.Tensor | None:
        """See `comm.Endpoint.try_receive`."""

    def traffic(self, to: int) -> Traffic:
        """See `comm.Endpoint.traffic`."""

    def wait(
        self, ready: Callable[[], T | None], what: str, timeout_s: float = DEFAULT_TIMEOUT_S, peers: Sequence[int] = ()
    ) -> T:
        """See `comm.Endpoint.wait`."""


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


def message_tag(epoch: int, action: Action, stages: int) -> Tag:
    """The tag of a message: (epoch, round, the *sending* action as one number), the same on both its ends."""
    sender = action if action.kind.sends else partner(action, stages)
    code = (sender.stage * len(_KINDS) + _KINDS.index(sender.kind)) * _MICRO_BATCHES + sender.micro_batch
    return Tag(epoch, sender.round, code * _PARTS + (sender.part or 0))


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
        self._layout, self._stage, self._stages = layout, layout.stage_of(rank), len(layout.stages)
        self._place = layout.stages[self._stage].ranks.index(rank)
        self._messages, self._worker, self._observer, self._clock = messages, worker, observer, clock
        self._lane: deque[tuple[Action, torch.Tensor | None]] = deque()
        self._head_since = 0.0
        self._arrived: dict[Action, torch.Tensor] = {}
        self._receiving: set[Action] = set()
        self._waits: dict[Shape, tuple[tuple[int, ...], ...]] = {}
        self._sent_bytes = {peer: messages.traffic(peer).payload_bytes for peer in self._peers(rank)}
        messages.idle = self._progress

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
            self._progress()
            return ready()

        return self._messages.wait(moved, what, timeout_s, (peer,))

    def drain(self) -> None:
        """Wait until the lane is empty."""
        self._progress()
        if self._lane:
            last = self._lane[-1][0]
            self.wait(lambda: None if self._lane else True, f"{format_action(last)} to end", self._peer(last))

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
        if not self._lane:
            self._head_since = self._clock()
        self._lane.append((action, tensor))
        if tensor is None:
            self._receiving.add(action)
        self._progress()

    def _wait_for(self, action: Action) -> None:
        if action in self._receiving:
            done = lambda: None if action in self._receiving else True  # noqa: E731
            self.wait(done, format_action(action), self._peer(action))

    def _progress(self) -> None:
        """Move the lane on as far as it goes now."""
        while self._lane and self._step(*self._lane[0]):
            self._lane.popleft()
            self._head_since = self._clock()

    def _step(self, action: Action, tensor: torch.Tensor | None) -> bool:
        tag = message_tag(self._layout.epoch, action, self._stages)
        peer = self._peer(action)
        ready = self._head_since
        if tensor is not None:
            if not self._messages.try_send(peer, tag, tensor):
                return False
            size = self._written(peer) if self._observer is not None else 0
        else:
            ready = self._clock()
            received = self._messages.try_receive(peer, tag)
            if received is None:
                return False
            self._take(action, received)
            size = 0
        if self._observer is not None:
            self._observer.finished(action, self._head_since, ready, self._clock(), size)
        return True

    def _written(self, peer: int) -> int:
        """What the transport wrote to `peer` since this was last asked: measured, not computed from the tensor."""
        total = self._messages.traffic(peer).payload_bytes
        written = total - self._sent_bytes[peer]
        self._sent_bytes[peer] = total
        return written

    def _take(self, action: Action, received: torch.Tensor) -> None:
        self._receiving.discard(action)
        if action.kind is Kind.RECEIVE_TOKENS:
            self._worker.tokens(action, received)
        else:
            self._arrived[action] = received

    def _peers(self, rank: int) -> set[int]:
        """The ranks that messages may go to: at the same place of the other stages."""
        return {stage.ranks[self._place] for stage in self._layout.stages} - {rank}

    def _peer(self, action: Action) -> int:
        """The rank at the other end of a message."""
        return self._layout.stages[partner(action, self._stages).stage].ranks[self._place]
