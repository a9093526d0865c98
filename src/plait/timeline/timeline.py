"""A timeline: all spans of a run, predicted or measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from plait.timeline.span import Span


class Clock(NamedTuple):
    """A host's clock minus the reference host's, and how far off that may be."""

    offset_s: float = 0.0
    error_s: float = 0.0


class MemoryTrack(NamedTuple):
    """Bytes on one rank's device over time: `used_bytes[i]` from `times_s[i]` on, in the timeline's seconds.

    `limit_bytes`: what the device has for the rank, where that is known. `base_bytes`, of measured tracks: what the
    process held before it loaded anything (Python and torch), which a prediction does not count.
    """

    times_s: tuple[float, ...]
    used_bytes: tuple[int, ...]
    limit_bytes: int | None = None
    base_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Timeline:
    """Spans in the order of their start, in seconds of the reference host's clock.

    `hosts` says where each rank ran; `clocks` holds the offset that was taken off each host's times. `memory` has a
    track for each rank of which it is known.
    """

    source: Literal["predicted", "measured"]
    spans: tuple[Span, ...]
    hosts: Mapping[int, str] = field(default_factory=dict)
    clocks: Mapping[str, Clock] = field(default_factory=dict)
    memory: Mapping[int, MemoryTrack] = field(default_factory=dict)

    @property
    def start_s(self) -> float:
        """When the first span begins."""
        return min((span.start_s for span in self.spans), default=0.0)

    @property
    def end_s(self) -> float:
        """When the last span ends."""
        return max((span.end_s for span in self.spans), default=0.0)

    @property
    def makespan_s(self) -> float:
        """Wall time from the first span's begin to the last one's end."""
        return self.end_s - self.start_s

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have spans, ascending."""
        return tuple(sorted({span.rank for span in self.spans}))
