"""A view as text in 80 columns: all that the page shows, for a terminal without colour too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.text import Text

from plait.reports.change import CONVENTION
from plait.reports.marks import ASCII, Glyphs, glyphs_for
from plait.reports.memory_words import memory_words
from plait.reports.path import Path, path_of, path_words
from plait.reports.picture import picture, wrapped
from plait.reports.stage_rows import MOST_STAGES, compact_table
from plait.reports.table import figures_table, folded, whole_words
from plait.reports.view import LinkLine, LinkUse, StageLine, View
from plait.reports.window import RoundRange
from plait.reports.words import sentences
from plait.timeline.timeline import MemoryTrack, Timeline
from plait.units import format_bytes, format_seconds

_MOST = 16
"""Lines of links, of rows and of memory; --json and the page have all."""

_SOURCES = 4


def print_view(view: View, console: Console, rounds: RoundRange | None = None, prefill: int = 1) -> None:
    """Print every section in which there is something to say, as wide as the console. Errors: UsageError: no rounds.

    `prefill`: rounds before the first that yields tokens, which the picture begins with.
    """
    width, glyphs = console.width, glyphs_for(console.encoding)
    parts = [
        *_head(view, width),
        _figures(view, width),
        _picture(view, width, rounds, prefill, glyphs),
        *_said(view, width),
        _differences(view.stages, width),
        _links(view.links),
        _memory(view, width),
        *(_path(path_of(view, timeline), width) for timeline in view.timelines),
        _plan(view, width),
        _missing(view, width),
    ]
    for index, part in enumerate(part for part in parts if part):
        if index:
            console.print()
        console.print(_writable(part, console.encoding, glyphs), soft_wrap=True, highlight=False)


_ASCII_WORDS = {"µ": "u", "×": "x", "→": "->", "−": "-", "–": "-", "±": "+-", "…": "...", "·": "-", "≥": ">="}


def _writable(text: Text, encoding: str, glyphs: Glyphs) -> Text:
    """The text in ASCII where the encoding cannot write it; what that lacks becomes a question mark, never an error."""
    try:
        text.plain.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        glyphs = ASCII
    if glyphs is ASCII:
        plain = text.plain
        for character, word in _ASCII_WORDS.items():
            plain = plain.replace(character, word)
        text.plain = plain.encode("ascii", "replace").decode("ascii")
    return text


def _lines(lines: Iterable[Text | str]) -> Text:
    return Text("\n", no_wrap=True, overflow="ignore").join(
        line if isinstance(line, Text) else Text(line) for line in lines
    )


def _hung(head: str, words: str, width: int) -> Iterator[Text]:
    """`head`, then the words, further lines of them under the first."""
    for number, line in enumerate(wrapped(words.split(), " ", max(20, width - len(head)))):
        yield Text(head if number == 0 else " " * len(head)).append_text(line)


def _head(view: View, width: int) -> Iterator[Text]:
    lines: list[Text] = [*(Text(line.plain, "bold") for line in wrapped(view.title.split(), " ", width))]
    for name, words in view.facts:
        lines += _hung(f"  {name:<10}", words, width)
    yield _lines(lines)


def _figures(view: View, width: int) -> Text:
    """What the figures are of, in a sentence or two, then the table."""
    if not view.timelines:
        return Text()
    both = view.predicted is not None and view.measured is not None
    said = " ".join([*(_OF_A_STEP if view.task == "train" else ()), *((CONVENTION,) if both else ())])
    note = wrapped(said.split(), " ", width) if said else []
    whole = whole_words(view.task, view.timelines)
    if len(view.layout.stages) > MOST_STAGES:
        return _lines([*note, compact_table(view.figures), Text(), figures_table(view.figures, whole, stages=False)])
    return _lines([*note, *folded(figures_table(view.figures, whole), width)])


_OF_A_STEP = (
    "Seconds are of one rank in one step, bytes of all ranks in one step.",
    "A stage's transfer is all of it, that of the whole only what no computing hides.",
)


def _picture(view: View, width: int, rounds: RoundRange | None, prefill: int, glyphs: Glyphs) -> Text:
    if not view.timelines and rounds is None:
        return Text()
    shown = {row.rank for row in view.rows[:_MOST]}
    some = [_of_ranks(timeline, shown) for timeline in (view.predicted, view.measured)]
    drawn = picture(some[0], some[1], width, rounds=rounds, prefill=prefill, glyphs=glyphs)
    rest = len(view.rows) - len(shown)
    return _lines([drawn, f"and {rest} rows more (the page of -o report.html has all)"]) if rest > 0 else drawn


def _of_ranks(timeline: Timeline | None, ranks: set[int]) -> Timeline | None:
    if timeline is None:
        return None
    spans = tuple(span for span in timeline.spans if span.rank in ranks)
    return Timeline(timeline.source, spans, timeline.hosts) if spans else None


def _said(view: View, width: int) -> Iterator[Text]:
    if view.timelines:
        said = [*sentences(view.predicted, view.measured), *_residue(view)]
        yield _lines(line for sentence in said for line in wrapped(sentence.split(), " ", width))


def _residue(view: View) -> Iterator[str]:
    """That a predicted step is longer than its timeline, of which the shares in sentences and pictures are."""
    predicted = view.figures.get("predicted") or {}
    longer_s = predicted.get("step_s", 0.0) - predicted.get("makespan_s", 0.0)
    if view.measured is None and predicted.get("residue_s") and longer_s > 0:
        yield (
            f"These shares are of the timeline; the bubble of {predicted['bubble'] * 100:.1f} % is of the time of a "
            f"step, {format_seconds(longer_s)} longer (residue, and what a step takes beside its actions)."
        )


def _differences(stages: Sequence[StageLine], width: int) -> Text:
    """Of each stage the whole difference, and what it is made of."""
    told = [one for one in stages if one.sources]
    if not told:
        return Text()
    lines = [Text("Where the difference comes from", "bold")]
    lines.append(Text("seconds of all ranks of a stage", "dim"))
    for one in told[:_MOST]:
        whole_s = sum(source.measured_s - source.predicted_s for source in one.sources)
        pieces = []
        for source in one.sources[:_SOURCES]:
            counted = f" in {source.actions} action{'s' if source.actions != 1 else ''}" if source.actions else ""
            pieces.append(f"{source.what} {_signed(source.measured_s - source.predicted_s)}{counted}")
        rest = one.sources[_SOURCES:]
        if rest:
            pieces.append(f"other {_signed(sum(each.measured_s - each.predicted_s for each in rest))}")
        lines += _hung(f"  stage {one.stage:<3}{_signed(whole_s):>10}  ", ", ".join(pieces), width)
    return _lines([*lines, *_rest(len(told) - _MOST, "stages")])


def _links(links: Sequence[LinkLine]) -> Text:
    if not links:
        return Text()
    sources = [name for name in ("predicted", "measured") if any(getattr(one, name) for one in links)]
    wide = min(34, max(len(one.name) for one in links))
    lines = [Text("Links: bytes, and the share of the time in which they are busy", "bold")]
    lines.append(Text(" " * (wide + 2) + "".join(f"{source:>20}" for source in sources), "dim"))
    for one in links[:_MOST]:
        cells = "".join(f"{_use(getattr(one, source)):>20}" for source in sources)
        lines.append(Text(f"  {one.name[:wide]:<{wide}}{cells}"))
    return _lines([*lines, *_rest(len(links) - _MOST, "links")])


def _use(use: LinkUse | None) -> str:
    if use is None:
        return "-"
    share = use.busy_share * 100
    return f"{format_bytes(use.sent_bytes)} {f'{share:.1f}' if share >= 0.05 or not share else '<0.1':>6} %"


def _memory(view: View, width: int) -> Text:
    """The highest point of each rank, beside what its device has."""
    ranks = sorted({row.rank for row in view.rows if any(row.rank in one.memory for one in view.timelines)})
    if not ranks:
        return Text()
    lines = [Text("Memory: the highest point of each rank", "bold")]
    sources = [one.source for one in view.timelines if one.memory]
    lines.append(Text(" " * 12 + "".join(f"{source:>14}" for source in sources) + f"{'limit':>14}", "dim"))
    for rank in ranks[:_MOST]:
        tracks = {one.source: one.memory[rank] for one in view.timelines if rank in one.memory}
        cells = "".join(f"{_peak(tracks.get(source)):>14}" for source in sources)
        limits = [track.limit_bytes for track in tracks.values() if track.limit_bytes is not None]
        limit = format_bytes(min(limits)) if limits else "-"
        lines.append(Text(f"  {f'rank {rank}':<10}{cells}{limit:>14}"))
    lines += _rest(len(ranks) - _MOST, "ranks")
    for sentence in memory_words(view):
        lines += (Text(f"  {line.plain}", "dim") for line in wrapped(sentence.split(), " ", width - 2))
    return _lines(lines)


def _peak(track: MemoryTrack | None) -> str:
    if track is None or not track.used_bytes:
        return "-"
    return format_bytes(max(0, max(track.used_bytes) - track.base_bytes))


def _path(path: Path, width: int) -> Text:
    """What the run's length hangs on."""
    words = path_words(path)
    if words is None:
        return Text()
    lines = [Text(line.plain, "bold") for line in wrapped(words.title.split(), " ", width)]
    lines += _hung("  made of  ", words.made_of, width)
    lines += _hung("  longest  ", words.longest, width)
    return _lines(lines)


def _plan(view: View, width: int) -> Text:
    """Why it is so, and why others lost."""
    lines: list[Text] = []
    if view.reasons:
        lines.append(Text("Why this plan", "bold"))
        lines += [line for reason in view.reasons for line in _hung("  - ", reason, width)]
    if view.lost:
        lines += [Text(), Text("Why others lost", "bold")] if lines else [Text("Why others lost", "bold")]
        for one in view.lost:
            lines.append(Text(f"  {one.kind}: {one.figure}"[:width]))
            lines += _hung("      ", one.loses, width) if one.loses else []
    return _lines(lines)


def _missing(view: View, width: int) -> Text:
    if not view.missing:
        return Text()
    lines = [line for each in view.missing for line in _hung("  - ", each, width)]
    return _lines([Text("What is missing", "bold"), *lines])


def _rest(count: int, what: str) -> list[Text]:
    return [Text(f"  and {count} {what} more (--json has all)", "dim")] if count > 0 else []


def _signed(seconds: float) -> str:
    written = format_seconds(abs(seconds))
    return "0" if written in ("0 µs", "0 s") else ("+" if seconds > 0 else "-") + written
