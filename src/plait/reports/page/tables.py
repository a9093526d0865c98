"""What stands in the page's tables: words and figures of a view, ready for the template, which escapes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from plait.reports.change import share_of_predicted
from plait.reports.choice import figure
from plait.reports.table import whole_words
from plait.reports.view import LinkLine, LinkUse, Source, StageLine, View
from plait.timeline.compare import Shares
from plait.timeline.timeline import MemoryTrack, Timeline
from plait.units import format_bytes, format_seconds

DASH = "–"
"""Where there is no figure."""

SOURCES_SHOWN = 4
"""Sources of a stage's difference that are named; what the others add up to stands behind them."""

_NEARLY_NOTHING = 5e-4
"""A smaller share rounds to 0.0 %."""

_NOTHING_S = 1e-7
"""A smaller difference is rounding."""

_NAMES: Mapping[str, str] = {
    "step_s": "time of a step",
    "ttft_s": "first token after",
    "time_per_token_s": "time per token",
    "decode_tokens_per_s": "decoded",
    "prefill_tokens_per_s": "prefill",
    "tokens_per_s": "tokens",
    "train_tokens_per_s": "tokens trained",
    "mfu": "MFU",
    "bubble": "bubble",
    "comm_bytes": "bytes sent",
    "peak_bytes": "peak memory",
    "makespan_s": "",
}
"""The figures at the top, in this order, as far as a run has them; what the last is of depends on the run."""


class Figure(NamedTuple):
    """A figure at the top of the page."""

    name: str
    predicted: str
    measured: str
    off: str


class Time(NamedTuple):
    """A stage's time as one timeline has it. `bar`: percent of its ranks' time that they compute, talk, and wait."""

    source: str
    compute: str
    transfer: str
    wait: str
    bubble: str
    bar: tuple[float, float, float]


class StageCells(NamedTuple):
    """A stage: a line for each timeline, the difference, and where it comes from."""

    stage: int
    layers: str
    ranks: str
    times: tuple[Time, ...]
    difference: tuple[str, ...]
    sources: tuple[str, ...]


class LinkCells(NamedTuple):
    """A link: for each timeline the bytes, the busy share, and the bar's percent."""

    name: str
    axis: str
    uses: tuple[tuple[str, str, float], ...]


class MemoryCells(NamedTuple):
    """The memory of a rank: highest points, the limit, and percent of it (of the highest point where there is none)."""

    rank: int
    name: str
    peaks: tuple[str, ...]
    shares: tuple[float, ...]
    limit: str
    base: str


def figures(view: View) -> list[Figure]:
    """Predicted and measured, and how they differ (`reports.change`)."""
    predicted, measured = view.figures.get("predicted") or {}, view.figures.get("measured") or {}
    keys = [key for key in _NAMES if _is_number(predicted.get(key)) or _is_number(measured.get(key))]
    names = {**_NAMES, "makespan_s": whole_words(view.task, view.timelines).removeprefix("the ")}
    return [
        Figure(names[key], _figure(key, predicted), _figure(key, measured), _off(key, predicted, measured))
        for key in keys
    ]


def _figure(key: str, of: Mapping[str, Any]) -> str:
    return figure(key, of[key]) if _is_number(of.get(key)) else DASH


def _off(key: str, predicted: Mapping[str, Any], measured: Mapping[str, Any]) -> str:
    if not (_is_number(predicted.get(key)) and _is_number(measured.get(key))):
        return DASH
    before, after = predicted[key], measured[key]
    if key in ("bubble", "mfu"):
        return f"{signed((after - before) * 100)} points"
    return share_of_predicted(before, after).replace("-", "−") or DASH


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def stages(view: View) -> list[StageCells]:
    """A line of the view each."""
    present = [timeline.source for timeline in view.timelines]
    return [_stage(line, present) for line in view.stages]


def _stage(line: StageLine, present: Sequence[str]) -> StageCells:
    shares = {"predicted": line.predicted, "measured": line.measured}
    times = tuple(_time(source, shares[source]) for source in present)
    return StageCells(
        line.stage, span_text(line.layers), ranks_text(line.ranks), times, _difference(line), tuple(_sources(line))
    )


def _time(source: str, shares: Shares | None) -> Time:
    if shares is None:
        return Time(source, DASH, DASH, DASH, DASH, (0.0, 0.0, 0.0))
    compute, transfer, wait = (format_seconds(each) for each in (shares.compute_s, shares.transfer_s, shares.wait_s))
    return Time(source, compute, transfer, wait, _percent(shares.bubble), bar(shares))


def bar(shares: Shares) -> tuple[float, float, float]:
    """Percent of the time of a stage's ranks: computing, talking without computing, neither. They add up to 100."""
    computing = 1 - shares.bubble
    whole_s = shares.compute_s / computing if computing > 0 else shares.transfer_s + shares.wait_s
    if whole_s <= 0:
        return 0.0, 0.0, 0.0
    wait = min(1 - computing, shares.wait_s / whole_s)
    return round(computing * 100, 2), round(max(0.0, 1 - computing - wait) * 100, 2), round(wait * 100, 2)


