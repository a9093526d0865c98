"""What a probe found: figures of devices, links and clocks, as a `Cluster`, as its file, and as JSON."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from itertools import groupby
from typing import Any

from plait.costs.profiles import MEASURED
from plait.prober.host import MOST_OTHERS
from plait.prober.probe_messages import Computed, FoundBeside, Greeting, Point, Threads
from plait.prober.spread import Figure
from plait.spec.cluster import Beside, BesideSpread, Cluster, Device, Host, Link, WireSpread
from plait.spec.cluster_file import cluster_to_toml
from plait.spec.figures import MEMORY_BANDWIDTH
from plait.timeline.timeline import Clock
from plait.units import format_bytes, format_rate, format_seconds

_UNSTEADY, _NAMED = 0.5, 4
"""A link whose spread is larger says little; so many such links are named."""


@dataclass(frozen=True)
class FoundDevice:
    """A rank's device: what the rank said of itself, and what it measured."""

    rank: Greeting
    computed: Computed

    @property
    def most(self) -> Threads:
        """With all of the rank's threads."""
        return self.computed.by_threads[-1]

    @property
    def read(self) -> Figure:
        """Bytes/s of weights: of the dtype that is read slower, since a device has one figure for all."""
        return min(self.most.read_bytes_per_s.values(), key=lambda one: one.value)


@dataclass(frozen=True)
class FoundLink:
    """From one rank to another."""

    source: int
    target: int
    latency_s: Figure
    bandwidth_bytes_per_s: Figure
    points: Sequence[Point]


