"""Measures a run: an observer that writes down what the executor tells it, and nothing more until the end.

Each rank has its own tracer. When the run is over a rank encodes what it holds, the parent decodes all of them and
merges them into one measured timeline on the reference host's clock.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Literal, cast

import msgspec

from plait.errors import RunError
from plait.plans.action import Action
from plait.timeline.memory import clipped, left_by_others, shifted
from plait.timeline.span import Part, Span
from plait.timeline.timeline import Clock, MemoryTrack, Timeline

Exchanges = Sequence[tuple[float, float]]

Event = tuple[Action, float, float, float, int, Exchanges]
"""What an observer is told: action, start, ready, end, payload bytes, begins and ends of the exchanges inside."""

_Packed = tuple[Action, float, float, float, int, bytes]
"""An event whose exchanges are float64, begin and end one after the other: 16 bytes each."""


class _Wire(msgspec.Struct, array_like=True, frozen=True):
    """A tracer between two processes."""

    rank: int
    epoch: int
    host: str
    events: list[_Packed]
    memory: MemoryTrack | None = None


class Tracer:
    """The observer of one rank in one epoch. `host` names the clock that the times are read from.

    `memory`: of the rank's process meanwhile, on the same clock, where the rank has a process of its own.
    """

    __slots__ = ("_append", "epoch", "events", "host", "memory", "rank")

    def __init__(self, rank: int, epoch: int = 0, host: str = "localhost") -> None:
        self.rank = rank
        self.epoch = epoch
        self.host = host
        self.events: list[Event] = []
        self.memory: MemoryTrack | None = None
        self._append = self.events.append

    def finished(
        self,
        action: Action,
        start_s: float,
        ready_s: float,
        end_s: float,
        payload_bytes: int,
        exchanges: Exchanges = (),
    ) -> None:
        """Write one action down. Stands inside every token: one append, about 0.1 µs. `exchanges` is kept as it is."""
        self._append((action, start_s, ready_s, end_s, payload_bytes, exchanges))

    def spans(self, offset_s: float = 0.0) -> tuple[Span, ...]:
        """What was written down, as spans in the order of their end; `offset_s` is taken off every time."""
        return tuple(_span(event, self.epoch, self.rank, offset_s) for event in self.events)

    def encode(self) -> bytes:
        """All of it, for another process."""
        packed = [(*told, _packed(exchanges)) for *told, exchanges in self.events]
        return msgspec.msgpack.encode((self.rank, self.epoch, self.host, packed, self.memory))

    @classmethod
    def decode(cls, data: bytes) -> Tracer:
        """What a rank's tracer encoded. Errors: RunError where it is damaged."""
        try:
            wire = msgspec.msgpack.decode(data, type=_Wire)
            events = [(*told, _unpacked(packed)) for *told, packed in wire.events]
        except (msgspec.MsgspecError, ValueError) as error:
            raise RunError(f"the trace that a rank handed over ({len(data)} bytes) cannot be read: {error}") from error
        tracer = cls(wire.rank, wire.epoch, wire.host)
        tracer.events.extend(cast("list[Event]", events))
        tracer.memory = wire.memory
        return tracer


def _packed(exchanges: Exchanges) -> bytes:
    return array("d", chain.from_iterable(exchanges)).tobytes() if exchanges else b""


def _unpacked(packed: bytes) -> Exchanges:
    if not packed:
        return ()
    times = array("d", packed)
    return tuple(zip(times[::2], times[1::2], strict=True))


def _span(event: Event, epoch: int, rank: int, offset_s: float) -> Span:
    action, start_s, ready_s, end_s, payload_bytes, exchanges = event
    start_s, ready_s, end_s = start_s - offset_s, ready_s - offset_s, end_s - offset_s
    if action.kind.receives:
        return Span(epoch, action, rank, start_s, end_s, 0, _receive_parts(start_s, ready_s, end_s))
    parts = tuple(_computing_parts(start_s, end_s, exchanges, offset_s)) if exchanges else ()
    return Span(epoch, action, rank, start_s, end_s, payload_bytes, parts)


