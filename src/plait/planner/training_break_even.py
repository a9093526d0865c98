"""From which bandwidth on another kind of split would win: ways to split computed again over other links."""

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
from plait.spec.cluster import Network, Wire
from plait.units import format_rate

FAR = 1000.0
"""Looked for up to so many times the bandwidth there is, and down to so small a part of it."""
_OTHERS = 30.0
"""Where there is time, every kind is searched again over links so many times as fast and as slow."""
_TIME = 50_000
"""There is time where the search looks at no more ways than that."""
_AGAIN = 2
_STEPS = 12
_NEAR = 0.01


def break_evens(selection: Selection, devices: int, winner: Scored, others: Iterable[Scored]) -> tuple[BreakEven, ...]:
    """The next bandwidth below, and above, what there is at which another kind takes as long as the winner's, if any.

    The bandwidth is that between hosts, or within the host where there is only one. Compared are the best setup of each
    kind here and, in small searches, over far faster and far slower links and where kinds meet; by the closed form.
    """
    compared = _Compared(selection, devices, winner.kind)
    for one in (winner, *others):
        compared.setups.setdefault(one.kind, []).append(one.setup)
    small = selection.looked_at <= _TIME
    if small:
        compared.search(_OTHERS)
        compared.search(1 / _OTHERS)
    found = []
    for far in (1 / FAR, FAR):
        nearest = compared.nearest(far)
        for _ in range(_AGAIN if small else 0):
            if nearest is None or not compared.search(nearest[0]):
                break
            nearest = compared.nearest(far)
        if nearest is not None:
            found.append(_break_even(selection.grid.model, nearest[1], nearest[0], compared.between))
    return tuple(found)


class _Compared:
    """Kinds of split over links that are so many times as fast; what was computed once is kept."""

    def __init__(self, selection: Selection, devices: int, winner: str) -> None:
        self.model, self.limits, self.devices = selection.grid.model, selection.grid.limits, devices
        self.winner, self.between = winner, selection.grid.model.machine.hosts > 1
        self.setups: dict[str, list[TrainingSetup]] = {}
        self._models = {1.0: self.model}
        self._seconds: dict[tuple[TrainingSetup, float], float] = {}

    def search(self, by: float) -> bool:
        """Add the best of every kind over links `by` times as fast; True where one of them is new."""
        new = False
        for kind, setup in _best_of_kinds(Selection(Grid(self._over(by), self.devices, self.limits))):
            known = self.setups.setdefault(kind, [])
            if setup not in known:
                known.append(setup)
                new = True
        return new

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
            self._models[by] = _over(self.model, self.between, by)
        return self._models[by]


def _best_of_kinds(selection: Selection) -> Iterable[tuple[str, TrainingSetup]]:
    best: dict[str, Scored] = {}
    for family, scored in selection.families():
        if family.kind not in best or scored.rank < best[family.kind].rank:
            best[family.kind] = scored
    return [(kind, one.setup) for kind, one in best.items()]


def _break_even(model: TrainingModel, kind: str, factor: float, between: bool) -> BreakEven:
    network = model.machine.network
    there = _per_device(model, network.between_hosts if between else network.within_host)
    value = factor * there
    where = "between hosts" if between else "within the host"
    at = f"{format_rate(value)} a device {where}"
    text = f"{kind} wins from {at} on" if factor > 1 else f"{kind} wins below {at}"
    quantity = "bandwidth between hosts, bytes/s a device" if between else "bandwidth within a host, bytes/s"
    return BreakEven(kind, quantity, value, f"{text} (there are {format_rate(there)})")


def _per_device(model: TrainingModel, wire: Wire) -> float:
    """What a device has of a wire while all of its host send."""
    if wire.host_bandwidth is None:
        return wire.bandwidth
    return min(wire.bandwidth, wire.host_bandwidth / model.machine.devices_per_host)


def _over(model: TrainingModel, between: bool, by: float) -> TrainingModel:
    """The same model over links that are `by` times as fast."""
    network = model.machine.network
    if between:
        changed = Network(network.within_host, _faster(network.between_hosts, by))
    else:
        changed = Network(_faster(network.within_host, by), network.between_hosts)
    machine = model.machine._replace(network=changed)
    return TrainingModel(model.spec, model.job, machine, model.profile)


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
        if abs(high[0] - low[0]) < _NEAR * at or value == 0:
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
