"""Which rows go into the next round: continuous batching over a fixed number of slots.

Prompts first, one chunk a round, cut on a fixed grid; then one token for everyone in flight, dealt evenly to the
micro-batches in order of slot. Rows are planned before the tokens of the round before are all known: a request
that turns out to have ended is computed once more at most, and the surplus token is dropped.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise

from plait.errors import RequestError
from plait.plans.round import MicroBatch, Row


@dataclass(slots=True)
class _Active:
    """A request in a slot: how far its prompt is computed, and how many tokens are planned, have come, may come."""

    request: int
    slot: int
    prompt: int
    max_tokens: int
    computed: int = 0
    planned: int = 0
    received: int = 0

    @property
    def prefilling(self) -> bool:
        return self.computed < self.prompt

    @property
    def decoding(self) -> bool:
        return not self.prefilling and self.planned < self.max_tokens


class Batcher:
    """Plans rows for at most `slots` requests at a time. Knows lengths, not tokens."""

    def __init__(self, slots: int, context: int, chunk: int, micro_batches: int) -> None:
        self._context, self._chunk, self._micro_batches = context, chunk, micro_batches
        self._free = list(range(slots))
        self._waiting: deque[tuple[int, int, int]] = deque()
        self._active: dict[int, _Active] = {}

    def add(self, request: int, prompt_length: int, max_tokens: int) -> None:
        """Queue a request. Errors: RequestError as `check_request`."""
        check_request(request, prompt_length, max_tokens, self._context)
        self._waiting.append((request, prompt_length, max_tokens))

    @property
    def idle(self) -> bool:
        """True when no request is waiting or in a slot."""
        return not self._waiting and not self._active

    def in_flight(self, request: int) -> bool:
        """True while further tokens of the request count."""
        return request in self._active

    def plan(self) -> tuple[MicroBatch, ...]:
        """The next round's work, as far as is known now; empty where there is none. Changes nothing but admission."""
        self._admit()
        prefilling = next((active for active in self._active.values() if active.prefilling), None)
        if prefilling is not None:
            return (MicroBatch((self._chunk_of(prefilling),)),)
        rows = [
            Row(active.request, active.slot, active.prompt + active.planned - 1, 1, True)
            for active in sorted(self._active.values(), key=lambda active: active.slot)
            if active.decoding
        ]
        return tuple(MicroBatch(tuple(part)) for part in deal(rows, self._micro_batches))

    def commit(self, work: tuple[MicroBatch, ...]) -> None:
        """`work`, as planned, is under way."""
        for micro_batch in work:
            for row in micro_batch.rows:
                active = self._active[row.request]
                active.computed = max(active.computed, row.start + row.length)
                active.planned += row.samples

    def received(self, request: int, *, ends: bool) -> bool:
        """A token of the request has come; `ends`: it is the last one wanted. Returns True when the request is done."""
        active = self._active[request]
        active.received += 1
        done = ends or active.received == active.max_tokens
        if done:
            del self._active[request]
            self._free.append(active.slot)
            self._free.sort()
        return done

    def cancel(self, request: int) -> None:
        """Forget a request, wherever it is."""
        self._waiting = deque(entry for entry in self._waiting if entry[0] != request)
        active = self._active.pop(request, None)
        if active is not None:
            self._free.append(active.slot)
            self._free.sort()

    def _admit(self) -> None:
        while self._waiting and self._free:
            request, prompt, max_tokens = self._waiting.popleft()
            self._active[request] = _Active(request, self._free.pop(0), prompt, max_tokens)

    def _chunk_of(self, active: _Active) -> Row:
        start = active.computed
        length = min(self._chunk, active.prompt - start)
        return Row(active.request, active.slot, start, length, start + length == active.prompt)


def check_request(request: int, prompt_length: int, max_tokens: int, context: int) -> None:
    """The prompt and its answer fit the context. Errors: RequestError."""
    if prompt_length < 1:
        raise RequestError(f"request {request} has an empty prompt, but needs at least one token")
    if max_tokens < 1:
        raise RequestError(f"request {request} asks for {max_tokens} tokens, but at least 1 can be made")
    needed = prompt_length + max_tokens
    if needed > context:
        raise RequestError(
            f"request {request} has a prompt of {prompt_length} tokens and asks for {max_tokens} more,"
            f" {needed} in all, but the context holds {context}: {needed - context} too many"
            f" (--context {needed} would hold it)"
        )


def deal(rows: list[Row], micro_batches: int) -> list[list[Row]]:
    """Rows in order over at most `micro_batches` parts, none empty, sizes differing by one at most."""
    parts = min(micro_batches, len(rows))
    if parts == 0:
        return []
    size, larger = divmod(len(rows), parts)
    bounds = [0]
    for part in range(parts):
        bounds.append(bounds[-1] + size + (part < larger))
    return [rows[first:end] for first, end in pairwise(bounds)]
