"""Rank 0 makes the rounds and tells the others; every rank runs them."""

from __future__ import annotations

from collections import deque
from typing import Protocol

import msgspec

from plait.comm.contract import Endpoint
from plait.executor.executor import Executor
from plait.generation.arrivals import Arrivals
from plait.generation.protocol import (
    Admitted,
    EndOfRounds,
    Finish,
    ReceiveNow,
    RoundMessage,
    Submit,
    ToFront,
    Token,
    ToRank,
)
from plait.generation.worker import StageWorker
from plait.plans.action import Action
from plait.plans.check import check_rounds
from plait.plans.plan import Plan
from plait.plans.round import Round
from plait.schedules.batching import Batcher
from plait.schedules.rounds import RoundSource
from plait.timeline.record import RoundRecipe


class Front(Protocol):
    """A rank's connection to the front."""

    def send(self, message: ToFront) -> None:
        """Tell the front."""

    def receive(self, *, wait: bool) -> ToRank | None:
        """The next message; None where there is none and `wait` is False. Errors: EOFError when the front is gone."""


class Lead:
    """Rank 0 of a generation: requests in, rounds out, tokens to the front."""

    def __init__(self, plan: Plan, endpoint: Endpoint, front: Front) -> None:
        self._plan, self._endpoint, self._front = plan, endpoint, front
        self._stages = len(plan.layout.stages)
        self._batcher = Batcher(plan.slots, plan.context, plan.chunk, plan.micro_batches)
        self._source = RoundSource(plan, self._batcher)
        self._arrivals = Arrivals(self._stages)
        self._stop: dict[int, set[int]] = {}
        self._retired: deque[tuple[int, int]] = deque()
        self._fresh: list[Admitted] = []
        self._finishing = False
        self._number = 0
        self._encode = msgspec.msgpack.Encoder().encode
        self._proven: set[object] = set()
        self.rounds: list[RoundRecipe] = []

    def run(self, worker: StageWorker, executor: Executor) -> None:
        """Serve until the front says Finish and all requests are answered. Errors: EOFError, PeerLost, WaitTimeout."""
        self._worker = worker
        while self._listen():
            made = self._source.next(lambda action: self._receive(action, executor))
            if made is None:
                continue
            one, front = made
            self._announce(self._begin(one, front))
            executor.run(one, front)
        for rank in range(1, self._endpoint.size):
            self._endpoint.post(rank, self._encode(EndOfRounds()))
        executor.drain()

    def _receive(self, action: Action, executor: Executor) -> None:
        """Take tokens before the next round is made, with the other ranks of the first stage."""
        for rank in self._plan.layout.tensor_group(0, 0)[1:]:
            self._endpoint.post(rank, self._encode(ReceiveNow(action)))
        executor.receive(action)

    def on_tokens(self, number: int, micro_batch: int, tokens: list[int]) -> None:
        """The tokens of a micro-batch have come; those of requests that have ended already are surplus."""
        for request, token in zip(self._arrivals.take(number, micro_batch), tokens, strict=True):
            if self._batcher.in_flight(request):
                self._on_token(request, token)

    def _on_token(self, request: int, token: int) -> None:
        self._worker.sequences[request].append(token)
        stops = token in self._stop[request]
        done = self._batcher.received(request, ends=stops)
        reason = ("stop" if stops else "length") if done else None
        self._front.send(Token(request, token, reason))
        if done:
            del self._stop[request]
            self._retired.append((self._number, request))

    def _listen(self) -> bool:
        """Take in what the front says; False when there is nothing left to do."""
        while not (self._finishing and self._batcher.idle):
            message = self._front.receive(wait=self._batcher.idle)
            match message:
                case Submit():
                    self._submit(message)
                case Finish():
                    self._finishing = True
                case _:
                    return True
        return False

    def _submit(self, message: Submit) -> None:
        self._batcher.add(message.request, len(message.prompt), message.max_tokens)
        self._stop[message.request] = set(message.stop)
        admitted = Admitted(message.request, message.sampling, message.logits, message.prompt)
        self._worker.admit(admitted)
        self._fresh.append(admitted)

    def _begin(self, one: Round, front: int) -> RoundMessage:
        self._prove(one)
        self._arrivals.expect(one)
        gone = self._forget(one.number)
        recipe = RoundRecipe(one.number, one.work, one.carried_in, self._plan.schedule, front)
        message = RoundMessage(recipe, self._fresh, gone)
        self._fresh = []
        self._number = one.number
        self.rounds.append(recipe)
        return message

    def _announce(self, message: RoundMessage) -> None:
        """Tell every other rank; prompts go to the first stage's alone."""
        whole = bare = self._encode(message)
        if message.admitted:
            others = [msgspec.structs.replace(admitted, prompt=[]) for admitted in message.admitted]
            bare = self._encode(RoundMessage(message.recipe, others, message.retired))
        first_stage = self._plan.layout.stages[0].ranks
        for rank in range(1, self._endpoint.size):
            self._endpoint.post(rank, whole if rank in first_stage else bare)

    def _prove(self, one: Round) -> None:
        """Every round shape is checked before the first round of that shape runs."""
        first = one.carried_in[0].round if one.carried_in else one.number
        shape = (
            tuple(micro_batch.sampled > 0 for micro_batch in one.work),
            tuple((carried.round - first, carried.micro_batch) for carried in one.carried_in),
            len(one.carried_out),
        )
        if shape not in self._proven:
            check_rounds([one], self._stages, self._plan.layout.link_capacity)
            self._proven.add(shape)

    def _forget(self, number: int) -> list[int]:
        """Drop what no row from this round on can need: a request may be computed once more after it has ended."""
        gone: list[int] = []
        while self._retired and self._retired[0][0] < number - 1:
            request = self._retired.popleft()[1]
            self._worker.forget(request)
            gone.append(request)
        return gone