@dataclass(frozen=True)
class Probed:
    """Devices by rank, links by source and target, and each other host's clock against that of rank 0's host.

    `emulated`: what links were asked for, where they are none of this machine's. `at_s`: when, in seconds since 1970.
    """

    devices: Sequence[FoundDevice]
    links: Sequence[FoundLink]
    clocks: Mapping[int, Clock]
    at_s: float
    elapsed_s: float
    emulated: str | None = None

    @cached_property
    def host_names(self) -> Mapping[int, str]:
        """As the hosts call themselves; by numbers where two have the same name, or are emulated."""
        named = {one.rank.host: one.rank.name for one in self.devices}
        if self.emulated is None and len(set(named.values())) == len(named):
            return named
        return {host: f"host {number}" for number, host in enumerate(sorted(named))}

    @cached_property
    def names(self) -> Sequence[str]:
        """Each rank's device: ``desk-cpu``, or ``desk.0``, ``desk.1`` where hosts have several."""
        alone = max(Counter(one.rank.host for one in self.devices).values()) == 1
        seen: Counter[int] = Counter()
        names = []
        for one in self.devices:
            host = one.rank.host
            name = self.host_names[host]
            names.append(f"{name}-cpu" if alone else f"{name}.{seen[host]}")
            seen[host] += 1
        return names

    @cached_property
    def others(self) -> Mapping[int, float]:
        """For each machine: which share of its cores work that is not ours took meanwhile."""
        found = {}
        for machine in sorted({one.rank.machine for one in self.devices}):
            ranks = [one for one in self.devices if one.rank.machine == machine]
            usage = [one.computed.usage for one in ranks]
            spare_s = usage[0].busy_s - sum(one.our_s for one in usage)
            found[machine] = min(1.0, max(0.0, spare_s / (len(ranks[0].rank.cores) * usage[0].elapsed_s)))
        return found

    @cached_property
    def cluster(self) -> Cluster:
        """As the planner knows it. What is free of a machine's memory is divided among its ranks."""
        hosts = tuple(Host(name) for name in dict.fromkeys(self.host_names[one.rank.host] for one in self.devices))
        devices = tuple(map(self._device, self.devices, self.names))
        links = tuple(
            Link(
                self.names[one.source],
                self.names[one.target],
                one.latency_s.value,
                one.bandwidth_bytes_per_s.value,
                WireSpread(one.latency_s.spread, one.bandwidth_bytes_per_s.spread),
            )
            for one in self.links
        )
        return Cluster(hosts, devices, links)

    def _device(self, one: FoundDevice, name: str) -> Device:
        flops, read = one.most.flops, one.read
        sharing = sum(other.rank.machine == one.rank.machine for other in self.devices)
        return Device(
            name,
            self.host_names[one.rank.host],
            one.rank.free_bytes // sharing,
            {dtype: figure.value for dtype, figure in flops.items()},
            read.value,
            MEASURED,
            spread={**{dtype: figure.spread for dtype, figure in flops.items()}, MEMORY_BANDWIDTH: read.spread},
            beside={dtype: _beside(found) for dtype, found in one.computed.beside.items()},
        )

    @property
    def toml(self) -> str:
        """The cluster file, with what its keys do not say as comments. Reading it gives `cluster`."""
        comments = "".join(f"# {line}\n" for line in (*self._heading(), *self._host_words(), *self.doubts))
        return f"{comments}\n{cluster_to_toml(self.cluster)}"

    @property
    def notes(self) -> Sequence[str]:
        """What devices and links do not say: rates by threads, clocks, how bandwidth was measured."""
        return [*self._host_words(), *self._link_words()]

    def _heading(self) -> list[str]:
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.at_s))
        lines = [
            f"written by plait probe {metadata.version('plait')}, {when}, after {self.elapsed_s:.0f} s",
            "each figure is a median; spread: half the way from the 10th to the 90th of a hundred, as a part of it",
            "flops: further rows of products; memory_bandwidth: weights read by products of one row; memory: free",
            "beside: any operation; products of many rows before their FLOP, in reads of their weights; norms",
        ]
        return [*lines, *self._link_words()]

    def _link_words(self) -> list[str]:
        lines = []
        if self.links:
            lines.append("latency: half a round trip, so the same both ways; bandwidth: of payload, each way by itself")
        if self.emulated is not None:
            lines.append(f"links emulated: {self.emulated}; all hosts are this machine, {self.devices[0].rank.name}")
        return lines

    def _host_words(self) -> list[str]:
        lines = []
        for host, group in groupby(self.devices, key=lambda one: one.rank.host):
            ranks = list(group)
            name, first = self.host_names[host], ranks[0].rank
            threads = f"{_plural(len(ranks), 'rank')} of {_plural(first.threads, 'thread')}"
            memory = f"{format_bytes(first.free_bytes)} of {format_bytes(first.memory_bytes)} free"
            lines.append(f"{name}: {first.cpu}, {_plural(len(first.cores), 'core')}, {threads}, {memory}")
            by_threads = ranks[0].computed.by_threads
            lines += [f"{name}: {_plural(one.threads, 'thread')} read {_rates(one)}" for one in by_threads]
            lines += _beside_words(name, ranks[0].computed.beside)
            if host in self.clocks:
                lines.append(f"{name}: its clock is {clock_words(self.clocks[host])} {self._reference}'s")
        return lines

    @property
    def _reference(self) -> str:
        return self.host_names[self.devices[0].rank.host]

    @property
    def doubts(self) -> Sequence[str]:
        """What makes the figures doubtful, in sentences; none where nothing does."""
        lines = []
        for machine, share in self.others.items():
            ranks = [one.rank for one in self.devices if one.rank.machine == machine]
            name = self.host_names[ranks[0].host] if self.emulated is None else ranks[0].name
            if share > MOST_OTHERS:
                lines.append(
                    f"doubtful: other work took {share:.0%} of {name}'s cores meanwhile; "
                    "measure again when the machine is quiet"
                )
            if sum(one.threads for one in ranks) > len(ranks[0].cores):
                cores = _plural(len(ranks[0].cores), "core")
                lines.append(f"{len(ranks)} ranks share {name}'s {cores}: a figure is what each reaches meanwhile")
        return [*lines, *self._unsteady]

    @property
    def _unsteady(self) -> Sequence[str]:
        """The links whose figures vary so much that they say little."""
        names = [
            f"{self.names[one.source]} → {self.names[one.target]}"
            for one in self.links
            if max(one.latency_s.spread, one.bandwidth_bytes_per_s.spread) > _UNSTEADY
        ]
        if not names:
            return []
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return [f"doubtful: figures of {', '.join(names[:_NAMED])}{more} vary by more than half; measure again"]

    @property
    def json(self) -> Mapping[str, Any]:
        """All of it, for ``plait probe --json``."""
        names = self.names
        return {
            "at_s": self.at_s,
            "elapsed_s": self.elapsed_s,
            "emulated": self.emulated,
            "doubts": list(self.doubts),
            "hosts": [
                {"name": name, "others": self.others[self._machine(host)], "clock": self._clock_json(host)}
                for host, name in self.host_names.items()
            ],
            "devices": [{"name": name, **_device_json(one)} for name, one in zip(names, self.devices, strict=True)],
            "links": [
                {
                    "from": names[one.source],
                    "to": names[one.target],
                    "latency_s": _figure_json(one.latency_s),
                    "bandwidth_bytes_per_s": _figure_json(one.bandwidth_bytes_per_s),
                    "points": [
                        {"bytes": point.bytes, "seconds": point.seconds, "spread": point.spread} for point in one.points
                    ],
                }
                for one in self.links
            ],
            "cluster": self.toml,
        }

    def _machine(self, host: int) -> int:
        return next(one.rank.machine for one in self.devices if one.rank.host == host)

    def _clock_json(self, host: int) -> Mapping[str, float] | None:
        clock = self.clocks.get(host)
        return None if clock is None else {"offset_s": clock.offset_s, "error_s": clock.error_s}


