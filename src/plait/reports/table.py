"""The figures of a run as lines of text: predicted, measured, and what lies between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rich.text import Text

from plait.reports.change import share_of_predicted
from plait.reports.figures import report_json
from plait.reports.picture import wrapped
from plait.timeline.record import RunRecord
from plait.timeline.timeline import Timeline
from plait.units import format_bytes, format_seconds

ABSENT = "-"
_ROUNDING = 1e-9
_NAMED = 8
"""More ranks than this are not named one by one."""

_NAME, _COLUMN, _DIFFERENCE = 20, 12, 22


class Figure(NamedTuple):
    """A line of the table: its key, its name, and how it and a difference of it are written.

    `seldom`: only where it is not 0.
    """

    key: str
    name: str
    value: Callable[[float], str]
    points: bool = False
    seldom: bool = False


def _rate(tokens_per_s: float) -> str:
    return f"{tokens_per_s:.0f}/s" if abs(tokens_per_s) >= 100 else f"{tokens_per_s:.3g}/s"


def _seconds(duration_s: float) -> str:
    """With three figures, rounded before the unit is chosen: never 1000 µs."""
    return format_seconds(float(f"{duration_s:.3g}"))


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"


STAGE = (
    Figure("compute_s", "compute", _seconds),
    Figure("transfer_s", "transfer", _seconds),
    Figure("exchange_s", "of it exchange", _seconds, seldom=True),
    Figure("wait_s", "wait", _seconds),
    Figure("bubble", "bubble", _percent, points=True),
    Figure("comm_bytes", "bytes sent", format_bytes),
)
WHOLE = (
    Figure("makespan_s", "duration", _seconds),
    Figure("step_s", "time of a step", _seconds),
    Figure("mfu", "MFU", _percent, points=True),
    Figure("ttft_s", "first token after", _seconds),
    Figure("time_per_token_s", "time per token", _seconds),
    Figure("prefill_tokens_per_s", "prefill tokens", _rate),
    Figure("decode_tokens_per_s", "decoded tokens", _rate),
    Figure("tokens_per_s", "tokens", _rate),
    *STAGE,
    Figure("residue_s", "residue", _seconds),
    Figure("peak_bytes", "peak memory", format_bytes),
)


def stage_table(record: RunRecord) -> Text:
    """Every stage: what it is and where its time went; then the whole run.

    The columns are predicted, measured, and their difference (`reports.change`); or the one that there is.
    """
    figures = report_json(record)
    timelines = [one for one in (record.predicted, record.measured) if one is not None]
    return figures_table(figures, whole_words(figures["task"], timelines))


def whole_words(task: str, timelines: Sequence[Timeline]) -> str:
    """What the figures at a table's end are of: of training only some steps have a timeline."""
    if task != "train":
        return "the whole run"
    steps = len({span.action.round for timeline in timelines for span in timeline.spans})
    return "the step shown" if steps <= 1 else f"the {steps} steps shown"


def figures_table(figures: Mapping[str, Any], whole: str, *, stages: bool = True) -> Text:
    """The same of figures as `report_json` has them; `whole` as of `whole_words`; without `stages` of that alone."""
    sources = [source for source in ("predicted", "measured") if figures[source] is not None]
    lines = [_heading(sources)]
    for stage in _stage_numbers(figures, sources) if stages else ():
        columns = [_of_stage(figures[source], stage) for source in sources]
        facts = _stage_facts(next(column for column in columns if column), ran=figures["measured"] is not None)
        lines += [_title(facts), *_lines(STAGE, columns)]
    lines += [_title(whole[0].upper() + whole[1:]), *_lines(WHOLE, [figures[source] for source in sources])]
    return Text("\n", no_wrap=True, overflow="ignore").join(lines)


def folded(table: Text, width: int) -> list[Text]:
    """The table's lines, a stage's facts in several where they are too long."""
    return [piece for line in table.split("\n") for piece in _folded(line, width)]


