"""The figures of a run under the keys that Plait uses everywhere, read the same way off either timeline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from plait.reports.cells import exchanged_s
from plait.timeline.compare import compare, summarise
from plait.timeline.metrics import generation_metrics
from plait.timeline.record import RunRecord
from plait.timeline.timeline import Timeline

Figures = dict[str, Any]


def report_json(record: RunRecord) -> dict[str, Any]:
    """The run's figures, predicted and measured (None where there is no such timeline), and how far off they are.

    `off` holds predicted ÷ measured − 1 for each figure that both have; for `bubble`, predicted − measured.
    """
    predicted = figures(record, record.predicted, "predicted")
    measured = figures(record, record.measured, "measured")
    return {
        "model": dict(record.model),
        "stages": [_facts(record, stage.stage) for stage in record.stages],
        "predicted": predicted,
        "measured": measured,
        "off": None if predicted is None or measured is None else _off(record, predicted, measured),
    }


def figures(record: RunRecord, timeline: Timeline | None, source: str) -> Figures | None:
    """Of the whole run and per stage. What only the run itself knew (`result[source]`) stands beside it."""
    if timeline is None:
        return None
    summary = summarise(timeline)
    sent = {stage: round(size * record.result.get("copies", 1)) for stage, size in _sent_bytes(timeline).items()}
    exchanged = exchanged_by_stage(timeline)
    stages = [
        {
            **_facts(record, one.stage),
            **one.shares._asdict(),
            **({"exchange_s": exchanged[one.stage]} if exchanged.get(one.stage) else {}),
            "comm_bytes": sent.get(one.stage, 0),
        }
        for one in summary.stages
    ]
    known: Mapping[str, Any] = record.result.get(source) or {}
    whole = {**known, **summary.whole._asdict(), "comm_bytes": sum(sent.values()), "makespan_s": summary.makespan_s}
    return {**whole, **_speeds(record, timeline), "stages": stages}


def _speeds(record: RunRecord, timeline: Timeline) -> Figures:
    """Tokens and when they came, of the tokens that the requests kept; nothing where no rounds are recorded.

    Where `result` has "copies", so many times the timeline's requests are served at the same time, by all replicas.
    """
    if not record.rounds:
        return {}
    requests = record.result.get("requests")
    counts = None if requests is None else {number: len(one["tokens"]) for number, one in enumerate(requests)}
    metrics = generation_metrics(timeline, record.make_rounds(), counts)
    copies = record.result.get("copies", 1)
    scaled = {key: value * copies if key.endswith("tokens_per_s") else value for key, value in metrics.items()}
    return {key: value for key, value in scaled.items() if "token" in key or key == "ttft_s"}


def _facts(record: RunRecord, stage: int) -> Figures:
    """What is known of a stage whatever it did; only its number where the record has no more."""
    found = next((one for one in record.stages if one.stage == stage), None)
    if found is None:
        return {"stage": stage}
    facts = found._asdict()
    return {**facts, "ranks": list(found.ranks), "layers": list(found.layers)}


def _sent_bytes(timeline: Timeline) -> dict[int, int]:
    """What the ranks of each stage put on their links: messages, and what they exchange inside actions."""
    sent: dict[int, int] = defaultdict(int)
    for span in timeline.spans:
        sent[span.action.stage] += span.payload_bytes
    return dict(sent)


def exchanged_by_stage(timeline: Timeline) -> dict[int, float]:
    """Seconds of each stage's ranks, summed, in exchanges inside the stage: a part of its `transfer_s`."""
    found: dict[int, float] = defaultdict(float)
    for span in timeline.spans:
        found[span.action.stage] += exchanged_s(span)
    return dict(found)


def _off(record: RunRecord, predicted: Figures, measured: Figures) -> Figures:
    assert record.predicted is not None
    assert record.measured is not None
    off: Figures = {
        key: predicted[key] / measured[key] - 1
        for key in predicted
        if key != "bubble" and _is_number(predicted[key]) and _is_number(measured.get(key)) and measured[key]
    }
    both = compare(record.predicted, record.measured)
    off["bubble"] = predicted["bubble"] - measured["bubble"]
    off["only_predicted"], off["only_measured"] = len(both.only_predicted), len(both.only_measured)
    return off


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
