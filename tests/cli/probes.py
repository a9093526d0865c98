"""A probe of two ranks whose figures are known."""

from __future__ import annotations

from plait.prober.probe_messages import Computed, FoundBeside, Greeting, Point, Threads, Usage
from plait.prober.probed import FoundDevice, FoundLink, Probed
from plait.prober.spread import Figure


def _device(rank: int) -> FoundDevice:
    greeting = Greeting(rank, 0, 0, "desk", "A CPU", (0, 1), 1, 16 << 30, 8 << 30)
    flops = {"float32": Figure(50e9, 0.02), "bfloat16": Figure(100e9, 0.03)}
    read = {"float32": Figure(10e9, 0.04), "bfloat16": Figure(8e9, 0.05)}
    beside = {"bfloat16": FoundBeside(Figure(2.5e-5, 0.1), Figure(0.5, 0.2), Figure(3e9, 0.3))}
    return FoundDevice(greeting, Computed([Threads(1, flops, read)], Usage(20.0, 9.9, 10.0), beside))


def _link(source: int, target: int) -> FoundLink:
    return FoundLink(source, target, Figure(2e-4, 0.1), Figure(1.17e8, 0.01), [Point(1024, 2.1e-4, 0.1)])


TWO = Probed([_device(0), _device(1)], [_link(0, 1), _link(1, 0)], {}, 0.0, 12.0)
