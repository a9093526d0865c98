"""Why each span began when it did, and the chain of spans that a run's length hangs on.

    rank 0   F0 ───┐ F1 ───┐
                   SF0 ─┐
    rank 1    (wait)    RF0 F0      RF0 began for SF0 (message), F0 for RF0 (order), SF0 for its F0 (order)

A span may stand in its lane and wait: a receive for its message, a send for room on its link, a meeting for the others.
What counts is when it goes on (`goes_s`), and of all that it waited for what ended last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from plait.plans.action import Action, Kind, Lane
from plait.plans.layout import Layout
from plait.plans.rules import partner, waits
from plait.timeline.span import Span
from plait.timeline.timeline import Timeline

Why = Literal["start", "order", "message", "exchange"]
"""Nothing; what is before it in its lane or on its rank; a message, or room for one; the others of its group."""

_JITTER_S = 2e-5
"""Measured ranks never meet to the microsecond: a shorter wait is the time that looking takes."""

_ROUNDING_S = 1e-12

_Key = tuple[int, int, int, str, int, int | None, int]
"""Epoch, round, stage, letters, micro-batch, part, rank: letters instead of the enum, whose hash is slow."""

_MEETING = frozenset(("F", "B", "I", "W", "G", "T", "A", "N"))
"""Kinds that ranks may do together."""


class Cause(NamedTuple):
    """`span`: the index, in the timeline's spans, of the one that let this one begin; -1 where nothing did.

    The cause of a send that waited for room on its link is the receive that made it (``message``). The cause of a
    span that waited for others of its group is what the last of them had waited for (``exchange``).
    """

    span: int
    why: Why


START = Cause(-1, "start")


def goes_s(span: Span) -> float:
    """When a span went on: the end of the wait that it begins with, or its begin."""
    if span.parts and span.parts[0].what == "wait":
        return span.parts[0].end_s
    return span.start_s


def find_causes(timeline: Timeline, layout: Layout) -> tuple[Cause, ...]:
    """The cause of each span, in the order of the timeline's spans: of all that it waited for, what ended last.

    What a span waits for is said by `plans.rules`; only spans of the timeline count, so that it works on a part of one.
    Of the token messages that a first stage's forward waits for, the last that was there when it began is taken: a lane
    takes them in order, and those that only later forwards need end later.
    """
    return _Causes(timeline, layout).find()


def critical_path(timeline: Timeline, causes: tuple[Cause, ...]) -> tuple[int, ...]:
    """Indices of the spans from the first to the one that ends last, each the cause of the next."""
    spans = timeline.spans
    if not spans:
        return ()
    at = max(range(len(spans)), key=lambda index: spans[index].end_s)
    path: list[int] = []
    seen: set[int] = set()
    while at >= 0 and at not in seen:
        seen.add(at)
        path.append(at)
        at = causes[at].span
    return tuple(reversed(path))


class _Causes:
    """Looks up what each span waited for. Everything is by index in the timeline's spans."""

    def __init__(self, timeline: Timeline, layout: Layout) -> None:
        self._spans, self._layout = timeline.spans, layout
        self._least_s = _JITTER_S if timeline.source == "measured" else _ROUNDING_S
        self._at: dict[_Key, int] = {_key(span): index for index, span in enumerate(timeline.spans)}
        self._place = _Places(layout)
        self._before: list[int] = [-1] * len(self._spans)
        self._needs: dict[int, list[int]] = {}
        self._rooms: dict[int, int] = {}

    def find(self) -> tuple[Cause, ...]:
        lanes = _by_lane(self._spans)
        for lane in lanes.values():
            for before, after in pairwise(lane):
                self._before[after] = before
        self._find_needs()
        self._find_tokens(lanes)
        self._find_rooms(lanes)
        causes = [self._cause(index) for index in range(len(self._spans))]
        return tuple(self._meet(causes))

    def _find_needs(self) -> None:
        """What `rules.waits` says, rank by rank and round by round; its answer needs no order across lanes but RT's."""
        rounds: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        for index, span in enumerate(self._spans):
            rounds[span.epoch, span.rank, span.action[0]].append(index)
        for indices in rounds.values():
            # computations first: a forward then waits for no token message, which `_find_tokens` finds
            ordered = sorted(indices, key=lambda index: self._spans[index].action.kind.lane is not Lane.COMPUTE)
            for index, waited in zip(ordered, waits([self._spans[one].action for one in ordered]), strict=True):
                found = [ordered[place] for place in waited if place >= 0]
                if found:
                    self._needs[index] = found

    def _find_tokens(self, lanes: dict[tuple[int, int, str], list[int]]) -> None:
        spans = self._spans
        for (epoch, rank, name), lane in lanes.items():
            if name != Lane.P2P.value:
                continue
            tokens = [index for index in lane if spans[index].action[2] is Kind.RECEIVE_TOKENS]
            at, last = 0, -1
            for index in lanes.get((epoch, rank, Lane.COMPUTE.value), ()) if tokens else ():
                round_, stage, kind, _, _ = spans[index].action
                until_s = spans[index].start_s + _ROUNDING_S
                while at < len(tokens) and spans[tokens[at]].end_s <= until_s and spans[tokens[at]].action[0] < round_:
                    last, at = tokens[at], at + 1
                if last >= 0 and stage == 0 and kind is Kind.FORWARD:
                    self._needs.setdefault(index, []).append(last)

    def _find_rooms(self, lanes: dict[tuple[int, int, str], list[int]]) -> None:
        """For each send the receive before which its link, which holds k messages, had no room for it."""
        sends: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        receives: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        carried: dict[tuple[int, int, int], int] = defaultdict(int)
        for (epoch, rank, name), lane in lanes.items():
            if name != Lane.P2P.value:
                continue
            for index in lane:
                action = self._spans[index].action
                other, there = self._other_end(action, rank)
                if action.kind.sends:
                    sends[epoch, rank, there].append(index)
                else:
                    receives[epoch, there, rank].append(index)
                    carried[epoch, there, rank] += _key_of(epoch, other, there) not in self._at
        for link, sent in sends.items():
            taken, first = receives.get(link, []), carried.get(link, 0) - self._layout.link_capacity
            for number, index in enumerate(sent, first):
                if 0 <= number < len(taken):
                    self._rooms[index] = taken[number]

    def _other_end(self, action: Action, rank: int) -> tuple[Action, int]:
        """The other end of a message, and the rank it is on: rank i of a stage talks with rank i of the other."""
        other = partner(action, len(self._layout.stages))
        return other, self._place.across(action.stage, other.stage, rank)

    def _cause(self, index: int) -> Cause:
        span = self._spans[index]
        held = self._held(index, span)
        if held is not None:
            return held
        best, best_s = -1, float("-inf")
        before = self._before[index]
        if before >= 0:
            best, best_s = before, _leaves_s(self._spans[before], span.start_s)
        for other in self._needs.get(index, ()):
            if self._spans[other].end_s >= best_s:
                best, best_s = other, self._spans[other].end_s
        return Cause(best, "order") if best >= 0 else START

    def _held(self, index: int, span: Span) -> Cause | None:
        """What a message at the head of its lane waited for: its other end, room, or the message before on its link."""
        kind = span.action.kind
        if kind.lane is not Lane.P2P:
            return None
        waited = goes_s(span) - span.start_s > self._least_s
        if kind.receives:
            other, there = self._other_end(span.action, span.rank)
            sent = self._at.get(_key_of(span.epoch, other, there), -1)
            late = sent >= 0 and (waited or self._spans[sent].end_s > span.start_s + self._least_s)
            return Cause(sent, "message") if late else None
        room = self._rooms.get(index, -1)
        if room >= 0 and self._spans[room].end_s > span.start_s + self._least_s:
            busy = self._sent_before(index) if waited else -1
            if busy < 0 or self._spans[busy].end_s <= self._spans[room].end_s:
                return Cause(room, "message")
            return Cause(busy, "order")
        if waited and (busy := self._sent_before(index)) >= 0:
            return Cause(busy, "order")
        return None

    def _sent_before(self, index: int) -> int:
        """The send before this one on its link, which a link that takes messages at once sends first."""
        span = self._spans[index]
        link = self._other_end(span.action, span.rank)[1]
        before = self._before[index]
        while before >= 0:
            other = self._spans[before]
            if other.action.kind.sends and self._other_end(other.action, other.rank)[1] == link:
                return before
            before = self._before[before]
        return -1

    def _meet(self, causes: Sequence[Cause]) -> Iterator[Cause]:
        """Where the others of a group came later, what the last of them had waited for."""
        last: dict[tuple[int, Action, tuple[int, ...]], int] = {}
        groups: list[tuple[int, Action, tuple[int, ...]] | None] = []
        for index, span in enumerate(self._spans):
            group = self._group(span)
            groups.append(group)
            if group is not None and span.start_s > self._spans[last.setdefault(group, index)].start_s:
                last[group] = index
        for index, (cause, group) in enumerate(zip(causes, groups, strict=True)):
            late = -1 if group is None else last[group]
            if late < 0 or self._spans[late].start_s <= self._spans[index].start_s + self._least_s:
                yield cause
            else:
                yield Cause(causes[late].span, "exchange") if causes[late].span >= 0 else cause

    def _group(self, span: Span) -> tuple[int, Action, tuple[int, ...]] | None:
        """With whom the span was done, and as what; None where it was done alone."""
        letters = span.action.kind._value_
        if letters not in _MEETING:
            return None
        if letters == "N":
            return span.epoch, span.action._replace(stage=0), ()
        stages = self._layout.stages
        if letters == "T" and stages[0].ranks != stages[-1].ranks:  # on one position they follow each other
            return span.epoch, span.action._replace(stage=0), (self._place.within(span.action.stage, span.rank),)
        if letters in ("G", "A", "T"):
            return span.epoch, span.action, self._place.replicas(span.action.stage, span.rank)
        exchanged = self._layout.tp > 1 and any(part.what == "transfer" for part in span.parts)
        return (span.epoch, span.action, self._place.tensor_group(span.action.stage, span.rank)) if exchanged else None


