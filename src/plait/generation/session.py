"""The front's side of a running split model: submit requests, take tokens as they come, and read how it went."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType

from plait.generation.launch import Ranks
from plait.generation.protocol import Finish, Finished, Logits, Progress, Ready, Submit, ToFront, Token
from plait.plans.plan import Plan
from plait.ranks.listener import Listener, rank_name

LoadProgress = Callable[[int, int, int], None]
"""Called with (rank, bytes done, bytes in all) while weights are loaded."""


class Session:
    """A split model that answers. Use it as a context manager: leaving ends the ranks."""

    def __init__(self, plan: Plan, ranks: Ranks) -> None:
        self._plan, self._ranks = plan, ranks
        self._listener: Listener[ToFront] = Listener(ranks, Finished, self._name)
        self.ready: dict[int, Ready] = {}
        self.finished: dict[int, Finished] = {}
        self._pieces: dict[int, dict[int, dict[int, bytes]]] = {}

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ranks.stop()
        self._listener.close()

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
        self._listener.tell(rank, message)

    def _messages(self) -> Iterator[ToFront]:
        while True:
            arrived = self._listener.arrived()
            for message in arrived:
                if isinstance(message, Logits):
                    shown = self._pieces.setdefault(message.request, {}).setdefault(message.position, {})
                    shown[message.first] = shown.get(message.first, b"") + message.values  # a rank may have no rows
            yield from arrived

    def _name(self, rank: int) -> str:
        return rank_name(self._plan.layout, rank, self._ranks.places.hosts.get(rank, ""))
