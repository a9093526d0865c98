"""The front's side of a running split model: submit requests, take tokens as they come, and read how it went."""

from __future__ import annotations

import selectors
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType

from plait import errors
from plait.errors import PeerLost, RunError
from plait.generation.launch import Ranks
from plait.generation.protocol import Failed, Finish, Finished, Logits, Progress, Ready, Submit, ToFront, Token
from plait.plans.plan import Plan

LoadProgress = Callable[[int, int, int], None]
"""Called with (rank, bytes done, bytes in all) while weights are loaded."""

_SETTLE_S = 1.0
"""How long the other ranks' words are awaited when one fails: the one that died is named, not the one that noticed."""


class Session:
    """A split model that answers. Use it as a context manager: leaving ends the ranks."""

    def __init__(self, plan: Plan, ranks: Ranks) -> None:
        self._plan, self._ranks = plan, ranks
        self._selector = selectors.DefaultSelector()
        for rank, channel in enumerate(ranks.channels):
            self._selector.register(channel, selectors.EVENT_READ, rank)
        self._over: set[int] = set()
        self.ready: dict[int, Ready] = {}
        self.finished: dict[int, Finished] = {}
        self._pieces: dict[int, dict[int, dict[int, bytes]]] = {}

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ranks.stop()
        self._selector.close()

    def wait_ready(self, progress: LoadProgress | None = None) -> None:
        """Return when every rank holds its stage. Errors: whatever a rank failed with; RunError where one died."""
        for message in self._messages():
            if isinstance(message, Progress) and progress is not None:
                progress(message.rank, message.done_bytes, message.total_bytes)
            if isinstance(message, Ready):
                self.ready[message.rank] = message
                if len(self.ready) == len(self._ranks.channels):
                    return

    def submit(self, request: Submit) -> None:
        """Queue a request."""
        self._tell(0, request)

    def tokens(self, requests: int) -> Iterator[Token]:
        """The tokens of `requests` requests as they come, until all have ended. Errors: as `wait_ready`."""
        left = requests
        while left:
            for message in self._messages():
                if isinstance(message, Token):
                    left -= message.finish_reason is not None
                    yield message
                    if not left:
                        break

    def logits(self, request: int) -> dict[int, bytes]:
        """What a request's tokens were drawn from, by position: float32 [vocab], the ranks' rows put together.

        Whole once `finish` has returned; empty where nobody asked for them.
        """
        shown = self._pieces.get(request, {})
        return {position: b"".join(pieces[first] for first in sorted(pieces)) for position, pieces in shown.items()}

    def finish(self) -> Sequence[Finished]:
        """End the ranks in order; their last words, rank by rank."""
        self._tell(0, Finish())
        for message in self._messages():
            if isinstance(message, Finished):
                self.finished[message.rank] = message
                if len(self.finished) == len(self._ranks.channels):
                    break
        return [self.finished[rank] for rank in sorted(self.finished)]

    def _tell(self, rank: int, message: Submit | Finish) -> None:
        try:
            self._ranks.channels[rank].send(message)
        except EOFError:
            self._explain([], [rank])

    def _messages(self) -> Iterator[ToFront]:
        while True:
            yield from self._arrived(None)

    def _arrived(self, timeout_s: float | None) -> list[ToFront]:
        """What has come. A failure, or a rank that is gone, ends the session."""
        messages: list[ToFront] = []
        gone: list[int] = []
        for key, _ in self._selector.select(timeout_s):
            self._drain(key.data, messages, gone)
        failures = [message for message in messages if isinstance(message, Failed)]
        if failures or gone:
            self._explain(failures, gone)
        for message in messages:
            if isinstance(message, Logits):
                shown = self._pieces.setdefault(message.request, {}).setdefault(message.position, {})
                shown[message.first] = shown.get(message.first, b"") + message.values  # a rank may have no rows
        return messages

    def _drain(self, rank: int, messages: list[ToFront], gone: list[int]) -> None:
        try:
            while (message := self._ranks.channels[rank].receive(wait=False)) is not None:
                messages.append(message)
                if isinstance(message, Finished):
                    self._selector.unregister(self._ranks.channels[rank])
                    break
        except EOFError:
            gone.append(rank)
            self._selector.unregister(self._ranks.channels[rank])

    def _explain(self, failures: list[Failed], gone: list[int]) -> None:
        """Raise the error that began it: a rank that died, else a rank's own error, else what the others noticed."""
        for _ in range(10):
            messages: list[ToFront] = []
            for key, _ in self._selector.select(_SETTLE_S / 10):
                self._drain(key.data, messages, gone)
            failures += [message for message in messages if isinstance(message, Failed)]
        told = {failure.rank for failure in failures}
        for rank in gone:
            death = self._ranks.death(rank)
            if death is not None and rank not in told:
                raise PeerLost(f"{self._name(rank)} {death}", rank)
        own = next((failure for failure in failures if failure.lost is None), None)
        if own is not None:
            kind = getattr(errors, own.kind, RunError)
            raise kind(f"{self._name(own.rank)}: {own.message}")
        if failures:
            lost = failures[0].lost
            assert lost is not None
            raise PeerLost(f"{self._name(lost)} was lost: {failures[0].message}", lost)
        raise PeerLost(f"{self._name(gone[0])} ended before its work was done", gone[0])

    def _name(self, rank: int) -> str:
        """``rank 1 (stage 1, layers 15 to 29)``; with its host, and in a tensor group ``tensor rank 1 of 2``."""
        layout = self._plan.layout
        if rank not in range(layout.ranks):
            return f"rank {rank}"
        number = layout.stage_of(rank)
        first, end = layout.stages[number].layers
        place = layout.tensor_group(number, rank).index(rank)
        part = f", tensor rank {place} of {layout.tp}" if layout.tp > 1 else ""
        host = self._ranks.places.hosts.get(rank)
        where = "" if not host else f"{host}, " if host.startswith("host ") else f"host {host}, "
        return f"rank {rank} ({where}stage {number}, layers {first} to {end - 1}{part})"
