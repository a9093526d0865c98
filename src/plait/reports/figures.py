"""The figures of a run under the keys that Plait uses everywhere, read the same way off either timeline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from plait.plans.action import Kind
from plait.plans.round import Row
from plait.timeline.compare import Shares, compare, summarise
from plait.timeline.record import RoundRecipe, RunRecord
from plait.timeline.timeline import Timeline

Figures = dict[str, Any]


class Forward(NamedTuple):
    """A row that the last stage has finished. `prefill`: it belongs to a prompt, up to the row of its first token."""

    end_s: float
    row: Row
    prefill: bool


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
    sent = _sent_bytes(timeline)
    speeds = _speeds(list(_forwards(timeline, record.rounds)), summary.start_s, summary.makespan_s)
    stages = [
        {**_facts(record, one.stage), **one.shares._asdict(), "comm_bytes": sent.get(one.stage, 0)}
        for one in summary.stages
    ]
    whole = {**summary.whole._asdict(), "comm_bytes": sum(sent.values()), "makespan_s": summary.makespan_s}
    known: Mapping[str, Any] = record.result.get(source) or {}
    return {**known, **speeds, **whole, "stages": stages}


def _facts(record: RunRecord, stage: int) -> Figures:
    """What is known of a stage whatever it did; only its number where the record has no more."""
    found = next((one for one in record.stages if one.stage == stage), None)
    if found is None:
        return {"stage": stage}
    facts = found._asdict()
    return {**facts, "ranks": list(found.ranks), "layers": list(found.layers)}


def _sent_bytes(timeline: Timeline) -> dict[int, int]:
    """What each stage put on its links."""
    sent: dict[int, int] = defaultdict(int)
    for span in timeline.spans:
        if span.action.kind.sends:
            sent[span.action.stage] += span.payload_bytes
    return dict(sent)


def _forwards(timeline: Timeline, rounds: Sequence[RoundRecipe]) -> Iterator[Forward]:
    """Every row of the run, in the order in which the rounds hold them; those that no span tells of are left out."""
    last = max((span.action.stage for span in timeline.spans), default=0)
    ends = {
        (span.action.round, span.action.micro_batch): span.end_s
        for span in timeline.spans
        if span.action.kind is Kind.FORWARD and span.action.stage == last
    }
    begun: set[int] = set()
    for recipe in rounds:
        for index, micro_batch in enumerate(recipe.work):
            for row in micro_batch.rows:
                prefill = row.request not in begun
                if row.samples:
                    begun.add(row.request)
                if (recipe.number, index) in ends:
                    yield Forward(ends[recipe.number, index], row, prefill)


def _speeds(forwards: Sequence[Forward], start_s: float, makespan_s: float) -> Figures:
    """Tokens and when they came; a figure that the run is too short for is left out.

    `ttft_s` is from the run's beginning to its first token. `prefill_tokens_per_s` counts the prompts' positions, up to
    the end of the last prompt; `decode_tokens_per_s` the tokens, all users together, from that moment on.
    `time_per_token_s` is the mean gap between two tokens of one request.
    """
    tokens = [one for one in forwards if one.row.samples]
    if not tokens or makespan_s <= 0:
        return {}
    prompt = [one for one in forwards if one.prefill]
    prompt_end_s = max((one.end_s for one in prompt), default=start_s)
    decoded = [one for one in tokens if one.end_s > prompt_end_s]
    speeds = {"ttft_s": min(one.end_s for one in tokens) - start_s, "tokens_per_s": len(tokens) / makespan_s}
    if prompt_end_s > start_s:
        speeds["prefill_tokens_per_s"] = sum(one.row.length for one in prompt) / (prompt_end_s - start_s)
    if decoded:
        speeds["decode_tokens_per_s"] = len(decoded) / (max(one.end_s for one in decoded) - prompt_end_s)
    gaps = _gaps(tokens)
    if gaps:
        speeds["time_per_token_s"] = sum(gaps) / len(gaps)
    return speeds


def _gaps(tokens: Sequence[Forward]) -> list[float]:
    moments: dict[int, list[float]] = defaultdict(list)
    for one in tokens:
        moments[one.row.request].append(one.end_s)
    return [after - before for of_request in moments.values() for before, after in pairwise(of_request)]


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


SHARE_KEYS = Shares._fields
"""The figures that every stage has."""
