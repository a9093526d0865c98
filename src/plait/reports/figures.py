"""The figures of a run under the keys that Plait uses everywhere, read the same way off either timeline.

Of generation seconds are sums over all ranks and the whole run. Of training they are of a rank in one step, the mean
over both, and bytes are of all ranks in one step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

from plait.plans.layout import Layout
from plait.reports.cells import exchanged_s
from plait.reports.plan_in import is_training, plan_in
from plait.reports.stands import stood_for
from plait.timeline.compare import compare, summarise
from plait.timeline.metrics import PHASES, generation_metrics
from plait.timeline.record import RunRecord
from plait.timeline.timeline import Timeline
from plait.timeline.training_metrics import training_metrics

Figures = dict[str, Any]

_SECONDS = ("compute_s", "transfer_s", "wait_s")
_SPEEDS = ("tokens_per_s", *PHASES)


class _Of(NamedTuple):
    """What a record's figures are of. `layout` None: of generation, all together."""

    layout: Layout | None
    steps: int = 1


def report_json(record: RunRecord) -> dict[str, Any]:
    """The run's figures, predicted and measured (None where there is no such timeline), and how far off they are.

    `off` holds predicted ÷ measured − 1 for each figure that both can have, None where one is not known or nothing was
    measured; for `bubble`, predicted − measured. A training run's `steps` are those that it went through, as they were
    told. What a run's figures are called depends on its task alone, not on what happened in it.
    """
    of = _what(record)
    predicted = _figures(record, record.predicted, "predicted", of)
    measured = _figures(record, record.measured, "measured", of)
    return {
        "model": dict(record.model),
        "task": "generate" if of.layout is None else "train",
        "stages": [_facts(record, stage.stage) for stage in record.stages],
        "predicted": predicted,
        "measured": measured,
        "off": None if predicted is None or measured is None else _off(record, predicted, measured),
        **({} if of.layout is None else {"steps": list(record.result.get("steps") or ())}),
    }


def _what(record: RunRecord) -> _Of:
    if record.result.get("task") != "train" and 'task = "train"' not in record.plan:
        return _Of(None)  # a plan file is read only where it matters
    file, layout, _ = plan_in(record)
    if not is_training(record, file):
        return _Of(None)
    return _Of(layout, max(1, len(record.result.get("kept_steps") or ())))


def _figures(record: RunRecord, timeline: Timeline | None, source: str, of: _Of) -> Figures | None:
    """Of the whole run and per stage. What only the run itself knew (`result[source]`) stands beside it."""
    if timeline is None:
        return None
    summary = summarise(timeline)
    sent = _sent_bytes(record, timeline, of)
    exchanged = exchanged_by_stage(timeline)
    stages = []
    for one in summary.stages:
        each = 1 if of.layout is None else len(one.ranks) * of.steps
        shares = one.shares._asdict() | {key: getattr(one.shares, key) / each for key in _SECONDS}
        inside = {"exchange_s": exchanged.get(one.stage, 0.0) / each}
        sizes = {"comm_bytes": round(sent.get(one.stage, 0))}
        stages.append({**_facts(record, one.stage), **shares, **inside, **sizes})
    known: Mapping[str, Any] = record.result.get(source) or {}
    whole = {**summary.whole._asdict(), "comm_bytes": round(sum(sent.values())), "makespan_s": summary.makespan_s}
    if of.layout is not None:
        return {**whole, **_of_training(record, timeline, source, of.layout, of.steps), **known, "stages": stages}
    absent = dict.fromkeys(key for key in _SPEEDS if key not in known)
    return {**known, **whole, **absent, **_speeds(record, timeline), "stages": stages}


def _of_training(record: RunRecord, timeline: Timeline, source: str, layout: Layout, steps: int) -> Figures:
    """A step's figures; tokens a second and MFU of the steps that the timeline holds, where the run knew them."""
    metrics = training_metrics(timeline, layout, steps=steps)
    found: Figures = {key: metrics[key] for key in ("step_s", "bubble")}
    found |= {key: metrics[key] / (layout.ranks * steps) for key in _SECONDS}
    found["comm_bytes"] = round(metrics["comm_bytes"] / steps)
    kept = set(record.result.get("kept_steps") or ())
    lines = [line for line in record.result.get("steps") or () if line["step"] in kept]
    told = [line if source == "measured" else line.get("predicted") or {} for line in lines]
    for key in ("tokens_per_s", "mfu"):
        # both are a constant ÷ the time of a step, which a step's line and its timeline take at different ends
        rates = [one[key] * one["step_s"] for one in told if one.get(key) is not None and one.get("step_s") is not None]
        found[key] = sum(rates) / len(rates) / found["step_s"] if rates and found["step_s"] > 0 else None
    peaks = [one.peak_bytes for one in record.stages if one.peak_bytes is not None]
    if source == "measured":
        found["peak_bytes"] = max(peaks, default=None)
    return found


def _speeds(record: RunRecord, timeline: Timeline) -> Figures:
    """Tokens and when they came, of the tokens that the requests kept; nothing where no rounds are recorded.

    Where `result` has "copies", so many times the timeline's requests are served at the same time, by all replicas.
    """
    if not record.rounds or not record.stages:
        return {}
    requests = record.result.get("requests")
    counts = None if requests is None else {number: len(one["tokens"]) for number, one in enumerate(requests)}
    metrics = generation_metrics(timeline, record.make_rounds(), counts)
    copies = record.result.get("copies", 1)
    scaled = {key: value * copies if key.endswith("tokens_per_s") else value for key, value in metrics.items()}
    return {key: scaled[key] for key in _SPEEDS if key in scaled}


def _facts(record: RunRecord, stage: int) -> Figures:
    """What is known of a stage whatever it did; only its number where the record has no more."""
    found = next((one for one in record.stages if one.stage == stage), None)
    if found is None:
        return {"stage": stage}
    facts = found._asdict()
    return {**facts, "ranks": list(found.ranks), "layers": list(found.layers)}


def _sent_bytes(record: RunRecord, timeline: Timeline, of: _Of) -> dict[int, float]:
    """What the ranks of each stage put on their links: messages, and what they exchange inside actions."""
    sent: dict[int, int] = defaultdict(int)
    stands = (
        {} if of.layout is None else {rank: len(each) for rank, each in stood_for(of.layout, timeline.ranks).items()}
    )
    for span in timeline.spans:
        sent[span.action.stage] += span.payload_bytes * stands.get(span.rank, 1)
    copies = record.result.get("copies", 1) / of.steps
    return {stage: size * copies for stage, size in sent.items()}


def exchanged_by_stage(timeline: Timeline) -> dict[int, float]:
    """Seconds of each stage's ranks, summed, in exchanges inside its actions: a part of its `transfer_s`."""
    found: dict[int, float] = defaultdict(float)
    for span in timeline.spans:
        found[span.action.stage] += exchanged_s(span)
    return dict(found)


def _off(record: RunRecord, predicted: Figures, measured: Figures) -> Figures:
    assert record.predicted is not None
    assert record.measured is not None
    off: Figures = {
        key: _share_off(predicted[key], measured[key])
        for key in predicted
        if key in measured and key not in ("bubble", "stages")
    }
    both = compare(record.predicted, record.measured)
    off["bubble"] = predicted["bubble"] - measured["bubble"]
    off["only_predicted"], off["only_measured"] = len(both.only_predicted), len(both.only_measured)
    return off


def _share_off(predicted: Any, measured: Any) -> float | None:
    return predicted / measured - 1 if _is_number(predicted) and _is_number(measured) and measured else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
