"""A tensor group in generation: which heads each of its devices holds, and what its exchanges take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from math import ceil

from plait.costs.protocol import Exchange
from plait.costs.serving_rates import Profiles
from plait.costs.shares import Share, whole
from plait.errors import PlanError
from plait.spec.cluster import Cluster, Link
from plait.spec.model import ModelSpec

Traffic = Mapping[tuple[str, str], float]
"""Bytes from one device to another that go at the same time."""


def head_shares(spec: ModelSpec, speeds: Sequence[float]) -> tuple[int, ...]:
    """Query heads of each device of a tensor group, at least one, so that the slowest ends as early as it can.

    Errors: PlanError where there are more devices than heads.
    """
    if len(speeds) > spec.heads:
        raise PlanError(
            f"{spec.name} has {spec.heads} heads, so a tensor group holds at most {spec.heads} devices, "
            f"not {len(speeds)}"
        )
    held = [1] * len(speeds)
    for _ in range(spec.heads - len(speeds)):
        best = min(range(len(speeds)), key=lambda i: ((held[i] + 1) / speeds[i], i))
        held[best] += 1
    return tuple(held)


def share_of(spec: ModelSpec, part: float | Share) -> Share:
    """What a device holds whose query heads are `part` of all: the KV heads that they read are whole ones."""
    if isinstance(part, Share):
        return part
    if part >= 1:
        return whole(spec)
    return Share(max(1, round(part * spec.heads)), ceil(part * spec.kv_heads - 1e-9), part)


class Wires:
    """The links of a cluster, as fast as the sending device's profile says that they get; looked up once each."""

    def __init__(self, cluster: Cluster, profiles: Profiles | None = None) -> None:
        self._cluster = cluster
        self._host = {device.name: device.host for device in cluster.devices}
        self._profiles = profiles or {}
        self._known: dict[tuple[str, str], Link] = {}
        self._reduced: dict[tuple[tuple[str, ...], float], Exchange] = {}
        self._spread: dict[tuple[tuple[str, ...], float], Exchange] = {}
        between = cluster.network.between_hosts if cluster.network is not None else None
        self._host_bandwidth = between.host_bandwidth if between is not None else None

    def link(self, source: str, to: str) -> Link:
        """The directed link. Errors: SpecError."""
        known = self._known.get((source, to))
        if known is None:
            given, profile = self._cluster.link(source, to), self._profiles.get(source)
            if profile is not None:
                inside = self._host[source] == self._host[to]
                share = profile.within_share if inside else profile.between_share
                given = replace(given, bandwidth=given.bandwidth * share)
            known = self._known[source, to] = given
        return known

    def _start_s(self, devices: Sequence[str]) -> float:
        """What starting a collective takes."""
        return max((0.0 if profile is None else profile.exchange_s) for profile in map(self._profiles.get, devices))

    def transfer_s(self, source: str, to: str, message_bytes: float) -> float:
        """One message: latency + bytes ÷ bandwidth; nothing within a device."""
        if source == to:
            return 0.0
        link = self.link(source, to)
        return link.latency_s + message_bytes / link.bandwidth

    def step_s(self, traffic: Traffic) -> float:
        """Messages that go at the same time: the longest latency, and the longest that a device or a host is busy.

        A device sends one after the other and receives one after the other, both at once (full duplex); so does a host,
        where the cluster says what all its devices send together.
        """
        latency_s, busy_s = 0.0, dict[tuple[str, str], float]()
        for (source, to), size in traffic.items():
            link = self.link(source, to)
            latency_s = max(latency_s, link.latency_s)
            _occupy(busy_s, "device", source, to, size / link.bandwidth)
            hosts = self._host[source], self._host[to]
            if self._host_bandwidth is not None and hosts[0] != hosts[1]:
                _occupy(busy_s, "host", *hosts, size / self._host_bandwidth)
        return latency_s + max(busy_s.values(), default=0.0)

    def all_reduce(self, devices: Sequence[str], size: float) -> Exchange:
        """Everyone has `size` bytes and wants the sum: the fastest of three ways, and what each device sends.

        At once: everyone sends everything to everyone. In two steps: everyone adds one part and sends it to all
        (reduce-scatter, then all-gather). Ring: 2 (n - 1) steps of 1/n to the next. Source: Thakur, Rabenseifner,
        Gropp, "Optimization of Collective Communication Operations in MPICH" (2005), section 4.
        """
        group = tuple(devices)
        if len(group) < 2:
            return Exchange()
        known = self._reduced.get((group, size))
        if known is None:
            n, start_s = len(group), self._start_s(group)
            least = round(2 * (n - 1) / n * size)
            known = self._reduced[group, size] = min(
                Exchange(start_s + 2 * self._to_all_s(group, size / n), least),
                Exchange(start_s + 2 * self._around_s(group, size / n), least),
                Exchange(start_s + self._to_all_s(group, size), round((n - 1) * size)),
            )
        return known

    def spread(self, devices: Sequence[str], part: float) -> Exchange:
        """An all-gather of `part` bytes of everyone, or a reduce-scatter after which everyone has as much.

        At once, a message to each of the others, or round a ring in n - 1 steps: the faster of the two.
        """
        group = tuple(devices)
        if len(group) < 2:
            return Exchange()
        known = self._spread.get((group, part))
        if known is None:
            seconds = min(self._to_all_s(group, part), self._around_s(group, part))
            known = self._spread[group, part] = Exchange(self._start_s(group) + seconds, round((len(group) - 1) * part))
        return known

    def _to_all_s(self, group: tuple[str, ...], size: float) -> float:
        """Everyone sends so many bytes to each of the others, all at the same time."""
        return self.step_s(dict.fromkeys(permutations(group, 2), size))

    def _around_s(self, group: tuple[str, ...], size: float) -> float:
        """Everyone sends so many bytes to the next one, n - 1 times."""
        around = zip(group, (*group[1:], group[0]), strict=True)
        return (len(group) - 1) * self.step_s(dict.fromkeys(around, size))


def _occupy(busy_s: dict[tuple[str, str], float], what: str, source: str, to: str, seconds: float) -> None:
    for key in ((f"{what} out", source), (f"{what} in", to)):
        busy_s[key] = busy_s.get(key, 0.0) + seconds
