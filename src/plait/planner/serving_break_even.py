"""Where another answer begins: the link with which one kind of split overtakes another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf, sqrt

from plait.costs.serving import ServingModel
from plait.planner.result import BreakEven
from plait.planner.serving_figures import Way, decoding, prefill
from plait.planner.serving_search import Ranked, Search
from plait.planner.serving_units import World
from plait.planner.serving_words import format_bits
from plait.spec.cluster import Cluster, Link
from plait.units import format_seconds

_BANDWIDTHS = [10.0**exponent for exponent in range(4, 14)]
_LATENCIES = [10.0**exponent for exponent in range(-7, 1)]
_CLOSE = 1.0003


def break_even(search: Search, ranked: Sequence[Ranked]) -> tuple[BreakEven, ...]:
    """For the chosen one and the best of each other kind: the bandwidth, or the latency, at which the order changes.

    The ways stay as they are, devices and cut included; only the links change: those between hosts where one of the two
    uses any, else those within.
    """
    chosen, kinds = ranked[0], {ranked[0].kind}
    found: list[BreakEven] = []
    for other in ranked[1:]:
        if other.kind not in kinds:
            kinds.add(other.kind)
            found.extend(_between(search, chosen, other))
    return tuple(found)


def _between(search: Search, chosen: Ranked, other: Ranked) -> Iterator[BreakEven]:
    across = any(_across(search.world, one) for one in (chosen, other))
    if not across and max(chosen.way.split.pp * chosen.way.split.tp, other.way.split.pp * other.way.split.tp) == 1:
        return
    links = _links(search.world, across)
    if not links:
        return
    bandwidth, latency_s = min(one[1] for one in links), max(one[0] for one in links)
    small = _small(search.world, chosen, other)

    def lead(wire: tuple[float, float]) -> float:
        """By how many seconds the chosen one is ahead with such links."""
        world = _with_links(small, across, *wire)
        return _value(search, world, other.way) - _value(search, world, chosen.way)

    place = "between hosts" if across else "within hosts"
    at = _crossing(lambda one: lead((latency_s, one)), _BANDWIDTHS, bandwidth)
    if at is not None:
        more, less = (chosen, other) if lead((latency_s, at * 2)) > 0 else (other, chosen)
        text = (
            f"{more.kind} wins over {less.kind} from {format_bits(at)} on ({place}, at a latency of "
            f"{format_seconds(latency_s)})"
        )
        yield BreakEven(more.kind, "bandwidth", at, text)
    at = _crossing(lambda one: lead((one, bandwidth)), _LATENCIES, max(latency_s, _LATENCIES[0]))
    if at is not None:
        more, less = (chosen, other) if lead((at / 2, bandwidth)) > 0 else (other, chosen)
        text = (
            f"{more.kind} wins over {less.kind} up to a latency of {format_seconds(at)} ({place}, at "
            f"{format_bits(bandwidth)})"
        )
        yield BreakEven(more.kind, "latency", at, text)


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


def _with_links(world: World, across: bool, latency_s: float, bandwidth: float) -> World:
    """The same with other links between hosts, or within them."""
    cluster = world.cluster
    links = tuple(
        replace(link, latency_s=latency_s, bandwidth=bandwidth) if (len(_ends(cluster, link)) == 2) == across else link
        for link in cluster.links
    )
    network = cluster.network
    if network is not None and across:
        wire = replace(network.between_hosts, latency_s=latency_s, bandwidth=bandwidth, host_bandwidth=None)
        network = replace(network, between_hosts=wire)
    elif network is not None:
        network = replace(network, within_host=replace(network.within_host, latency_s=latency_s, bandwidth=bandwidth))
    changed = replace(cluster, links=links, network=network)
    model = ServingModel(world.spec, changed, world.model.dtype, world.model.weights)
    return World(world.spec, changed, world.job, model)


def _small(world: World, *ways: Ranked) -> World:
    """A cluster of no more hosts than the ways' first replicas lie on, and two: the same figures, sooner."""
    if world.equal_hosts is None:
        return world
    used = {name for one in ways for unit in one.way.replicas[0] for name in unit.devices}
    hosts = {*list(world.by_host)[:2], *(world.devices[name].host for name in used)}
    cluster = replace(
        world.cluster,
        devices=tuple(device for device in world.cluster.devices if device.host in hosts),
        hosts=tuple(host for host in world.cluster.hosts if host.name in hosts),
        links=tuple(link for link in world.cluster.links if _ends(world.cluster, link) <= hosts),
    )
    return World(world.spec, cluster, world.job, world.model)
