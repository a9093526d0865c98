"""From which bandwidth on another kind of split would win: both ways to split computed again over other links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from plait.costs.training import TrainingModel
from plait.planner.result import BreakEven
from plait.planner.scoring import Scored, closed
from plait.plans.split import TrainingSetup
from plait.spec.cluster import Network, Wire
from plait.units import format_rate

_FAR = 1000.0
"""Looked for up to so many times the bandwidth there is, and down to so small a part of it."""
_STEPS = 12
_NEAR = 0.01


def break_evens(model: TrainingModel, winner: Scored, others: Sequence[Scored]) -> tuple[BreakEven, ...]:
    """For the best of every other kind: the bandwidth at which it takes as long as the winner, where there is one.

    The bandwidth is that between hosts, or within the host where there is only one. Each kind keeps the setup that is
    its best one here; a better one may exist over other links, so that its break-even may come earlier, never later.
    """
    between = model.machine.hosts > 1
    found = []
    for one in others:
        factor = _crossing(partial(_ahead_s, model, winner.setup, one.setup, between))
        if factor is not None:
            found.append(_break_even(model, winner, one, factor, between))
    return tuple(found)


def _break_even(model: TrainingModel, winner: Scored, one: Scored, factor: float, between: bool) -> BreakEven:
    network = model.machine.network
    value = factor * _per_device(model, network.between_hosts if between else network.within_host)
    way = "from" if factor > 1 else "below"
    where = "between hosts" if between else "within the host"
    text = (
        f"{one.kind} wins {way} {format_rate(value)} a device {where} on"
        if factor > 1
        else f"{one.kind} wins {way} {format_rate(value)} a device {where}"
    )
    quantity = "bandwidth between hosts, bytes/s a device" if between else "bandwidth within a host, bytes/s"
    return BreakEven(one.kind, quantity, value, f"{text} (there are {format_rate(value / factor)})")


def _per_device(model: TrainingModel, wire: Wire) -> float:
    """What a device has of a wire while all of its host send."""
    if wire.host_bandwidth is None:
        return wire.bandwidth
    return min(wire.bandwidth, wire.host_bandwidth / model.machine.devices_per_host)


def _ahead_s(model: TrainingModel, winner: TrainingSetup, other: TrainingSetup, between: bool, by: float) -> float:
    """By how many seconds the winner is faster where the links are `by` times as fast."""
    network = model.machine.network
    if between:
        changed = Network(network.within_host, _faster(network.between_hosts, by))
    else:
        changed = Network(_faster(network.within_host, by), network.between_hosts)
    machine = model.machine._replace(network=changed)
    there = TrainingModel(model.spec, model.job, machine, model.profile)
    return closed(there, other).step_s - closed(there, winner).step_s


def _faster(wire: Wire, by: float) -> Wire:
    shared = None if wire.host_bandwidth is None else wire.host_bandwidth * by
    return replace(wire, bandwidth=wire.bandwidth * by, host_bandwidth=shared)


def _crossing(ahead_s: Callable[[float], float]) -> float | None:
    """The factor at which the winner's lead is gone; None where it keeps it from a thousandth to a thousandfold.

    Seconds are about linear in 1 ÷ bandwidth, so the false position over that finds it in a few steps (Illinois rule).
    """
    here = ahead_s(1.0)
    if here <= 0:
        return None
    for far in (1 / _FAR, _FAR):  # in 1 ÷ bandwidth: faster links first
        there = ahead_s(1 / far)
        if there < 0:
            return 1 / _root(lambda inverse: ahead_s(1 / inverse), (1.0, here), (far, there))
    return None


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
