"""A small model trained for the lab: the timelines of its steps, and what its stages computed in them."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from plait.lab.experiment import Say
from plait.plans.action import Kind, Lane
from plait.timeline.compare import COMPUTE
from plait.timeline.span import Part, Span
from plait.timeline.timeline import Timeline
from plait.trainer.train import train
from plait.trainer.train_options import TrainOptions
from plait.trainer.train_watch import Unwatched

STEPS, WARM_STEPS = 10, 3
"""Steps that are trained, and those of them that are not looked at: memory is touched, caches fill."""

Computing = Mapping[tuple[int, Kind], float]
"""Seconds of a stage's F and B of a micro-batch, its N and its O; what is not named takes none."""

_WHOLE_STEP = (Kind.NORM, Kind.OPTIMIZER)


class _Told(Unwatched):
    """Hands on what takes a while."""

    def __init__(self, say: Say) -> None:
        self._say = say

    def say(self, text: str) -> None:
        """See `TrainWatch`."""
        self._say(text)


def trained_steps(model: str, options: TrainOptions, say: Say) -> list[Timeline]:
    """Train `model` on this host, and keep the timeline of each step but the first ones.

    `options` needs batch and sequence_length. Errors: those of `plait.train`.
    """
    assert options.batch is not None
    assert options.sequence_length is not None
    kept = tuple(range(WARM_STEPS, STEPS))
    asked = replace(options, steps=STEPS, timeline=kept, check_every=0)
    with tempfile.TemporaryDirectory() as place:
        text = Path(place) / "text.txt"
        text.write_text(some_text(4 * options.batch * options.sequence_length), encoding="utf-8")
        measured = train(model, text, asked, watch=_Told(say), run=Path(place) / "run").record.measured
    assert measured is not None, "steps were kept"
    return [of_round(measured, step) for step in kept]


def of_round(timeline: Timeline, number: int) -> Timeline:
    """One step of several."""
    spans = tuple(span for span in timeline.spans if span.action.round == number)
    return Timeline(timeline.source, spans, timeline.hosts, timeline.clocks)


def some_text(characters: int) -> str:
    """Words that are not all the same, always the same."""
    words = ("links", "carry", "gradients", "while", "stages", "compute", "layers", "wait", "for", "sums")
    count = characters // 4
    return " ".join(words[(number * number + number // 7) % len(words)] for number in range(count))


def read_computing(timeline: Timeline, micro_batches: int) -> Computing:
    """Of one step what each stage computed, on the slowest of its ranks: what comes after waits for that one."""
    of_rank: dict[tuple[int, int, Kind], float] = defaultdict(float)
    for span in timeline.spans:
        if span.action.kind.lane is Lane.COMPUTE:
            of_rank[span.rank, span.action.stage, span.action.kind] += _computed_s(span)
    slowest: dict[tuple[int, Kind], float] = {}
    for (_, stage, kind), seconds in of_rank.items():
        each_s = seconds / (1 if kind in _WHOLE_STEP else micro_batches)
        slowest[stage, kind] = max(slowest.get((stage, kind), 0.0), each_s)
    return slowest


def _computed_s(span: Span) -> float:
    parts = span.parts or (Part(COMPUTE, span.start_s, span.end_s),)
    return sum(part.end_s - part.start_s for part in parts if part.what == COMPUTE)