def _computing_parts(start_s: float, end_s: float, exchanges: Exchanges, offset_s: float) -> Iterator[Part]:
    """Exchanges, and what was computed before, between and after them; a piece that took no time is left out."""
    at_s = start_s
    for begin_s, finish_s in exchanges:
        if begin_s - offset_s > at_s:
            yield Part("compute", at_s, begin_s - offset_s)
        if finish_s > begin_s:
            yield Part("transfer", begin_s - offset_s, finish_s - offset_s)
        at_s = finish_s - offset_s
    if end_s > at_s:
        yield Part("compute", at_s, end_s)


def _receive_parts(start_s: float, ready_s: float, end_s: float) -> tuple[Part, ...]:
    """First it waited for its message, then it took it; a piece that took no time is left out."""
    pieces: tuple[tuple[Literal["wait", "transfer"], float, float], ...] = (
        ("wait", start_s, ready_s),
        ("transfer", ready_s, end_s),
    )
    return tuple(Part(what, begin, end) for what, begin, end in pieces if end > begin)


def merge(parts: Iterable[Tracer], clocks: Mapping[str, Clock] | None = None) -> Timeline:
    """One measured timeline of all ranks' tracers, on the reference host's clock; its first span begins at 0.

    A host that `clocks` does not name is the reference: there may be one. Memory is kept from the first span's begin to
    the last one's end; what a rank has there is what its host had free, less what the host's other ranks took.

    Errors: RunError where more hosts have no clock.
    """
    tracers = tuple(parts)
    known = dict(clocks or {})
    _require_clocks({tracer.host for tracer in tracers}, known)
    spans = [
        span for tracer in tracers for span in tracer.spans(known[tracer.host].offset_s if tracer.host in known else 0)
    ]
    first_s = min((span.start_s for span in spans), default=0.0)
    rebased = sorted((_earlier(span, first_s) for span in spans), key=lambda span: (span.start_s, span.end_s))
    hosts = {tracer.rank: tracer.host for tracer in tracers}
    end_s = max((span.end_s for span in rebased), default=0.0)
    tracks = {
        tracer.rank: clipped(shifted(tracer.memory, -first_s - known.get(tracer.host, Clock()).offset_s), 0.0, end_s)
        for tracer in tracers
        if tracer.memory is not None
    }
    return Timeline("measured", tuple(rebased), hosts, known, _shared(tracks, hosts))


def _shared(tracks: Mapping[int, MemoryTrack], hosts: Mapping[int, str]) -> dict[int, MemoryTrack]:
    """Each rank's limit, which was the host's when it was alone there, less what the others took at most."""
    free: dict[str, int] = {}
    for rank, track in tracks.items():
        if track.limit_bytes is not None:
            free[hosts[rank]] = max(free.get(hosts[rank], 0), track.limit_bytes - track.base_bytes)
    grown = {rank: max(0, max(one.used_bytes, default=0) - one.base_bytes) for rank, one in tracks.items()}
    left = left_by_others(grown, hosts, free)
    return {
        rank: track._replace(limit_bytes=track.base_bytes + left[rank] if rank in left else None)
        for rank, track in sorted(tracks.items())
    }


def _require_clocks(hosts: set[str], clocks: Mapping[str, Clock]) -> None:
    unknown = sorted(hosts - set(clocks))
    if len(unknown) > 1:
        raise RunError(
            f"no clock for hosts {', '.join(unknown)}: only one host, the reference, may be without its offset; "
            "measure the others' with timeline.clock.offset_from_exchanges"
        )


def _earlier(span: Span, by_s: float) -> Span:
    parts = tuple(Part(what, start_s - by_s, end_s - by_s) for what, start_s, end_s in span.parts)
    return span._replace(start_s=span.start_s - by_s, end_s=span.end_s - by_s, parts=parts)
