"""What is written well and yet cannot be of a run: left out of a run that is read, and said.

JSON holds any number: a time of 1e300 s, a rank that no machine has. Whatever draws these would end in an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from plait.plans.action import Action
from plait.timeline.span import Span
from plait.timeline.timeline import Timeline

_LONGEST_S = 1e10
"""Three centuries; clocks that count from 1970 stay below it."""

_RANKS, _STAGES, _COUNT = 1 << 20, 1 << 16, 1 << 31


class _Job(msgspec.Struct):
    prompt_tokens: int
    max_tokens: int
    users: int


class _Request(msgspec.Struct):
    prompt_tokens: int
    tokens: list[int]


class _Step(msgspec.Struct):
    step: int
    step_s: float | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None
    predicted: dict[str, float | dict[str, Any] | list[Any] | None] | None = None


_Numbers = dict[str, float | None]

_SHAPES: Mapping[str, Any] = {
    "task": str,
    "note": str,
    "copies": float,
    "job": _Job,
    "requests": list[_Request],
    "steps": list[_Step],
    "kept_steps": list[int],
    "predicted": _Numbers,
    "measured": _Numbers,
}
"""What a report reads of a run's result; the rest is kept as it is."""


def known_result(result: Mapping[str, Any], missing: list[str]) -> dict[str, Any]:
    """The result without what has another shape than a run writes; that is said in `missing`."""
    wrong = [key for key, value in result.items() if value is not None and not _is_of(value, _SHAPES.get(key, Any))]
    if wrong:
        missing.append(f"run.json's result has something else than a run writes under {', '.join(wrong)}: left out.")
    return {key: value for key, value in result.items() if key not in wrong}


def _is_of(value: Any, shape: Any) -> bool:
    try:
        msgspec.convert(value, shape)
    except msgspec.ValidationError:
        return False
    return True


def without_impossible(timeline: Timeline, missing: list[str]) -> Timeline | None:
    """The timeline without spans and memory tracks that cannot be; what was left out is said. None: no span can be."""
    name = f"{timeline.source}.json"
    spans = tuple(span for span in timeline.spans if is_possible(span))
    memory = {
        rank: track
        for rank, track in timeline.memory.items()
        if len(track.times_s) == len(track.used_bytes) and _are_times(track.times_s)
    }
    lost, tracks = len(timeline.spans) - len(spans), len(timeline.memory) - len(memory)
    if lost:
        which = next(span for span in timeline.spans if not is_possible(span))
        counted = f"{lost:,} spans that cannot be are" if lost > 1 else "1 span that cannot be is"
        missing.append(f"{name}: {counted} left out ({_what(which)}).")
    if tracks:
        missing.append(f"{name}: the memory of {tracks:,} ranks is left out, since its times cannot be.")
    if not lost and not tracks:
        return timeline
    return replace(timeline, spans=spans, memory=memory) if spans else None


def is_possible(span: Span) -> bool:
    """True where times are times, and rank, stage and the other numbers are some that a run can have."""
    return _has_times(span) and _has_numbers(span)


def _has_times(span: Span) -> bool:
    inside = (moment_s for part in span.parts for moment_s in (part.start_s, part.end_s))
    return _are_times((span.start_s, span.end_s, *inside)) if span.parts else _are_times((span.start_s, span.end_s))


def _are_times(moments_s: Iterable[float]) -> bool:
    return all(-_LONGEST_S < moment_s < _LONGEST_S for moment_s in moments_s)  # false of NaN too


def _has_numbers(span: Span) -> bool:
    action: Action = span.action
    small = all(-_COUNT < each < _COUNT for each in (span.epoch, action.round, action.micro_batch, action.part or 0))
    return small and 0 <= span.rank < _RANKS and 0 <= action.stage < _STAGES


def _what(span: Span) -> str:
    """Of the first that is left out what is wrong with it."""
    if not _has_times(span):
        return f"one is from {span.start_s:g} to {span.end_s:g} s"
    return f"one is of rank {span.rank} and stage {span.action.stage}"
