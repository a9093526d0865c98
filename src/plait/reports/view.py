"""View: all that a report of a run or of a plan is drawn from, whatever draws it.

The terminal, the page, the pictures and the Perfetto file read the same view, so they cannot say different things.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from plait.plans.layout import Layout
from plait.reports.moments import Moments
from plait.timeline.causes import Cause
from plait.timeline.compare import Shares
from plait.timeline.timeline import Timeline


class Row(NamedTuple):
    """A row of the picture: one rank, or a position's first rank, which stands for all of `ranks`."""

    rank: int
    label: str
    position: int
    stages: tuple[int, ...]
    ranks: tuple[int, ...]
    host: str
    device: str


class Source(NamedTuple):
    """Where a stage's measured time differs from the predicted: seconds of all its ranks, measured − predicted.

    `what`: forward, backward, …, exchange, message, wait; `actions`: how many that both timelines have.
    """

    what: str
    actions: int
    predicted_s: float
    measured_s: float


class StageLine(NamedTuple):
    """A stage's time, predicted and measured, and the sources of the difference, the largest first."""

    stage: int
    layers: tuple[int, int]
    ranks: tuple[int, ...]
    predicted: Shares | None
    measured: Shares | None
    sources: tuple[Source, ...]


class LinkUse(NamedTuple):
    """Bytes that a link carried, and the share of the makespan in which it was busy."""

    sent_bytes: int
    busy_share: float


class LinkLine(NamedTuple):
    """A directed link between two ranks, or a group that exchanges: `name` is ``0→1`` or ``tp 0, 1``.

    `axis`: pp for messages, else the group's axis. Of a group the bytes are those of all its ranks.
    """

    name: str
    axis: str
    ranks: tuple[int, ...]
    predicted: LinkUse | None
    measured: LinkUse | None


class Lost(NamedTuple):
    """Another way to split, or several of one sort, that was not chosen: its figures in words, and why it lost."""

    kind: str
    figure: str
    loses: str


@dataclass(frozen=True, slots=True)
class View:
    """`causes` holds those of each timeline's spans, in their order. `figures` are those of `report --json`.

    `facts`: name and value in words, as in ("schedule", "1f1b"). `missing`: what a whole run has and this one lacks,
    in sentences. `plan`: the plan file's text. `moments`: of exchanges that are predicted, where layers are known.
    """

    title: str
    task: Literal["generate", "train"]
    facts: tuple[tuple[str, str], ...]
    layout: Layout
    rows: tuple[Row, ...]
    predicted: Timeline | None
    measured: Timeline | None
    causes: Mapping[str, tuple[Cause, ...]] = field(default_factory=dict)
    stages: tuple[StageLine, ...] = ()
    links: tuple[LinkLine, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)
    plan: str = ""
    reasons: tuple[str, ...] = ()
    lost: tuple[Lost, ...] = ()
    missing: tuple[str, ...] = ()
    moments: Moments | None = None

    @property
    def timelines(self) -> tuple[Timeline, ...]:
        """Predicted, then measured, as far as they are there."""
        return tuple(one for one in (self.predicted, self.measured) if one is not None)
