"""Where another answer begins: the link with which one kind of split overtakes another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf, sqrt
from typing import Any, NamedTuple, TypeVar

from plait.planner.result import BreakEven
from plait.planner.serving_figures import Way, decoding, prefill
from plait.planner.serving_search import Found, Ranked, Search, value
from plait.planner.serving_units import World
from plait.planner.serving_words import format_bits
from plait.planner.space import kind_of
from plait.spec.cluster import Cluster, Link, Wire
from plait.units import format_seconds

_BANDWIDTHS = [10.0**exponent for exponent in range(4, 14)]
_LATENCIES = [10.0**exponent for exponent in range(-7, 1)]
_CLOSE = 1.0003
_BESIDE = (0.95, 1.05)
"""How far above and below a figure the planner is asked again whether it is true."""

_TRIES = 3
_OF_A_KIND = 6

_L = TypeVar("_L", Link, Wire)

Answer = Callable[[Search], Sequence[Ranked]]
"""The planner's own: a search's best ways, and the best of every kind, ranked."""


class _Links(NamedTuple):
    """Which links change, and which of their figures: those between hosts, or those within; `bandwidth` or latency."""

    across: bool
    bandwidth: bool


def break_even(search: Search, ranked: Sequence[Ranked], answer: Answer) -> tuple[BreakEven, ...]:
    """For the chosen kind and each other: the bandwidth, or the latency, at which the better of the two changes.

    One figure of the links between hosts changes, where one of the two uses any, else of those within; the other one
    stays as it is. Of each kind the best way with such links counts, of those found; what comes out is asked of the
    planner just below and just above, with what it finds there looked at too, and left out unless it is true there.
    """
    chosen, kinds = ranked[0], {ranked[0].kind}
    found: list[BreakEven] = []
    planner = _Planner(search, answer)
    for other in ranked[1:]:
        if other.kind not in kinds:
            kinds.add(other.kind)
            found.extend(_between(planner, chosen, other))
    return tuple(found)


def _between(planner: _Planner, chosen: Ranked, other: Ranked) -> Iterator[BreakEven]:
    world = planner.search.world
    across = any(_across(world, one) for one in (chosen, other))
    if not across and max(chosen.way.split.pp * chosen.way.split.tp, other.way.split.pp * other.way.split.tp) == 1:
        return
    links = _links(world, across)
    if not links:
        return
    latencies, bandwidths = ({one[at] for one in links} for at in (0, 1))
    place = "between hosts" if across else "within hosts"
    there = planner.crossing(_Links(across, True), chosen.kind, other.kind, min(bandwidths))
    if there is not None:
        at, more, less = there
        alike = f", at a latency of {format_seconds(max(latencies))}" if len(latencies) == 1 else ""
        text = f"{more} wins over {less} from {format_bits(at)} on ({place}{alike})"
        yield BreakEven(more, "bandwidth", at, text)
    there = planner.crossing(_Links(across, False), chosen.kind, other.kind, max(*latencies, _LATENCIES[0]))
    if there is not None:
        at, less, more = there
        alike = f", at {format_bits(min(bandwidths))}" if len(bandwidths) == 1 else ""
        text = f"{more} wins over {less} up to a latency of {format_seconds(at)} ({place}{alike})"
        yield BreakEven(more, "latency", at, text)


@dataclass(eq=False)
class _Planner:
    """The ways known of each kind, and the planner asked again with other links."""

    search: Search
    answer: Answer
    known: dict[str, dict[object, Way]] = field(default_factory=dict)
    asked: dict[tuple[_Links, float], dict[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._learn(self.search.found)

    def crossing(self, links: _Links, one: str, other: str, here: float) -> tuple[float, str, str] | None:
        """Where the better of two kinds changes, the nearest to `here`: the figure, who wins above it, who below."""
        for _ in range(_TRIES):
            worlds: dict[float, World] = {}

            def lead(at: float, worlds: dict[float, World] = worlds) -> float:
                world = worlds.setdefault(at, _with_links(self._small(one, other), links, at))
                return self._best(world, other) - self._best(world, one)

            at = _crossing(lead, _BANDWIDTHS if links.bandwidth else _LATENCIES, here)
            if at is None:
                return None
            below, above = (self._asked(links, at * factor) for factor in _BESIDE)
            if {one, other} <= set(below) & set(above):
                winners = [min((one, other), key=found.__getitem__) for found in (below, above)]
                if winners[0] != winners[1] and (winners[1] == one) == (lead(at * _BESIDE[1]) > 0):
                    return at, winners[1], winners[0]
        return None

    def _learn(self, found: Iterable[Found]) -> None:
        """The first ways of every kind, with the schedules that other links may want."""
        counts: dict[str, int] = {}
        for one in found:
            kind = kind_of(one.way.split)
            counts[kind] = counts.get(kind, 0) + 1
            if counts[kind] <= _OF_A_KIND:
                for way in _options(self.search, one):
                    key = way.replicas[0], len(way.replicas), way.cut, way.schedule, way.micro_batches, way.chunk
                    self.known.setdefault(kind, {}).setdefault(key, way)

    def _best(self, world: World, kind: str) -> float:
        return min(_value(self.search, world, way) for way in self.known[kind].values())

    def _asked(self, links: _Links, at: float) -> dict[str, float]:
        """The planner's best of every kind with such links, as it ranks them; its ways are known from then on."""
        if (links, at) not in self.asked:
            world, objective = _with_links(self.search.world, links, at), self.search.objective
            again = Search(world, objective, self.search.limits).run()
            self._learn(again.found)
            best: dict[str, float] = {}
            for one in self.answer(again):
                best.setdefault(one.kind, value(objective, one.predicted))
            self.asked[links, at] = best
        return self.asked[links, at]

    def _small(self, *kinds: str) -> World:
        return _small(self.search.world, [way for kind in kinds for way in self.known[kind].values()])


