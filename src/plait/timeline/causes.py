"""Why each span began when it did, and the chain of spans that a run's length hangs on."""

from __future__ import annotations

from typing import Literal, NamedTuple

from plait.plans.layout import Layout
from plait.timeline.timeline import Timeline

Why = Literal["start", "order", "message", "exchange"]
"""Nothing; the action before it in its lane or on its rank; a message; the others of its group."""


class Cause(NamedTuple):
    """`span`: the index, in the timeline's spans, of the one that let this one begin; -1 where nothing did."""

    span: int
    why: Why


def find_causes(timeline: Timeline, layout: Layout) -> tuple[Cause, ...]:
    """The cause of each span, in the order of the timeline's spans: of all that it waited for, what ended last.

    What a span waits for is said by `plans.rules`; only spans of the timeline count, so that it works on a part of one.
    """
    raise NotImplementedError


def critical_path(timeline: Timeline, causes: tuple[Cause, ...]) -> tuple[int, ...]:
    """Indices of the spans from the first to the one that ends last, each the cause of the next."""
    raise NotImplementedError
