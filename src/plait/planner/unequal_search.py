"""Every pipeline over unequal devices that may be the best: order, cut and devices, by bounds and never by a rule.

A pipeline grows stage by stage: one more unit (a device, or one for each replica), some more layers. What is there so
far cannot end before

    the forwards and messages that lead to a stage  +  all of its micro-batches  +  the backwards and messages from it

so that whatever is above the best step known is dropped. Faster devices, links, more memory or devices only lower the
bounds and add to what fits: nothing that was looked at before is lost. Where more partial pipelines are left than
`_MOST`, the most promising are kept (a beam search), and nothing is proven any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plait.costs.states import rank_parameters, state_bytes
from plait.planner.balance import Floats
from plait.planner.unequal_costs import Machines, Unit, alone
from plait.plans.split import TrainingSetup
from plait.schedules.closed import in_flight
from plait.schedules.training import SPLIT_BACKWARD
from plait.spec.cluster import Device

Ints = NDArray[np.int64]
_MOST = 4_000


class Pipeline(NamedTuple):
    """The units of the stages in order, where each stage ends, and the seconds that a step takes at least."""

    units: tuple[int, ...]
    ends: tuple[int, ...]
    least_s: float


class Stages(NamedTuple):
    """Seconds of stages with layers [a, b), of one micro-batch: forward, the input's and the weights' half."""

    forward: Floats
    input: Floats
    weight: Floats

    def at(self, index: tuple[Ints, ...]) -> Stages:
        """Some of them."""
        return Stages(*(column[index] for column in self))

    @property
    def total(self) -> Floats:
        """All three."""
        return self.forward + self.input + self.weight


@dataclass(frozen=True, slots=True, eq=False)
class UnitCosts:
    """What every unit takes for one micro-batch of one size and recompute.

    `stages` [U, L + 1, L + 1]: seconds by unit and layers, infinite where there are none. `hop_s` [2, U, U]: of a
    message onward, and back. `masks` [U]: bits of the devices. `kept` [L + 1, L + 1]: bytes that a micro-batch leaves
    until its backward, `others` all other bytes, `free` [U] those there are.
    """

    stages: Stages
    hop_s: Floats
    masks: Ints
    kept: Floats
    others: Floats
    free: Floats

    @property
    def layers(self) -> int:
        """L."""
        return len(self.kept) - 1

    def fastest_s(self, stages: int, count: int) -> float:
        """A step takes at least so long over so many stages: as if layers could be divided as finely as one likes."""
        each = np.diagonal(self.stages.total, offset=1, axis1=1, axis2=2).min(axis=1)
        return count * self.layers / float(np.sort(1 / each)[-stages:].sum())


def unit_costs(machines: Machines, units: Sequence[Unit], setup: TrainingSetup) -> UnitCosts:
    """The costs of all units: each is as slow as its slowest device, and has the memory of its smallest."""
    devices = list({device.name: device for unit in units for device in unit}.values())
    of_device = {device.name: _stage_table(machines, device, setup) for device in devices}
    tables = [np.max([of_device[device.name] for device in unit], axis=0) for unit in units]
    bit = {device.name: 1 << index for index, device in enumerate(devices)}
    masks = np.array([sum(bit[device.name] for device in unit) for unit in units], dtype=np.int64)
    kept, others = _bytes(machines, devices[0], setup)
    free = np.array([float(min(device.memory_bytes for device in unit)) for unit in units])
    return UnitCosts(
        Stages(*np.moveaxis(np.array(tables), 1, 0)), _hops(machines, units, masks, setup), masks, kept, others, free
    )


def _stage_table(machines: Machines, device: Device, setup: TrainingSetup) -> Floats:
    """Seconds of every stage on one device [3, L + 1, L + 1]."""
    times = machines.model(device).times(alone(setup))
    layers, beside = machines.spec.layers, times.rates.profile.micro_batch_s
    before = np.array([one[:3] for one in times.before]).T
    found: Floats = before[:, None, :] - before[:, :, None] + np.array([beside, beside, 0.0])[:, None, None]
    found[:, 0, :] += np.array(times.first[:3])[:, None]
    found[:, :, layers] += np.array(times.last[:3])[:, None]
    found[:, np.tri(layers + 1, dtype=bool)] = np.inf
    return found


def _bytes(machines: Machines, device: Device, setup: TrainingSetup) -> tuple[Floats, Floats]:
    model, layers = machines.model(device), machines.spec.layers
    bytes_ = model.layer_bytes(alone(setup))
    kept, others = np.zeros((layers + 1, layers + 1)), np.zeros((layers + 1, layers + 1))
    for first in range(layers):
        for end in range(first + 1, layers + 1):
            states = state_bytes(rank_parameters(machines.spec, [(first, end)]), model.recipe, setup.zero, setup.split)
            kept[first, end] = bytes_.stage((first, end))
            others[first, end] = states.total_bytes + bytes_.recomputed + (bytes_.last if end == layers else 0.0)
    return kept, others


def _hops(machines: Machines, units: Sequence[Unit], masks: Ints, setup: TrainingSetup) -> Floats:
    message = machines.model(units[0][0]).message_bytes(alone(setup))
    known: dict[tuple[str, str], float] = {}

    def hop_s(one: Device, other: Device) -> float:
        key = one.name, other.name
        if key not in known:
            known[key] = machines.link(one, other).transfer_s(message)
        return known[key]

    found = np.full((2, len(units), len(units)), np.inf)
    for i, one in enumerate(units):
        for j, other in enumerate(units):
            if not masks[i] & masks[j]:
                found[0, i, j] = max(hop_s(a, b) for a, b in zip(one, other, strict=True))
                found[1, i, j] = max(hop_s(b, a) for a, b in zip(one, other, strict=True))
    return found


def pipelines(
    costs: UnitCosts, schedule: str, stages: int, count: int, bar_s: float, firsts: Sequence[int]
) -> tuple[list[Pipeline], bool]:
    """Pipelines of so many stages whose `count` micro-batches may take less than `bar_s`, the most promising first.

    `firsts`: units that may hold the first stage. True where none was dropped for want of room.
    """
    flying = in_flight(schedule, stages, 1, count)
    layers = costs.layers
    units = np.zeros((1, 0), dtype=np.int64)
    ends = np.zeros((1, 0), dtype=np.int64)
    least, whole = np.zeros(1), True
    for stage in range(stages):
        begin = ends[:, -1] if stage else np.zeros(1, dtype=np.int64)
        used = np.bitwise_or.reduce(costs.masks[units], axis=1) if stage else np.zeros(1, dtype=np.int64)
        fits = flying[stage] * costs.kept + costs.others <= costs.free[:, None, None] + 1.0
        # [rows, units, ends]: what a row can go on with
        may = np.moveaxis(fits & (count * costs.stages.total < bar_s), 0, 1)[begin]
        may &= ((used[:, None] & costs.masks[None, :]) == 0)[:, :, None]
        if not stage:
            may[:, [unit for unit in range(len(costs.masks)) if unit not in set(firsts)]] = False
        left = stages - 1 - stage
        may[:, :, layers - left + 1 :] = False
        if not left:
            may[:, :, :layers] = False
        row, unit, end = np.nonzero(may)
        units, ends = np.column_stack([units[row], unit]), np.column_stack([ends[row], end])
        least = _least_s(costs, schedule, units, ends, count, stages)
        order = np.argsort(least, kind="stable")
        order = order[least[order] < bar_s]
        whole &= len(order) <= _MOST
        units, ends, least = units[order[:_MOST]], ends[order[:_MOST]], least[order[:_MOST]]
        if not len(least):
            return [], whole
    rows = zip(units.tolist(), ends.tolist(), least.tolist(), strict=True)
    return [Pipeline(tuple(one), tuple(until), seconds) for one, until, seconds in rows], whole


def _least_s(costs: UnitCosts, schedule: str, units: Ints, ends: Ints, count: int, stages: int) -> Floats:
    """At least so many seconds until the last backward, of pipelines of which the first stages are known [rows]."""
    begins = np.column_stack([np.zeros(len(ends), dtype=np.int64), ends[:, :-1]])
    times = costs.stages.at((units, begins, ends))
    onward, back = (costs.hop_s[way][units[:, :-1], units[:, 1:]] for way in (0, 1))
    if schedule == "layerwise":
        found: Floats = count * (times.total.sum(axis=1) + onward.sum(axis=1) + back.sum(axis=1))
        return found
    halves = schedule in SPLIT_BACKWARD
    # a stage hands back what its own backward, or the input's half of it, made
    backward = times.input if halves else times.input + times.weight
    nothing = np.zeros((len(ends), 1))
    lead = np.cumsum(np.column_stack([nothing, times.forward[:, :-1] + onward]), axis=1)
    trail = np.cumsum(np.column_stack([nothing, backward[:, :-1] + back]), axis=1)
    busy = lead + count * times.total + (0.0 if halves else trail)
    both = times.forward + backward
    later = np.cumsum(np.column_stack([both[:, 1:] + onward + back, nothing])[:, ::-1], axis=1)[:, ::-1]
    # until the first micro-batch is back, no more forwards are done than may be in flight
    flying = np.minimum(count, stages - np.arange(units.shape[1])) if schedule == "1f1b" else count
    turn = lead + times.forward + later + count * backward + (count - flying) * times.forward + trail
    least: Floats = np.maximum(busy, turn).max(axis=1)
    return least