def _difference(line: StageLine) -> tuple[str, ...]:
    if line.predicted is None or line.measured is None:
        return ()
    changes = [after - before for before, after in zip(line.predicted, line.measured, strict=True)]
    return (*map(signed_seconds, changes[:3]), f"{signed(changes[3] * 100)} points")


def _sources(line: StageLine) -> Iterator[str]:
    """``wait +3.1 ms``: the largest first, and what the rest adds up to."""
    told = [each for each in line.sources if abs(_longer(each)) >= _NOTHING_S]
    for each in told[:SOURCES_SHOWN]:
        yield f"{each.what} {signed_seconds(_longer(each))}" + (
            f" over {each.actions:,} actions" if each.actions else ""
        )
    rest = told[SOURCES_SHOWN:]
    if rest:
        yield f"{len(rest)} others {signed_seconds(sum(map(_longer, rest)))}"


def _longer(source: Source) -> float:
    return source.measured_s - source.predicted_s


def links(view: View) -> list[LinkCells]:
    """A line of the view each; a bar is of the link's busy share."""
    present = [timeline.source for timeline in view.timelines]
    return [LinkCells(line.name, line.axis, tuple(_use(line, source) for source in present)) for line in view.links]


def _use(line: LinkLine, source: str) -> tuple[str, str, float]:
    use: LinkUse | None = line.predicted if source == "predicted" else line.measured
    if use is None:
        return DASH, DASH, 0.0
    return format_bytes(use.sent_bytes), busy_text(use), round(min(1.0, use.busy_share) * 100, 2)


def busy_text(use: LinkUse) -> str:
    """``1.2 %``; little is told apart from nothing."""
    return _percent(use.busy_share) if use.busy_share >= _NEARLY_NOTHING or not use.busy_share else "<0.1 %"


def memory(view: View) -> list[MemoryCells]:
    """A line for every rank of which some timeline has a track."""
    ranks = sorted({rank for timeline in view.timelines for rank in timeline.memory})
    names = {row.rank: row.label for row in view.rows}
    return [_memory(view.timelines, rank, names.get(rank, f"rank {rank}")) for rank in ranks]


def _memory(timelines: Sequence[Timeline], rank: int, name: str) -> MemoryCells:
    tracks = [timeline.memory.get(rank) for timeline in timelines]
    known = [track for track in tracks if track is not None]
    limit = next((track.limit_bytes for track in known if track.limit_bytes is not None), None)
    base = max(track.base_bytes for track in known)
    peaks = [None if track is None else peak_bytes(track) for track in tracks]
    whole = limit or max((peak for peak in peaks if peak is not None), default=0) or 1
    return MemoryCells(
        rank,
        name,
        tuple(DASH if peak is None else format_bytes(peak) for peak in peaks),
        tuple(0.0 if peak is None else round(min(1.0, peak / whole) * 100, 2) for peak in peaks),
        DASH if limit is None else format_bytes(limit),
        format_bytes(base) if base else DASH,
    )


def peak_bytes(track: MemoryTrack) -> int:
    """The highest point of a track."""
    return max(track.used_bytes, default=0)


def clocks(view: View) -> list[tuple[str, str, str]]:
    """Host, offset and error of every clock of a measured run of several hosts."""
    measured = view.measured
    if measured is None or len(measured.clocks) < 2:
        return []
    return [
        (host, signed_seconds(clock.offset_s), f"± {format_seconds(clock.error_s)}")
        for host, clock in sorted(measured.clocks.items())
    ]


def span_text(layers: tuple[int, int]) -> str:
    """``0 to 14`` for layers [0, 15)."""
    first, end = layers
    if end <= first:
        return DASH
    return str(first) if end - first == 1 else f"{first} to {end - 1}"


def ranks_text(ranks: Sequence[int]) -> str:
    """``3``, ``0, 1`` or ``0 to 191``; of ranks that do not follow each other the first and how many more."""
    if len(ranks) <= 2:
        return ", ".join(map(str, ranks))
    if list(ranks) == list(range(ranks[0], ranks[0] + len(ranks))):
        return f"{ranks[0]} to {ranks[-1]}"
    return f"{ranks[0]}, {ranks[1]} and {len(ranks) - 2} more"


def signed(value: float) -> str:
    """``+1.2`` or ``−1.2``."""
    return f"{value:+.1f}".replace("-", "−")


def signed_seconds(duration_s: float) -> str:
    """``+1.2 ms`` or ``−1.2 ms``."""
    if abs(duration_s) < _NOTHING_S:
        return "±0 s"
    return f"{'+' if duration_s > 0 else '−'}{format_seconds(abs(duration_s))}"


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"
