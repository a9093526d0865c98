"""The links of a cluster as a matrix: from each device (row) to each other one (column), latency above bandwidth.

    latency, bandwidth    to desk.0             to laptop.0
    from desk.0                               200 µs ± 4 %
                                           116 MB/s ± 1 %
    from laptop.0         200 µs ± 4 %
                        117 MB/s ± 1 %

Columns that do not fit stand in a matrix of their own below; long names are cut in the middle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from plait.reports.marks import ASCII, UNICODE, Glyphs
from plait.spec.cluster import Cluster, Link
from plait.units import format_rate, format_seconds

_NAME, _COLUMN, _SPREAD_COLUMN = 20, 14, 18
_MOST = 64
"""Of more devices only the first are shown."""


def link_matrix(cluster: Cluster, width: int = 80, glyphs: Glyphs = UNICODE) -> Text:
    """The matrix as lines of at most `width` characters (80 at least); of one device a sentence."""
    names = [device.name for device in cluster.devices]
    if len(names) < 2:
        return Text("one device: no links")
    shown = names[:_MOST]
    lines = list(_blocks(cluster, shown, max(width, 80)))
    if len(names) > _MOST:
        lines.append(Text(f"{len(names) - _MOST} of {len(names)} devices are not shown", "dim"))
    text = Text("\n", no_wrap=True, overflow="ignore").join(lines)
    if glyphs is ASCII:
        for mark, plain in (("µ", "u"), ("±", "+-"), ("…", "~")):
            text.plain = text.plain.replace(mark, plain)
        text.plain = text.plain.encode("ascii", "replace").decode("ascii")
    return text


def _blocks(cluster: Cluster, names: Sequence[str], width: int) -> Iterator[Text]:
    spreads = any(link.spread.latency or link.spread.bandwidth for link in cluster.links)
    column = _SPREAD_COLUMN if spreads else _COLUMN
    fitting = (width - _NAME) // column
    for first in range(0, len(names), fitting):
        columns = names[first : first + fitting]
        if first:
            yield Text()
        heading = "".join(f"{'to ' + shortened(name, column - 4):>{column}}" for name in columns)
        yield Text(f"{'latency, bandwidth':<{_NAME}}{heading}", "dim")
        for name in names:
            yield from _row(cluster, name, columns, column)


def _row(cluster: Cluster, name: str, columns: Sequence[str], column: int) -> Iterator[Text]:
    links = [None if other == name else cluster.link(name, other) for other in columns]
    above = "".join(f"{_latency(link):>{column}}" for link in links)
    below = "".join(f"{_bandwidth(link):>{column}}" for link in links)
    yield Text.assemble((f"{'from ' + shortened(name, _NAME - 6):<{_NAME}}", "bold"), above)
    yield Text(" " * _NAME + below)


def _latency(link: Link | None) -> str:
    return "" if link is None else format_seconds(link.latency_s) + spread_words(link.spread.latency)


def _bandwidth(link: Link | None) -> str:
    return "" if link is None else format_rate(link.bandwidth) + spread_words(link.spread.bandwidth)


def spread_words(spread: float) -> str:
    """`` ± 4 %``, `` ± >99 %``; nothing where it is not known."""
    if not spread:
        return ""
    return " ± >99 %" if spread > _MOST_SPREAD else f" ± {spread * 100:.2g} %"


_MOST_SPREAD = 0.99
"""A figure that varies by more than itself is none."""


def shortened(name: str, length: int) -> str:
    """The name, cut in the middle where it is longer: its end tells the devices of a host apart."""
    if len(name) <= length:
        return name
    end = length // 2
    return f"{name[: length - end - 1]}…{name[-end:]}"