def clock_words(clock: Clock) -> str:
    """``1.2 ms ± 80 µs ahead of``."""
    side = "ahead of" if clock.offset_s >= 0 else "behind"
    return f"{format_seconds(abs(clock.offset_s))} ± {format_seconds(clock.error_s)} {side}"


def _plural(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count > 1 else ''}"


def _rates(one: Threads) -> str:
    return ", ".join(
        f"{format_rate(rate.value)} ± {_percent(rate)} of {dtype}" for dtype, rate in one.read_bytes_per_s.items()
    )


def _beside(found: FoundBeside) -> Beside:
    operation, reads, rate = found.operation_s, found.weight_reads, found.activation_bytes_per_s
    spread = BesideSpread(operation.spread, reads.spread, rate.spread)
    return Beside(operation.value, reads.value, rate.value, spread)


def _beside_words(name: str, beside: Mapping[str, FoundBeside]) -> list[str]:
    """A line for each dtype."""
    return [
        f"{name}: beside its {dtype} FLOP and bytes an operation takes {format_seconds(one.operation_s.value)} "
        f"± {_percent(one.operation_s)}, a product of many rows {one.weight_reads.value:.2g} reads of its weights "
        f"± {_percent(one.weight_reads)}; activations pass at {format_rate(one.activation_bytes_per_s.value)} "
        f"± {_percent(one.activation_bytes_per_s)}"
        for dtype, one in beside.items()
    ]


def _percent(one: Figure) -> str:
    part = one.spread * 100
    return f"{part:.0f} %" if part >= 10 else f"{part:.2g} %"


def _device_json(one: FoundDevice) -> Mapping[str, Any]:
    rank = one.rank
    return {
        "rank": rank.rank,
        "cpu": rank.cpu,
        "cores": len(rank.cores),
        "threads": rank.threads,
        "memory_bytes": rank.memory_bytes,
        "free_bytes": rank.free_bytes,
        "flops": {dtype: _figure_json(figure) for dtype, figure in one.most.flops.items()},
        "memory_bandwidth_bytes_per_s": _figure_json(one.read),
        "beside": {
            dtype: {
                "operation_s": _figure_json(found.operation_s),
                "weight_reads": _figure_json(found.weight_reads),
                "activation_bandwidth_bytes_per_s": _figure_json(found.activation_bytes_per_s),
            }
            for dtype, found in one.computed.beside.items()
        },
        "by_threads": [
            {
                "threads": each.threads,
                "flops": {dtype: _figure_json(figure) for dtype, figure in each.flops.items()},
                "read_bytes_per_s": {dtype: _figure_json(figure) for dtype, figure in each.read_bytes_per_s.items()},
            }
            for each in one.computed.by_threads
        ],
    }


def _figure_json(figure: Figure) -> Mapping[str, float]:
    return {"value": figure.value, "spread": figure.spread}
