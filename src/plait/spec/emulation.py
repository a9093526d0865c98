"""Hosts that are not there: which ranks are taken to share one, and the links between them, emulated on this host.

1gbit,200us        every rank is a host of its own; 1 Gb/s and 200 µs each way between any two
ethernet-1g        a link of the presets (`plait plan --list`)
100mbit,1ms@2      two ranks, one after the other, are a host
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from plait.spec.cluster import Wire


@dataclass(frozen=True, slots=True)
class Emulation:
    """`hosts`: each rank's host, by number. `wires`: from host to host, every ordered pair of them."""

    hosts: tuple[int, ...]
    wires: Mapping[tuple[int, int], Wire]

    def __post_init__(self) -> None:
        object.__setattr__(self, "wires", MappingProxyType(dict(self.wires)))

    def wire(self, source: int, target: int) -> Wire | None:
        """Between two ranks; None where they are on one host."""
        return self.wires.get((self.hosts[source], self.hosts[target]))


@dataclass(frozen=True, slots=True)
class EmulatedLinks:
    """What a person asked for, before it is known how many ranks there are."""

    wire: Wire
    ranks_per_host: int = 1

    def among(self, ranks: int) -> Emulation:
        """The hosts of so many ranks, all joined by the same wire."""
        hosts = tuple(rank // self.ranks_per_host for rank in range(ranks))
        count = hosts[-1] + 1
        pairs = [(one, other) for one in range(count) for other in range(count) if one != other]
        return Emulation(hosts, dict.fromkeys(pairs, self.wire))


def parse_emulation(text: str) -> EmulatedLinks:
    """Read `--emulate`. Errors: SpecError, which says how it is written and names the presets."""
    raise NotImplementedError