def _options(search: Search, found: Found) -> Iterator[Way]:
    """The best, the one with the fewest micro-batches and the one with the most."""
    ways = [way for way, _ in found.others if search.limits.allow(way)]
    yield found.way
    if ways:
        yield min(ways, key=lambda way: (way.micro_batches, way.schedule))
        yield max(ways, key=lambda way: way.micro_batches)


def _value(search: Search, world: World, way: Way) -> float:
    """As `value`, of closed forms, and of no more of them than it takes."""
    if search.objective == "ttft":
        first_s, each_s = prefill(world, way)
        return first_s + (way.users - 1) / 2 * each_s
    round_s = decoding(world, way).round_s
    return round_s / way.served if search.objective == "throughput" else round_s


def _crossing(lead: Callable[[float], float], grid: Sequence[float], here: float) -> float | None:
    """Where the lead changes its sign, the nearest to `here`; None: nowhere on the grid."""
    points = [(at, lead(at) > 0) for at in grid]
    changes = [(one[0], after[0], one[1]) for one, after in pairwise(points) if one[1] != after[1]]
    if not changes:
        return None
    low, high, before = min(changes, key=lambda one: max(sqrt(one[0] * one[1]) / here, here / sqrt(one[0] * one[1])))
    while high / low > _CLOSE:
        middle = sqrt(low * high)
        low, high = (middle, high) if (lead(middle) > 0) == before else (low, middle)
    return sqrt(low * high)


def _across(world: World, one: Ranked) -> bool:
    return len({world.devices[name].host for unit in one.way.replicas[0] for name in unit.devices}) > 1


def _links(world: World, across: bool) -> list[tuple[float, float]]:
    """Latency and bandwidth of the links that are looked at."""
    cluster = world.cluster
    found = [(link.latency_s, link.bandwidth) for link in cluster.links if (len(_ends(cluster, link)) == 2) == across]
    if cluster.network is not None:
        wire = cluster.network.between_hosts if across else cluster.network.within_host
        found.append((wire.latency_s, min(wire.bandwidth, wire.host_bandwidth or inf)))
    return found


def _ends(cluster: Cluster, link: Link) -> set[str]:
    """The hosts that a link joins: one where it lies within."""
    hosts = {device.name: device.host for device in cluster.devices}
    return {hosts.get(end, end) for end in (link.source, link.target)}


def _with_links(world: World, links: _Links, at: float) -> World:
    """The same with one other figure of the links between hosts, or within them."""
    cluster, figure = world.cluster, {"bandwidth" if links.bandwidth else "latency_s": at}
    changed = tuple(
        _replaced(link, figure) if (len(_ends(cluster, link)) == 2) == links.across else link for link in cluster.links
    )
    network = cluster.network
    if network is not None:
        place = "between_hosts" if links.across else "within_host"
        wire = _replaced(getattr(network, place), figure)
        wire = replace(wire, host_bandwidth=None) if links.bandwidth else wire
        network = replace(network, **{place: wire})
    return world.with_links(replace(cluster, links=changed, network=network))


def _replaced(link: _L, figures: Mapping[str, Any]) -> _L:
    return replace(link, **figures)


def _small(world: World, ways: Sequence[Way]) -> World:
    """A cluster of no more hosts than the ways' first replicas lie on, and two: the same figures, sooner."""
    if world.equal_hosts is None:
        return world
    used = {name for way in ways for unit in way.replicas[0] for name in unit.devices}
    hosts = {*list(world.by_host)[:2], *(world.devices[name].host for name in used)}
    cluster = replace(
        world.cluster,
        devices=tuple(device for device in world.cluster.devices if device.host in hosts),
        hosts=tuple(host for host in world.cluster.hosts if host.name in hosts),
        links=tuple(link for link in world.cluster.links if _ends(world.cluster, link) <= hosts),
    )
    return world.with_links(cluster)
