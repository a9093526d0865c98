"""Memory over time: what lies on each rank's device while a timeline runs, and the most of it.

    1F1B, stage 0 of 3, 4 micro-batches, one unit a forward

    3      ┌────┐  ┌────┐
    2   ┌──┘    └──┘    └─┐
    1 ┌─┘                 └──┐
      F0 F1 F2  B0 F3 B1  B2 B3

A rank computes one action at a time, so what its actions take and give, added up in their order, is what lies there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plait.costs.protocol import Held, Memory
from plait.plans.action import Action, Kind, Lane
from plait.plans.collection import no_collection
from plait.plans.layout import Layout
from plait.plans.round import MicroBatch, Round
from plait.timeline.memory import MOST_POINTS, thin
from plait.timeline.timeline import MemoryTrack, Timeline


@dataclass(frozen=True, slots=True, eq=False)
class MemoryCurve:
    """Bytes on one rank: `static_bytes` before `times_s[0]`, `used_bytes[i]` from `times_s[i]` on.

    Where several changes come at one moment they stand in their order.
    """

    static_bytes: int
    times_s: NDArray[np.float64]
    used_bytes: NDArray[np.int64]

    @property
    def peak_bytes(self) -> int:
        """The most that lies there at any time."""
        return max(self.static_bytes, int(self.used_bytes.max(initial=self.static_bytes)))

    def at(self, moment_s: float) -> int:
        """Bytes at a moment, after all that changes then."""
        index = int(np.searchsorted(self.times_s, moment_s, side="right"))
        return int(self.used_bytes[index - 1]) if index else self.static_bytes


class _Change(NamedTuple):
    """Bytes that an action takes when it begins, and more (or less) when it ends."""

    begin: int
    end: int


def memory_over_time(
    timeline: Timeline, rounds: Sequence[Round], layout: Layout, memory: Memory
) -> dict[int, MemoryCurve]:
    """The curve of every rank that has spans in the timeline, predicted or measured, of these rounds.

    A forward takes what it leaves when it begins; I, W and B give it back when they end, part by part where they are
    cut. Weights, gradients, optimizer states and the KV cache are there from the first to the last moment.
    """
    static = _static(layout, memory)
    columns: dict[int, tuple[list[float], list[int]]] = {}
    with no_collection():
        change_of = _Changes(timeline, rounds, layout, memory).of
        for _, action, rank, start_s, end_s, _, _ in timeline.spans:
            column = columns.get(rank)
            if column is None:
                column = columns[rank] = ([], [])
            if action[2]._value_ in _COMPUTING:
                column[0].extend((start_s, end_s))
                column[1].extend(change_of(action))
    return {
        rank: MemoryCurve(static[rank], np.array(times_s), static[rank] + np.cumsum(steps, dtype=np.int64))
        for rank, (times_s, steps) in sorted(columns.items())
    }


def with_memory(
    timeline: Timeline, curves: Mapping[int, MemoryCurve], limits: Mapping[int, int] | None = None
) -> Timeline:
    """The timeline with a track of each curve, thinned for pictures (`timeline.memory`). `limits`: what ranks have."""
    known = limits or {}
    start_s = timeline.start_s
    return replace(
        timeline, memory={rank: _track(curve, start_s, known.get(rank)) for rank, curve in sorted(curves.items())}
    )


def _track(curve: MemoryCurve, start_s: float, limit_bytes: int | None) -> MemoryTrack:
    times_s, used_bytes = thin(curve.times_s.tolist(), curve.used_bytes.tolist(), MOST_POINTS - 1)
    if not times_s or times_s[0] > start_s:
        times_s, used_bytes = [start_s, *times_s], [curve.static_bytes, *used_bytes]
    return MemoryTrack(tuple(times_s), tuple(used_bytes), limit_bytes)


def peak_bytes(curves: Mapping[int, MemoryCurve]) -> int:
    """The most that lies on any rank."""
    return max((curve.peak_bytes for curve in curves.values()), default=0)


def _static(layout: Layout, memory: Memory) -> dict[int, int]:
    """What lies on each rank, of all the stages it holds."""
    held: Counter[int] = Counter()
    for index, stage in enumerate(layout.stages):
        size = memory.static_bytes(layout, index)
        for rank in stage.ranks:
            held[rank] += size
    return held


class _Changes:
    """What each action changes, asked of `memory` once for each stage, kind and shape of micro-batch."""

    def __init__(self, timeline: Timeline, rounds: Sequence[Round], layout: Layout, memory: Memory) -> None:
        self._layout, self._memory = layout, memory
        self._work = {one.number: one.work for one in rounds}
        self._shapes: dict[object, int] = {}
        self._shape_of = {
            one.number: [self._shapes.setdefault(_shape(each), len(self._shapes)) for each in one.work]
            for one in rounds
        }
        self._known: dict[tuple[int, str, int], _Change] = {}
        cut = {span.action for span in timeline.spans if span.action.part is not None}
        self._parts = Counter(action._replace(part=None) for action in cut)

    def of(self, action: Action) -> _Change:
        """What an action of the compute lane changes."""
        number, stage, kind, micro_batch, part = action
        letters = kind._value_  # an enum's hash is slow Python
        shape = self._shape_of[number][micro_batch] if letters not in _OF_STAGE else -1
        change = self._known.get((stage, letters, shape)) if part is None else None
        if change is None:
            work = self._work[number][micro_batch] if shape >= 0 else MicroBatch(())
            if part is not None:
                return self._change(stage, kind, work, part, self._parts[action._replace(part=None)])
            change = self._known[stage, letters, shape] = self._change(stage, kind, work, 0, 1)
        return change

    def _change(self, stage: int, kind: Kind, micro_batch: MicroBatch, part: int, parts: int) -> _Change:
        working = self._memory.working_bytes(self._layout, stage, micro_batch, kind)
        letters = kind._value_
        if letters in _OF_STAGE:
            return _Change(working, -working)
        held = self._memory.held(self._layout, stage, micro_batch)
        if letters == _FORWARD:
            return _Change(_share(held.total_bytes, part, parts) + working, -working)
        freed = _FREED[letters](held)
        return _Change(working, -working - _share(freed, part, parts))


_FREED: Mapping[str, Callable[[Held], int]] = {
    Kind.BACKWARD.value: attrgetter("total_bytes"),
    Kind.BACKWARD_INPUT.value: attrgetter("until_input_bytes"),
    Kind.BACKWARD_WEIGHT.value: attrgetter("until_weight_bytes"),
}
_COMPUTING = frozenset(kind.value for kind in Kind if kind.lane is Lane.COMPUTE)
_FORWARD = Kind.FORWARD.value
_OF_STAGE = frozenset((Kind.OPTIMIZER.value, Kind.NORM.value))
"""Computations of no micro-batch: all that they take they give back."""


def _shape(micro_batch: MicroBatch) -> tuple[object, ...]:
    return tuple([row[3:] for row in micro_batch.rows])


def _share(size: int, part: int, parts: int) -> int:
    """What one of several equal parts has of a number of bytes; together they have all of it."""
    return size * (part + 1) // parts - size * part // parts
