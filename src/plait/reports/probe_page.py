"""What a probe found, as a page of the terminal: devices, their links, clocks and doubts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from rich.text import Text

from plait.reports.link_matrix import link_matrix, shortened, spread_words
from plait.reports.marks import ASCII, UNICODE, Glyphs
from plait.spec.cluster import Cluster, Device
from plait.spec.figures import MEMORY_BANDWIDTH
from plait.units import format_bytes, format_rate

_NAME, _SPEED = 16, 18


def probe_page(
    cluster: Cluster, notes: Sequence[str], doubts: Sequence[str], width: int = 80, glyphs: Glyphs = UNICODE
) -> Text:
    """A line a device, the link matrix, then notes, and in yellow what makes figures doubtful."""
    lines = [*_devices(cluster), Text()]
    if len(cluster.devices) > 1:
        lines += [link_matrix(cluster, width, glyphs), Text()]
    for style, words in (("", notes), ("yellow", doubts)):
        lines += [Text(line, style) for each in words for line in wrap(each, max(width, 80), subsequent_indent="  ")]
    while lines and not lines[-1].plain:
        lines.pop()
    page = Text("\n", no_wrap=True, overflow="ignore").join(lines)
    if glyphs is ASCII:
        page.plain = page.plain.replace("µ", "u").replace("±", "+-").encode("ascii", "replace").decode("ascii")
    return page


def _devices(cluster: Cluster) -> Iterator[Text]:
    dtypes = list(dict.fromkeys(dtype for device in cluster.devices for dtype in device.flops))
    heading = "".join(f"{'GFLOP/s ' + dtype:>{_SPEED}}" for dtype in dtypes)
    yield Text(f"{'device':<{_NAME}}{'memory':>9}{'its bandwidth':>19}{heading}", "dim")
    for device in cluster.devices:
        speeds = "".join(f"{_flops(device, dtype):>{_SPEED}}" for dtype in dtypes)
        read = format_rate(device.memory_bandwidth) + spread_words(device.spread.get(MEMORY_BANDWIDTH, 0.0))
        yield Text.assemble(
            (f"{shortened(device.name, _NAME - 1):<{_NAME}}", "bold"),
            f"{format_bytes(device.memory_bytes):>9}{read:>19}{speeds}",
        )


def _flops(device: Device, dtype: str) -> str:
    if dtype not in device.flops:
        return "-"
    return f"{device.flops[dtype] * 1e-9:.3g}{spread_words(device.spread.get(dtype, 0.0))}"
