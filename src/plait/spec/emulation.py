"""Hosts that are not there: which ranks are taken to share one, and the links between them, emulated on this host.

1gbit,200us        every rank is a host of its own; 1 Gb/s and 200 µs each way between any two
ethernet-1g        a link of the presets (`plait plan --list`)
100mbit,1ms@2      two ranks, one after the other, are a host

A plan that names several hosts says itself which ranks share one; then only the links are emulated, between its hosts.

Bandwidth is what the bytes that ranks send have of a link: 1 Gb/s Ethernet leaves TCP 941.5 Mb/s.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from plait.errors import SpecError, nearest
from plait.spec.cluster import Wire
from plait.spec.preset_files import preset_words, wire_figures
from plait.units import format_seconds


@dataclass(frozen=True, slots=True)
class Emulation:
    """`hosts`: each rank's host, by number. `wires`: from host to host, every ordered pair of them.

    `names`: of the hosts, by number; empty where nobody named them.
    """

    hosts: tuple[int, ...]
    wires: Mapping[tuple[int, int], Wire]
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "wires", MappingProxyType(dict(self.wires)))

    def wire(self, source: int, target: int) -> Wire | None:
        """Between two ranks; None where they are on one host."""
        return self.wires.get((self.hosts[source], self.hosts[target]))


@dataclass(frozen=True, slots=True)
class EmulatedLinks:
    """What a person asked for, before it is known how many ranks there are. `ranks_per_host` None: nobody said, 1."""

    wire: Wire
    ranks_per_host: int | None = None

    @property
    def per_host(self) -> int:
        """Ranks of each host, where no plan says it."""
        return self.ranks_per_host or 1

    def among(self, ranks: int) -> Emulation:
        """The hosts of so many ranks, all joined by the same wire."""
        hosts = tuple(rank // self.per_host for rank in range(ranks))
        return Emulation(hosts, self._wires(hosts[-1] + 1))

    def between(self, hosts: Sequence[str]) -> Emulation:
        """The same of named hosts: `hosts` has each rank's. Errors: SpecError where ranks of a host were counted."""
        names = tuple(dict.fromkeys(hosts))
        if self.ranks_per_host is not None:
            raise SpecError(
                f"--emulate has @{self.ranks_per_host}, but the plan says itself which ranks share a host "
                f"({_first_names(names)}): leave @{self.ranks_per_host} out"
            )
        return Emulation(tuple(map(names.index, hosts)), self._wires(len(names)), names)

    def _wires(self, hosts: int) -> dict[tuple[int, int], Wire]:
        pairs = [(one, other) for one in range(hosts) for other in range(hosts) if one != other]
        return dict.fromkeys(pairs, self.wire)


def host_names(emulation: Emulation) -> dict[int, str]:
    """What each rank's host is called."""
    names = emulation.names or [f"host {host}" for host in range(max(emulation.hosts) + 1)]
    return {rank: names[host] for rank, host in enumerate(emulation.hosts)}


def links_words(links: EmulatedLinks, ranks: int) -> str:
    """What is emulated, in words."""
    hosts = links.among(ranks).hosts[-1] + 1
    if hosts == 1:
        held = "the rank" if ranks == 1 else f"all {ranks} ranks"
        return f"1 emulated host, which holds {held}: there is no link between hosts"
    each = f" of up to {links.per_host} ranks" if links.per_host > 1 else ""
    return f"{hosts} emulated hosts{each}, {_wire_words(links.wire)}"


def named_links_words(links: EmulatedLinks, hosts: Sequence[str]) -> str:
    """The same between the hosts of a plan."""
    names = tuple(dict.fromkeys(hosts))
    return f"the plan's {len(names)} hosts ({_first_names(names)}), {_wire_words(links.wire)}"


def _wire_words(wire: Wire) -> str:
    return f"{wire.bandwidth * 8e-6:g} Mb/s and {format_seconds(wire.latency_s)} between any two"


def _first_names(names: Sequence[str]) -> str:
    return f"{', '.join(names[:4])}{', …' if len(names) > 4 else ''}"


_LATENCIES = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_BANDWIDTHS = {"kbit": 1e3 / 8, "mbit": 1e6 / 8, "gbit": 1e9 / 8}
_FIGURE = re.compile(r"([0-9]*\.?[0-9]+)([a-zµ]+)")
_SLOWEST_BYTES_PER_S, _LONGEST_S = 1e3, 10.0
_HOW = "write bandwidth and latency, as in 1gbit,200us, or a link preset, as in ethernet-1g; @2 makes two ranks a host"


NOT_UNDER_A_LAUNCHER = (
    "--emulate is for ranks that are started here, and a launcher has started these, whose links are real: leave "
    "--emulate out, or run the command without the launcher"
)


def parse_emulation(text: str) -> EmulatedLinks:
    """Read `--emulate`. Errors: SpecError, which says how it is written and names the presets."""
    link, at, ranks = text.strip().lower().partition("@")
    if at and (not ranks.isdecimal() or int(ranks) < 1):
        raise SpecError(f"--emulate {text!r}: {ranks!r} ranks cannot be a host: write a whole number from 1, as in @2")
    wire = _figures(text, link) if "," in link else _preset(text, link)
    _check(text, wire)
    return EmulatedLinks(wire, int(ranks) if at else None)


def _figures(text: str, link: str) -> Wire:
    bandwidth, _, latency = link.partition(",")
    bandwidth_bytes_per_s = _figure(text, bandwidth, "bandwidth", _BANDWIDTHS)
    return Wire(_figure(text, latency, "latency", _LATENCIES), bandwidth_bytes_per_s)


def _figure(text: str, piece: str, what: str, units: Mapping[str, float]) -> float:
    """The figure in SI."""
    found = _FIGURE.fullmatch(piece.strip())
    if found is None or found[2] not in units:
        known = ", ".join(units)
        raise SpecError(f"--emulate {text!r}: {piece.strip()!r} is no {what} (units: {known}); {_HOW}")
    value = float(found[1])
    if value == 0:
        raise SpecError(f"--emulate {text!r}: a {what} of 0 cannot be; {_HOW}")
    return value * units[found[2]]


def _preset(text: str, link: str) -> Wire:
    presets = preset_words("links")
    if link not in presets:
        raise SpecError(f"--emulate {text!r}: {link!r} is no link; {_HOW} ({nearest(link, presets)})")
    figures = wire_figures(link)
    latency_s, bandwidth = figures.latency, figures.bandwidth
    assert latency_s is not None, f"link preset {link} has no latency"
    assert bandwidth is not None, f"link preset {link} has no bandwidth"
    return Wire(latency_s, bandwidth)


def _check(text: str, wire: Wire) -> None:
    """A run over the link comes to an end while somebody waits for it. Errors: SpecError."""
    if not wire.latency_s <= _LONGEST_S:
        raise SpecError(f"--emulate {text!r}: a latency of {wire.latency_s:g} s is too long: at most {_LONGEST_S:g} s")
    if not _SLOWEST_BYTES_PER_S <= wire.bandwidth < math.inf:
        least = _SLOWEST_BYTES_PER_S * 8 / 1e3
        raise SpecError(
            f"--emulate {text!r}: {wire.bandwidth * 8 / 1e3:g} kbit/s is too slow to finish: at least {least:g}kbit"
        )
