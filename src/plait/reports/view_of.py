"""From a run's record to the view that everything draws from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from plait.plans.collection import no_collection
from plait.plans.file import PlanFile
from plait.plans.layout import Layout
from plait.plans.training import TrainingPlan
from plait.reports.differences import stage_lines
from plait.reports.figures import report_json
from plait.reports.links import link_lines
from plait.reports.moments import make_moments
from plait.reports.plan_in import is_training, plan_in
from plait.reports.stands import stood_for
from plait.reports.view import Lost, Row, View
from plait.timeline.causes import find_causes
from plait.timeline.record import RunRecord
from plait.timeline.timeline import Timeline
from plait.units import format_seconds


class Why(NamedTuple):
    """Why the plan is as it is: what speaks for it, what else was looked at, and what could not be told."""

    reasons: tuple[str, ...] = ()
    lost: tuple[Lost, ...] = ()
    missing: tuple[str, ...] = ()


def make_view(record: RunRecord, missing: Sequence[str] = (), why: Why | None = None) -> View:
    """All that a report of the run is drawn from, also where the record is not whole.

    `missing`: what it lacks, as the reader of its files says it. `why`: what a search for a better plan found; without
    it the plan's own reason is told.
    """
    with no_collection():
        return _view(record, missing, why)


def _view(record: RunRecord, missing: Sequence[str], why: Why | None) -> View:
    file, layout, damage = plan_in(record)
    why = why or Why(own_reason(file))
    predicted, measured = _with_spans(record.predicted), _with_spans(record.measured)
    rows = _rows(layout, [one for one in (predicted, measured) if one is not None])
    figures = report_json(record)
    return View(
        title=_title(record, file, layout),
        task="train" if is_training(record, file) else "generate",
        facts=tuple(_facts(record, file, layout, rows)),
        layout=layout,
        rows=rows,
        predicted=predicted,
        measured=measured,
        causes={one.source: find_causes(one, layout) for one in (predicted, measured) if one is not None},
        stages=stage_lines(layout, predicted, measured),
        links=link_lines(layout, predicted, measured, _fullness(record)),
        figures=figures,
        plan=record.plan,
        reasons=why.reasons,
        lost=why.lost,
        missing=(*missing, *damage, *_absent(record, missing), *_unequal(figures), *why.missing),
        # without a plan a layout says nothing of layers
        moments=None if file is None else make_moments(layout, record.model, record.rounds, predicted),
    )


def _with_spans(timeline: Timeline | None) -> Timeline | None:
    return timeline if timeline is not None and timeline.spans else None


def _absent(record: RunRecord, known: Sequence[str]) -> Iterator[str]:
    """What a whole run would have, where nothing was said of it yet."""
    timelines = {"measured": record.measured, "predicted": record.predicted}
    absent = [source for source, timeline in timelines.items() if _with_spans(timeline) is None]
    untold = [source for source in absent if not any(source in each for each in known)]
    if len(absent) == len(timelines):
        if untold:
            yield f"Nothing was {' or '.join(untold)}: there are no figures."
        return
    note = record.result.get("note")
    for source in untold:
        other = "predicted" if source == "measured" else "measured"
        because = f" ({note})" if note and source == "predicted" else ""
        yield f"Nothing was {source}: all figures are {other}{because}."


def _unequal(figures: Mapping[str, Any]) -> Iterator[str]:
    """That one timeline has more actions than the other: then what differs is not only what took longer."""
    off = figures["off"] or {}
    for one, other in (("predicted", "measured"), ("measured", "predicted")):
        count = off.get(f"only_{one}", 0)
        if count:
            were = f"{count:,} actions were" if count > 1 else "1 action was"
            yield f"{were} {one} but not {other}: times and bytes that are compared are not of the same actions."


def _fullness(record: RunRecord) -> float:
    """How much each replica that is not shown does, beside the one that is (`generation.forecast`)."""
    replicas = (record.result.get("predicted") or {}).get("replicas", 1)
    copies = record.result.get("copies", replicas)
    return (copies - 1) / (replicas - 1) if replicas > 1 else 1.0


def own_reason(file: PlanFile | None) -> tuple[str, ...]:
    """What the plan itself says."""
    if file is None:
        return ()
    return (file.plan.reason or "The split was asked for: nothing was searched.",)


# --- the rows that are drawn ---------------------------------------------------------------------------------------


def _rows(layout: Layout, timelines: Sequence[Timeline]) -> tuple[Row, ...]:
    """A row for every rank of the timelines, position by position; of a plan alone one for each position."""
    hosts: dict[int, str] = {}
    for timeline in timelines:
        hosts |= timeline.hosts
    shown = {rank for timeline in timelines for rank in timeline.ranks}
    shown = shown or {layout.stages[stages[0]].ranks[0] for stages in layout.positions}
    stands = stood_for(layout, shown)
    rows = []
    for position, stages in enumerate(layout.positions):
        ranks = [rank for rank in layout.stages[stages[0]].ranks if rank in shown]
        for rank in ranks:
            label = _label(position, stages, rank, len(ranks), stands[rank])
            host, device = _place(layout, stages[0], rank, hosts)
            rows.append(Row(rank, label, position, stages, stands[rank], host, device))
    return tuple(rows)


def _label(position: int, stages: tuple[int, ...], rank: int, shown: int, stands: tuple[int, ...]) -> str:
    """``stage 3``; with its rank where several are shown, or the ranks that it stands for."""
    named = ", ".join(map(str, stages)) if len(stages) <= 4 else f"{stages[0]}, {stages[1]} … {stages[-1]}"
    label = f"stage{'s' if len(stages) > 1 else ''} {named}"
    if len(stands) > 1:
        whole = stands == tuple(range(stands[0], stands[-1] + 1))
        return (
            f"{label}, ranks {stands[0]} to {stands[-1]}"
            if whole
            else f"{label}, rank {rank} and {len(stands) - 1} more"
        )
    return f"{label} rank {rank}" if shown > 1 or position != rank or len(stages) > 1 else label


def _place(layout: Layout, stage: int, rank: int, hosts: Mapping[int, str]) -> tuple[str, str]:
    """Host and device of a rank."""
    where = layout.stages[stage]
    place = where.ranks.index(rank)
    return hosts.get(rank, where.host), where.devices[place] if place < len(where.devices) else where.device


# --- words --------------------------------------------------------------------------------------------------------


def _title(record: RunRecord, file: PlanFile | None, layout: Layout) -> str:
    """``demo: pp 2, pipelined, 2 micro-batches``."""
    name = str(record.model.get("name") or (file.plan.model if file is not None else "a model"))
    axes = " × ".join(f"{axis} {size}" for axis, size in layout.axes.items() if size > 1) or "one device"
    if file is None:
        return f"{name}: {axes}"
    count = file.plan.micro_batches
    return f"{name}: {axes}, {file.plan.schedule}, {count} micro-batch{'es' if count != 1 else ''}"


def _facts(record: RunRecord, file: PlanFile | None, layout: Layout, rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """What the run was, in words; figures stand elsewhere."""
    yield "task", "training" if is_training(record, file) else "generation"
    if file is not None:
        yield "model", file.plan.model
        yield from _of_plan(file)
    yield "ranks", f"{layout.ranks} on {_counted(_hosts(layout, file, rows), 'host')}"
    yield "dtype", "/".join(sorted({stage.dtype for stage in layout.stages}))
    yield from _of_result(record.result)
    held = max(map(len, layout.positions))
    if held > 1:
        yield "stages", f"a rank holds {held}: what it computes for one is wait and bubble of the others"
    stands = max((len(row.ranks) for row in rows), default=1)
    if stands > 1:
        yield "shown", f"each row is one rank, which stands for {stands}: seconds are its own, bytes those of all"
    for timeline in filter(None, (record.predicted, record.measured)):
        for host, clock in sorted(timeline.clocks.items()):
            if clock.error_s > 0:
                yield "clock", f"host {host} is placed within ± {format_seconds(clock.error_s)}"
    if record.result.get("note"):
        yield "figures", str(record.result["note"])


def _hosts(layout: Layout, file: PlanFile | None, rows: Sequence[Row]) -> set[str]:
    """Where all ranks are: of a plan on a cluster also those that have no row."""
    devices = {name for stage in layout.stages for name in stage.devices}
    if file is None or file.cluster is None or not devices:
        return {row.host for row in rows}
    return {file.cluster.device(name).host for name in devices}


def _of_plan(file: PlanFile) -> Iterator[tuple[str, str]]:
    plan = file.plan
    yield "split", " × ".join(f"{axis} {size}" for axis, size in plan.layout.axes.items() if size > 1) or "one device"
    if not isinstance(plan, TrainingPlan):
        yield "schedule", f"{plan.schedule}, micro-batches {plan.micro_batches}, chunks of {plan.chunk} positions"
        yield "context", f"{plan.context} positions, {plan.slots} request{'s' if plan.slots != 1 else ''} in flight"
    else:
        setup = plan.setup
        yield "schedule", f"{plan.schedule}, {setup.micro_batches} micro-batches of {setup.micro_batch}"
        yield "batch", f"{plan.batch} sequences of {plan.sequence} tokens"
        more = [f"{setup.virtual} stages a position"] if setup.virtual > 1 else []
        more += [] if setup.recompute == "none" else [f"{setup.recompute} recompute"]
        more += [f"ZeRO-{setup.zero}"] if setup.zero else []
        more += ["sequence split"] if setup.sequence_split else []
        if more:
            yield "memory", ", ".join(more)
    if file.cluster is not None:
        yield "cluster", _counted(file.cluster.devices, "device")


def _of_result(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    job, requests = result.get("job"), result.get("requests")
    if isinstance(job, Mapping):
        users = _counted(range(job["users"]), "request")
        yield "job", f"{users} of {job['prompt_tokens']} tokens, answers of {job['max_tokens']}"
    if requests:
        lengths = [len(one["tokens"]) for one in requests]
        prompts = [one["prompt_tokens"] for one in requests]
        yield "requests", f"{len(requests)}: prompts of {_range(prompts)} tokens, answers of {_range(lengths)}"
    if result.get("steps"):
        kept = result.get("kept_steps") or []
        shown = f"steps {', '.join(map(str, kept))}" if kept else "none"
        yield "steps", f"{len(result['steps'])}; with a timeline: {shown}"


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low} to {high}"


def _counted(things: Any, name: str) -> str:
    count = len(things)
    return f"{count} {name}{'s' if count != 1 else ''}"