def across(layout: Layout, other: int, place: int) -> int:
    """Who sends to, or receives from, the rank in `place` of a stage; -1 where there is no such stage or rank."""
    if not 0 <= other < len(layout.stages):
        return -1
    ranks = layout.stages[other].ranks
    return ranks[place] if place < len(ranks) else -1


class _Places:
    """Where ranks stand in their stages, looked up once."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._index = [{rank: at for at, rank in enumerate(stage.ranks)} for stage in layout.stages]

    def across(self, stage: int, other: int, rank: int) -> int:
        """The rank of stage `other` that stands where `rank` does in `stage`; -1 where there is none."""
        return across(self._layout, other, self._index[stage][rank])

    def within(self, stage: int, rank: int) -> int:
        """The rank's place in its tensor group."""
        return self._index[stage][rank] % self._layout.tp

    def tensor_group(self, stage: int, rank: int) -> tuple[int, ...]:
        """The ranks that share the stage with this one."""
        first = self._index[stage][rank] // self._layout.tp * self._layout.tp
        return self._layout.stages[stage].ranks[first : first + self._layout.tp]

    def replicas(self, stage: int, rank: int) -> tuple[int, ...]:
        """The ranks that hold the same as this one."""
        return self._layout.stages[stage].ranks[self.within(stage, rank) :: self._layout.tp]


def _leaves_s(before: Span, start_s: float) -> float:
    """When the lane could go on after `before`: a link that takes a message at once still sends it then."""
    return before.end_s if before.end_s <= start_s or not before.action.kind.sends else before.start_s


def _by_lane(spans: Iterable[Span]) -> dict[tuple[int, int, str], list[int]]:
    """Indices of the spans of each epoch, rank and lane, in order."""
    lanes: dict[tuple[int, int, str], list[int]] = defaultdict(list)
    for index, span in enumerate(spans):
        lanes[span.epoch, span.rank, span.action.kind.lane._value_].append(index)
    return lanes


def _key(span: Span) -> _Key:
    return _key_of(span.epoch, span.action, span.rank)


def _key_of(epoch: int, action: Action, rank: int) -> _Key:
    round_, stage, kind, micro_batch, part = action
    return epoch, round_, stage, kind._value_, micro_batch, part, rank
