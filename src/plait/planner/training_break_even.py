"""From which bandwidth on another kind of split wins: guessed by the closed form, and planned again on both sides."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from plait.costs.training import TrainingModel
from plait.planner.grid import Grid
from plait.planner.result import BreakEven
from plait.planner.scoring import Scored, closed
from plait.planner.selection import Selection
from plait.plans.split import TrainingSetup
from plait.spec.cluster import Cluster, Network, Wire
from plait.units import format_rate

FAR = 1000.0
"""Looked for up to so many times the bandwidth there is, and down to so small a part of it."""
_OTHERS = 30.0
"""The best of every kind is also looked up over links so many times as fast and as slow."""
_TIME = 50_000
"""There is time to plan again where the search looks at no more ways than that: larger ones have no break-even."""
NEAR = 0.05
"""A break-even is told where planning again so much below and above it (a share of it) gives the two answers."""
_ROUNDS = 6
_FIRST_STEP = 1.15
_STEPS = 12
_CLOSE = 0.01

KindAt = Callable[[float], str]
"""The kind that is chosen where links have so many times the bandwidth: a whole search."""


def break_evens(
    selection: Selection, devices: int, winner: Scored, others: Iterable[Scored], kind_at: KindAt
) -> tuple[BreakEven, ...]:
    """The next bandwidth below, and above, what there is from which on another kind is chosen, if any.

    The bandwidth is that between hosts, or within the host where there is only one. The closed form says where to look,
    and `kind_at` whether that is true. None in searches so large that there is no time to plan again.
    """
    if selection.looked_at > _TIME:
        return ()
    compared = _Compared(selection, devices, winner.kind)
    for one in (winner, *others):
        compared.setups.setdefault(one.kind, []).append(one.setup)
    compared.search(_OTHERS)
    compared.search(1 / _OTHERS)
    found = []
    for far in (1 / FAR, FAR):
        guess = compared.nearest(far)
        true = flip(kind_at, winner.kind, far, None if guess is None else guess[0])
        if true is not None:
            factor, kind = true
            found.append(_break_even(selection.grid.model, (winner.kind, kind), factor, compared.between))
    return tuple(found)


def flip(kind_at: KindAt, winner: str, far: float, guess: float | None) -> tuple[float, str] | None:
    """The factor between 1 and `far` at which another kind is chosen in place of `winner`, and that kind.

    What is returned has been planned on both sides, `NEAR` from it; None where no such place is found in a few rounds.
    """
    outward = 1 + NEAR if far > 1 else 1 - NEAR
    inward = 2 - outward
    inside, outside = 1.0, None
    if guess is None:
        outside = _OTHERS if far > 1 else 1 / _OTHERS
        if kind_at(outside) == winner:
            return None
        guess = outside**0.5
    step = _FIRST_STEP if far > 1 else 1 / _FIRST_STEP
    for _ in range(_ROUNDS):
        before, beyond = guess * inward, guess * outward
        if (before - 1) * (far - 1) > 0 and kind_at(before) != winner:
            outside = before
        elif (kind := kind_at(beyond)) != winner:
            return guess, kind
        else:
            inside = beyond
        # between what is known on both sides; else further and further from the guess that was not true
        if outside is None:
            guess = inside * step
        elif inside == 1.0:
            guess = outside / step if (outside / step - 1) * (far - 1) > 0 else outside**0.5
        else:
            guess = (inside * outside) ** 0.5
        step *= step
    return None


class _Compared:
    """Kinds of split over links that are so many times as fast, by the closed form; what was computed is kept."""

    def __init__(self, selection: Selection, devices: int, winner: str) -> None:
        self.model, self.limits, self.devices = selection.grid.model, selection.grid.limits, devices
        self.winner, self.between = winner, selection.grid.model.machine.hosts > 1
        self.setups: dict[str, list[TrainingSetup]] = {}
        self._models = {1.0: self.model}
        self._seconds: dict[tuple[TrainingSetup, float], float] = {}

    def search(self, by: float) -> None:
        """Add the best of every kind over links `by` times as fast."""
        for kind, setup in _best_of_kinds(Selection(Grid(self._over(by), self.devices, self.limits))):
            known = self.setups.setdefault(kind, [])
            if setup not in known:
                known.append(setup)

    def nearest(self, far: float) -> tuple[float, str] | None:
        """The factor between 1 and `far`, and the kind, that first takes as long as the winner's."""
        others = [kind for kind in self.setups if kind != self.winner]
        crossings = [(crossing(partial(self._ahead_s, kind), far), kind) for kind in others]
        reached = [(factor, kind) for factor, kind in crossings if factor is not None]
        return (min if far > 1 else max)(reached) if reached else None

    def _ahead_s(self, kind: str, by: float) -> float:
        """By how many seconds the winner's kind is faster than this one."""
        return self._best_s(kind, by) - self._best_s(self.winner, by)

    def _best_s(self, kind: str, by: float) -> float:
        return min(self._step_s(setup, by) for setup in self.setups[kind])

    def _step_s(self, setup: TrainingSetup, by: float) -> float:
        key = setup, by
        if key not in self._seconds:
            self._seconds[key] = closed(self._over(by), setup).step_s
        return self._seconds[key]

    def _over(self, by: float) -> TrainingModel:
        if by not in self._models:
            machine = self.model.machine._replace(network=over(self.model.machine.network, self.between, by))
            self._models[by] = TrainingModel(self.model.spec, self.model.job, machine, self.model.profile)
        return self._models[by]


