"""A run on one page of a terminal: the table, the picture, and a few plain sentences. And rounds' actions as text."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from plait.plans.notation import format_actions
from plait.plans.round import Round
from plait.reports.change import CONVENTION
from plait.reports.figures import report_json
from plait.reports.marks import ASCII, Glyphs, glyphs_for
from plait.reports.picture import picture, wrapped
from plait.reports.table import folded, stage_table
from plait.reports.window import RoundRange, count_prefill, parse_rounds
from plait.reports.words import sentences
from plait.timeline.record import RunRecord

__all__ = ["RoundRange", "actions_text", "parse_rounds", "picture", "report", "report_json", "stage_table"]


def report(record: RunRecord, console: Console, rounds: RoundRange | None = None) -> None:
    """Print the whole page, as wide as the console; in ASCII where its encoding can no more. Errors: UsageError."""
    glyphs = glyphs_for(console.encoding)
    has_spans = any(timeline is not None and timeline.spans for timeline in (record.predicted, record.measured))
    parts = [_table(record, console.width)] if has_spans else []
    if has_spans or rounds is not None:
        prefill = count_prefill(record.rounds) if record.rounds else 1
        parts.append(
            picture(record.predicted, record.measured, console.width, rounds=rounds, prefill=prefill, glyphs=glyphs)
        )
    said = sentences(record.predicted, record.measured)
    parts += [Text("\n").join(wrapped(sentence.split(), " ", console.width)) for sentence in said]
    for index, part in enumerate(parts):
        if index in (1, 2):
            console.print()
        console.print(_writable(part, glyphs), soft_wrap=True, highlight=False)


def _table(record: RunRecord, width: int) -> Text:
    """The table, and what its differences are."""
    lines = folded(stage_table(record), width)
    if all(timeline is not None and timeline.spans for timeline in (record.predicted, record.measured)):
        lines += wrapped(CONVENTION.split(), " ", width)
    return Text("\n", no_wrap=True, overflow="ignore").join(lines)


def _writable(text: Text, glyphs: Glyphs) -> Text:
    """The text in ASCII where the glyphs are; what that lacks becomes a question mark, never an error."""
    if glyphs is ASCII:
        text.plain = text.plain.replace("µ", "u").encode("ascii", "replace").decode("ascii")
    return text


def actions_text(rounds: Iterable[Round]) -> str:
    """Every round's work and actions in the notation, one line a position.

    round 4: micro-batches of 64 and 1 positions, 1 token sampled
      0: 3RT0 0F0 0SF0 0F1 0SF1
      1: 1RF0 1F0 1RF1 1F1 1ST1
    """
    return "\n".join(line for one in rounds for line in (_work(one), *_positions(one)))


def _work(one: Round) -> str:
    if not one.work:
        return f"round {one.number}: no work"
    tokens = sum(micro_batch.sampled for micro_batch in one.work)
    lengths = " and ".join(str(micro_batch.tokens) for micro_batch in one.work)
    micro_batches = "micro-batches" if len(one.work) > 1 else "micro-batch"
    return (
        f"round {one.number}: {micro_batches} of {lengths} position{'' if lengths == '1' else 's'}, "
        f"{tokens} token{'' if tokens == 1 else 's'} sampled"
    )


def _positions(one: Round) -> list[str]:
    return [
        f"  {position}: {format_actions(actions, one.number)}".rstrip() for position, actions in enumerate(one.actions)
    ]
