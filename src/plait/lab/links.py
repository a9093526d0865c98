"""The links that the experiments with a model are asked over: what joins machines in offices and homes."""

from __future__ import annotations

from typing import NamedTuple

from plait.lab.experiment import Size
from plait.spec.cluster import Wire
from plait.spec.emulation import EmulatedLinks


class Named(NamedTuple):
    """A link, and how people call it."""

    name: str
    link: EmulatedLinks


SHORT_SLOWER, SHORT_MOST_S = 20, 0.01
"""In the short form latencies are so many times as long, up to so many seconds: so that little is seen of what a busy
host adds, and nobody waits for long."""


def named_link(name: str, size: Size) -> Named:
    """One of `LINKS`, by name."""
    latency_s, bandwidth = _FIGURES[name]
    if size == "short":
        latency_s = min(SHORT_MOST_S, SHORT_SLOWER * latency_s)
    return Named(name, EmulatedLinks(Wire(latency_s, bandwidth)))


_FIGURES = {
    "10 Gb/s": (100e-6, 0.9415 * 10e9 / 8),
    "1 Gb/s": (200e-6, 0.9415 * 1e9 / 8),
    "100 Mb/s": (500e-6, 0.9415 * 100e6 / 8),
    "Wi-Fi": (3e-3, 520e6 / 8),
    "100 Mb/s and 2 ms": (2e-3, 0.9415 * 100e6 / 8),
}
"""Latency in seconds, one way, and what TCP has of the bandwidth, in bytes/s.

Of a link of 10 Gb/s more is asked than is usual (30 µs): what two processes take to hand over a message through the
system is a good part of that, and cannot be emulated away. Wi-Fi as the preset wifi-5. A
latency of 2 ms is what a link has that goes through several boxes: power line, or a tunnel.
"""

LINKS = ("10 Gb/s", "1 Gb/s", "100 Mb/s", "Wi-Fi")
SLOW, SLOWER = "100 Mb/s", "100 Mb/s and 2 ms"