def _best_of_kinds(selection: Selection) -> Iterable[tuple[str, TrainingSetup]]:
    best: dict[str, Scored] = {}
    for family, scored in selection.families():
        if family.kind not in best or scored.rank < best[family.kind].rank:
            best[family.kind] = scored
    return [(kind, one.setup) for kind, one in best.items()]


def _break_even(model: TrainingModel, kinds: tuple[str, str], factor: float, between: bool) -> BreakEven:
    network, (winner, kind) = model.machine.network, kinds
    there = _per_device(model, network.between_hosts if between else network.within_host)
    value = factor * there
    where = "between hosts" if between else "within the host"
    at = f"{format_rate(value)} a device {where}"
    text = f"{kind} wins from {at} on" if factor > 1 else f"{kind} wins below {at}"
    quantity = "bandwidth between hosts, bytes/s a device" if between else "bandwidth within a host, bytes/s"
    return BreakEven(kind, quantity, value, f"{text}, in place of {winner} (there are {format_rate(there)})")


def _per_device(model: TrainingModel, wire: Wire) -> float:
    """What a device has of a wire while all of its host send."""
    if wire.host_bandwidth is None:
        return wire.bandwidth
    return min(wire.bandwidth, wire.host_bandwidth / model.machine.devices_per_host)


def over(network: Network, between: bool, by: float) -> Network:
    """The same network with `by` times the bandwidth between hosts, or within them."""
    if between:
        return Network(network.within_host, _faster(network.between_hosts, by))
    return Network(_faster(network.within_host, by), network.between_hosts)


def cluster_over(cluster: Cluster, by: float, between: bool | None = None) -> Cluster:
    """The same cluster with `by` times the bandwidth: of links between hosts, within them, or (None) of all."""
    host_of = {device.name: device.host for device in cluster.devices} | {
        host.name: host.name for host in cluster.hosts
    }
    links = tuple(
        replace(link, bandwidth=link.bandwidth * by)
        if between is None or between == (host_of[link.source] != host_of[link.target])
        else link
        for link in cluster.links
    )
    network = cluster.network
    for which in (True, False) if network is not None else ():
        if between in (None, which) and network is not None:
            network = over(network, which, by)
    return replace(cluster, links=links, network=network)


def _faster(wire: Wire, by: float) -> Wire:
    shared = None if wire.host_bandwidth is None else wire.host_bandwidth * by
    return replace(wire, bandwidth=wire.bandwidth * by, host_bandwidth=shared)


def crossing(ahead_s: Callable[[float], float], far: float) -> float | None:
    """The factor between 1 and `far` at which the winner's lead is gone; None where it keeps it.

    Seconds are about linear in 1 ÷ bandwidth, so the false position over that finds it in a few steps (Illinois rule).
    """
    here, there = ahead_s(1.0), ahead_s(far)
    if here <= 0 or there >= 0:
        return None
    return 1 / _root(lambda inverse: ahead_s(1 / inverse), (1.0, here), (1 / far, there))


def _root(function: Callable[[float], float], positive: tuple[float, float], negative: tuple[float, float]) -> float:
    high, low, kept = positive, negative, 0
    for _ in range(_STEPS):
        at = (high[0] * low[1] - low[0] * high[1]) / (low[1] - high[1])
        value = function(at)
        if abs(high[0] - low[0]) < _CLOSE * at or value == 0:
            return at
        if value > 0:
            high = at, value
            low = (low[0], low[1] / 2) if kept > 0 else low
            kept = 1
        else:
            low = at, value
            high = (high[0], high[1] / 2) if kept < 0 else high
            kept = -1
        if abs(value) < 1e-4 * abs(positive[1]):
            return at
    return at