def _folded(line: Text, width: int) -> list[Text]:
    if len(line) <= width or not line.plain.startswith("Stage "):
        return [line]
    *facts, last = line.plain.split(", ")
    first, *rest = wrapped([*(f"{fact}," for fact in facts), last], " ", width - 2)
    return [Text(first.plain, "bold"), *(Text(f"  {each.plain}", "bold") for each in rest)]


def _heading(sources: Sequence[str]) -> Text:
    columns = "".join(f"{source:>{_COLUMN}}" for source in sources)
    return Text(" " * _NAME + columns + (f"{'difference':>{_DIFFERENCE}}" if len(sources) == 2 else ""), "dim")


def _title(text: str) -> Text:
    return Text(text, "bold")


def _stage_numbers(figures: Mapping[str, Any], sources: Sequence[str]) -> list[int]:
    return sorted({stage["stage"] for source in sources for stage in figures[source]["stages"]})


def _of_stage(figures: Mapping[str, Any], stage: int) -> Mapping[str, Any]:
    return next((one for one in figures["stages"] if one["stage"] == stage), {})


def _stage_facts(stage: Mapping[str, Any], *, ran: bool) -> str:
    """``Stage 1: layers 15 to 29, rank 1, float32, weights 270.0 MiB, process peak 512.0 MiB``.

    What was measured is the most that a process held in all its life; a plan has what its devices need.
    """
    if "layers" not in stage:
        return f"Stage {stage['stage']}"
    first, end = stage["layers"]
    facts = [f"layers {first} to {end - 1}" if end - first > 1 else f"layer {first}"]
    ranks = _ranks(stage["ranks"])
    facts += [f"rank{'s' if len(stage['ranks']) > 1 else ''} {ranks}", stage["dtype"]]
    weights = [] if stage["weights"] in ("", stage["dtype"]) else [stage["weights"]]
    weights += [] if stage["weight_bytes"] is None else [format_bytes(stage["weight_bytes"])]
    facts += [f"weights {' '.join(weights)}"] if weights else []
    peak = "process peak" if ran else "peak"
    facts += [] if stage["peak_bytes"] is None else [f"{peak} {format_bytes(stage['peak_bytes'])}"]
    return f"Stage {stage['stage']}: {', '.join(facts)}"


def _ranks(ranks: Sequence[int]) -> str:
    """Each, or of many the first and the last."""
    return ", ".join(map(str, ranks)) if len(ranks) <= _NAMED else f"{ranks[0]} to {ranks[-1]} ({len(ranks)})"


def _lines(wanted: Sequence[Figure], columns: Sequence[Mapping[str, Any]]) -> list[Text]:
    """A line for every figure that is known of one of the columns."""
    return [_one(figure, columns) for figure in wanted if any(_is_told(figure, column) for column in columns)]


def _is_told(figure: Figure, column: Mapping[str, Any]) -> bool:
    value = column.get(figure.key)
    return value is not None and not (figure.seldom and not value)


def _one(figure: Figure, columns: Sequence[Mapping[str, Any]]) -> Text:
    values = [column.get(figure.key) for column in columns]
    written = "".join(f"{ABSENT if value is None else figure.value(value):>{_COLUMN}}" for value in values)
    line = Text(f"  {figure.name:<{_NAME - 2}}{written}")
    if len(values) == 2:
        line.append(f"{_difference(figure, *values):>{_DIFFERENCE}}")
    return line


def _difference(figure: Figure, predicted: float | None, measured: float | None) -> str:
    """Measured - predicted, and as a share of the predicted: ``+28 ms (+3.4 %)``; a bubble's in points."""
    if predicted is None or measured is None:
        return ABSENT
    difference = measured - predicted
    if abs(difference) <= _ROUNDING * max(abs(measured), abs(predicted)):
        return "0"
    if figure.points:
        return f"{difference * 100:+.1f} points"
    written = ("+" if difference > 0 else "") + figure.value(difference)
    share = share_of_predicted(predicted, measured)
    return f"{written} ({share})" if share else written
