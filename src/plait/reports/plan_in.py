"""The plan in a record, and the layout that its timelines are of."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from typing import NamedTuple

from plait.errors import PlanError
from plait.plans.file import PlanFile, plan_file_from_table
from plait.plans.layout import Layout, Stage
from plait.plans.training import TrainingPlan
from plait.timeline.record import RunRecord
from plait.timeline.timeline import Timeline


class Planned(NamedTuple):
    """The plan file of a record, None where it cannot be read or is of other ranks; the layout; what is wrong."""

    file: PlanFile | None
    layout: Layout
    missing: tuple[str, ...] = ()


def plan_in(record: RunRecord) -> Planned:
    """The record's plan; where it has none that fits, a layout of what is known of its stages."""
    timelines = [one for one in (record.predicted, record.measured) if one is not None and one.spans]
    if not record.plan.strip():
        return Planned(None, _layout(record, timelines))
    try:
        file = plan_file_from_table(tomllib.loads(record.plan), "the run's plan")
    except (PlanError, tomllib.TOMLDecodeError, RecursionError) as error:
        said = f"The run's plan cannot be read, so that stages and ranks are those of its timelines: {error}."
        return Planned(None, _layout(record, timelines), (said,))
    if _fits(file.plan.layout, timelines):
        return Planned(file, file.plan.layout)
    said = "The run's plan is of other stages or ranks than its timelines, which are shown by what they say themselves."
    return Planned(None, _layout(record, timelines), (said,))


def is_training(record: RunRecord, file: PlanFile | None) -> bool:
    """True where the record is of training, as its plan says, else its result."""
    return isinstance(file.plan, TrainingPlan) if file is not None else record.result.get("task") == "train"


def _fits(layout: Layout, timelines: Iterable[Timeline]) -> bool:
    """Every rank that computes a stage holds it."""
    held = [frozenset(stage.ranks) for stage in layout.stages]
    seen = {(span.action.stage, span.rank) for timeline in timelines for span in timeline.spans}
    return all(stage < len(held) and rank in held[stage] for stage, rank in seen)


def _layout(record: RunRecord, timelines: Iterable[Timeline]) -> Layout:
    """Stages as they were summed up, where the timelines agree; else as the timelines have them."""
    stages = [Stage(one.layers, one.ranks, one.dtype, one.weights or one.dtype) for one in record.stages]
    if not stages or not _fits(Layout({}, tuple(stages)), timelines):
        stages = _seen(timelines)
    positions = len(Layout({}, tuple(stages)).positions)
    each = len({rank for stage in stages for rank in stage.ranks}) // positions
    return Layout({"pp": positions, **({"dp": each} if each > 1 else {})}, tuple(stages))


def _seen(timelines: Iterable[Timeline]) -> list[Stage]:
    """Stages and ranks of the timelines; nothing is known of layers, so that each stage has one."""
    ranks: dict[int, set[int]] = {}
    for timeline in timelines:
        for span in timeline.spans:
            ranks.setdefault(span.action.stage, set()).add(span.rank)
    numbers = range(max(ranks, default=0) + 1)
    return [Stage((number, number + 1), tuple(sorted(ranks.get(number, {number})))) for number in numbers]
