"""Hears what all ranks say, and turns a failure, or a rank that is gone, into the error that began it."""

from __future__ import annotations

import selectors
from collections.abc import Callable, Sequence
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from plait import errors
from plait.errors import PeerLost, RunError
from plait.plans.layout import Layout
from plait.ranks.channel import Channel
from plait.ranks.failures import Failed

Message = TypeVar("Message")

_SETTLE_S = 1.0
"""How long the other ranks' words are awaited when one fails: the one that died is named, not the one that noticed."""


class Started(Protocol):
    """Ranks that run, and the channels to them, rank by rank."""

    @property
    def channels(self) -> Sequence[Channel[Any, Any]]:
        """To each rank."""

    def death(self, rank: int) -> str | None:
        """How a rank ended where it did not end well, in words; None while it lives or where it ended as it should."""


class Listener(Generic[Message]):
    """`last` says which message is a rank's last word, `name` what a rank is called in an error.

    `agreeing`: see `raise_first`.
    """

    def __init__(self, ranks: Started, last: type, name: Callable[[int], str], *, agreeing: bool = False) -> None:
        self._ranks, self._last, self._name, self._agreeing = ranks, last, name, agreeing
        self._selector = selectors.DefaultSelector()
        for rank, channel in enumerate(ranks.channels):
            self._selector.register(channel, selectors.EVENT_READ, rank)

    def close(self) -> None:
        """Hear no more."""
        self._selector.close()

    def tell(self, rank: int, message: object) -> None:
        """Tell a rank. Errors: what ended it, where it is gone."""
        try:
            self._ranks.channels[rank].send(message)
        except EOFError:
            self._explain([], [rank])

    def arrived(self, timeout_s: float | None = None) -> list[Message]:
        """What has come, once something has or time is up. Errors: a rank's failure; PeerLost where one is gone."""
        messages: list[Message] = []
        gone: list[int] = []
        for key, _ in self._selector.select(timeout_s):
            self._drain(key.data, messages, gone)
        if gone or any(isinstance(message, Failed) for message in messages):
            self._explain(messages, gone)
        return messages

    def _drain(self, rank: int, messages: list[Message], gone: list[int]) -> None:
        try:
            while (message := self._ranks.channels[rank].receive(wait=False)) is not None:
                messages.append(message)
                if isinstance(message, self._last):
                    self._selector.unregister(self._ranks.channels[rank])
                    break
        except EOFError:
            gone.append(rank)
            self._selector.unregister(self._ranks.channels[rank])

    def _explain(self, heard: Sequence[Message], gone: list[int]) -> NoReturn:
        """Raise the error that began it: a rank that died, else a rank's own error, else what the others noticed."""
        said = list(heard)
        for _ in range(10):
            for key, _ in self._selector.select(_SETTLE_S / 10):
                self._drain(key.data, said, gone)
        failures = [message for message in said if isinstance(message, Failed)]
        told = {failure.rank for failure in failures}
        for rank in gone:
            death = self._ranks.death(rank)
            if death is not None and rank not in told:
                raise PeerLost(f"{self._name(rank)} {death}", rank)
        raise_first(failures, self._name, agreeing=self._agreeing)
        raise PeerLost(f"{self._name(gone[0])} ended before its work was done", gone[0])


def raise_first(failures: Sequence[Failed], name: Callable[[int], str], *, agreeing: bool = False) -> None:
    """Raise a rank's own error, else what ranks noticed of another's loss; nothing where nothing failed.

    `agreeing`: all ranks find some errors together; what several say in the same words is no single rank's.
    """
    own = next((failure for failure in failures if failure.lost is None), None)
    if own is not None:
        kind = getattr(errors, own.kind, RunError)
        saying = {one.rank for one in failures if one.lost is None and one.message == own.message}
        raise kind(own.message if agreeing and len(saying) > 1 else f"{name(own.rank)}: {own.message}")
    if failures:
        lost = failures[0].lost
        assert lost is not None
        raise PeerLost(f"{name(lost)} was lost: {failures[0].message}", lost)


def rank_name(layout: Layout, rank: int, host: str = "") -> str:
    """``rank 1 (stage 1, layers 15 to 29)``; with its host, and which replica and tensor rank it is of how many."""
    if rank not in range(layout.ranks):
        return f"rank {rank}"
    number = layout.stage_of(rank)
    ranks = layout.stages[number].ranks
    held = [index for index, stage in enumerate(layout.stages) if stage.ranks == ranks]
    layers = " and ".join(f"{first} to {end - 1}" for first, end in (layout.cut[each] for each in held))
    stages = f"stage{'s' if len(held) > 1 else ''} {' and '.join(map(str, held))}"
    replica, place = divmod(ranks.index(rank), layout.tp)
    replicas = len(ranks) // layout.tp
    facts = [f"{stages}, layers {layers}"]
    facts += [f"replica {replica} of {replicas}"] if replicas > 1 else []
    facts += [f"tensor rank {place} of {layout.tp}"] if layout.tp > 1 else []
    where = "" if not host else f"{host}, " if host.startswith("host ") else f"host {host}, "
    return f"rank {rank} ({where}{', '.join(facts)})"
