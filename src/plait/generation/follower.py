"""Every rank but rank 0: it runs the rounds that rank 0 announces."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from plait.comm.contract import Endpoint
from plait.executor.executor import Executor
from plait.generation.arrivals import Arrivals
from plait.generation.protocol import EndOfRounds, ReceiveNow, ToFollower
from plait.generation.worker import StageWorker
from plait.plans.plan import Plan
from plait.timeline.record import RoundRecipe

IDLE_S = 1e8
"""How long a rank waits for work: for ever, in a number that every clock can hold."""


class Follower:
    """One of them. On the first stage it keeps the requests' tokens as rank 0 does, who alone says which count."""

    def __init__(self, plan: Plan, endpoint: Endpoint) -> None:
        self._endpoint, self._stages = endpoint, len(plan.layout.stages)
        self._first = endpoint.rank in plan.layout.stages[0].ranks
        self._arrivals = Arrivals(self._stages)
        self.rounds: list[RoundRecipe] = []

    def run(self, worker: StageWorker, executor: Executor) -> None:
        """Run the rounds to the last one. Errors: PeerLost, WaitTimeout."""
        self._sequences = worker.sequences
        decode = msgspec.msgpack.Decoder(ToFollower).decode
        poll: Callable[[], bytes | None] = lambda: self._endpoint.poll(0)  # noqa: E731
        while True:
            message = decode(executor.wait(poll, "the next round from rank 0", 0, IDLE_S))
            if isinstance(message, EndOfRounds):
                break
            if isinstance(message, ReceiveNow):
                executor.receive(message.action)
                continue
            for admitted in message.admitted:
                worker.admit(admitted)
            for request in message.retired:
                worker.forget(request)
            one = message.recipe.make(self._stages)
            if self._first:
                self._arrivals.expect(one)
            executor.run(one, message.recipe.front if self._first else 0)
        executor.drain()

    def on_tokens(self, number: int, micro_batch: int, tokens: list[int]) -> None:
        """The tokens of a micro-batch have come. One after a request's end may be kept: no row ever reads it."""
        for request, token in zip(self._arrivals.take(number, micro_batch), tokens, strict=True):
            sequence = self._sequences.get(request)
            if sequence is not None:
                sequence.append(token)
