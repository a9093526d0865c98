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


SHORT_SLOWER = 20
"""In the short form latencies are so many times as long: beside them nothing that a busy host adds is seen."""


def named_link(name: str, size: Size) -> Named:
    """One of `LINKS`, by name."""
    latency_s, bandwidth = _FIGURES[name]
    longer = SHORT_SLOWER if size == "short" else 1
    return Named(name, EmulatedLinks(Wire(longer * latency_s, bandwidth)))


_FIGURES = {
    "10 Gb/s": (100e-6, 0.9415 * 10e9 / 8),
    "1 Gb/s": (200e-6, 0.9415 * 1e9 / 8),
    "100 Mb/s": (500e-6, 0.9415 * 100e6 / 8),
    "Wi-Fi": (3e-3, 520e6 / 8),
}
"""Latency in seconds, one way, and what TCP has of the bandwidth, in bytes/s.

Of a link of 10 Gb/s more is asked than is usual (30 µs): what two processes take to hand over a message through the
system is a good part of that, and cannot be emulated away. Wi-Fi as the preset wifi-5.
"""

LINKS = tuple(_FIGURES)
SLOW = "100 Mb/s"
