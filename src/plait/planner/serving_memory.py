"""What does not fit: why a way is refused, and if all are, what each device is short of and what would fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from plait.planner.result import Rejected
from plait.planner.serving_groups import Units
from plait.planner.serving_units import Demand, World
from plait.units import format_bytes


def refusal(world: World, units: Units, stages: int, count: int, demand: Demand) -> Rejected:
    """`count` pipelines of so many of these units for which there is not enough memory."""
    need, have = least_bytes(world, units.tp * stages, units.tp, demand), most_bytes(world, units, stages)
    devices = stages * units.tp
    axes = {"pp": stages, "tp": units.tp}
    if need <= have and stages == 1 and units.tp > 1:
        return _short(world, units, count, demand)
    if need <= have:
        return Rejected(axes, count, "no cut into whole layers fits the memory of every device", need, have)
    where = _largest(world, devices, have)
    reason = f"not enough memory: {format_bytes(need)} are needed, {where} {format_bytes(have)}"
    return Rejected(axes, count, reason, need, have)


def _largest(world: World, devices: int, have: float) -> str:
    """Whose memory `have` is: larger devices may be left, for which there is a way."""
    sizes = sorted((device.memory_bytes for device in world.devices.values()), reverse=True)
    of = " of these ways" if sum(sizes[:devices]) > have else ""
    if devices == 1:
        return f"the largest device{of} has"
    return f"the largest {devices} devices{of} together have"


def _short(world: World, units: Units, count: int, demand: Demand) -> Rejected:
    """Tensor groups that have the memory together, but each a device that is short of it, as heads were dealt."""
    ranks = (
        (need - free, need, free, name)
        for unit in units.units
        for name, need, free in [
            max(
                zip(
                    unit.devices,
                    world.need_bytes(unit, (0, world.spec.layers), demand),
                    world.free_bytes(unit),
                    strict=True,
                ),
                key=lambda one: one[1] - one[2],
            )
        ]
    )
    _, need, free, name = min(ranks)
    reason = (
        f"with heads dealt by speed, as far as there is memory, {name} would need {format_bytes(need)} and has "
        f"{format_bytes(free)}"
    )
    return Rejected({"pp": 1, "tp": units.tp}, count, reason, float(need), float(free))


def impossible(world: World) -> list[Rejected]:
    """Axes for which there are devices, but not enough heads or layers."""
    spec, devices = world.spec, len(world.devices)
    found = []
    for axis, have, what in (("tp", spec.heads, "query head"), ("pp", spec.layers, "layer")):
        if devices > have:
            reason = f"every rank along {axis} needs a {what}, and {spec.name} has {have}"
            found.append(Rejected({axis: devices}, devices - have, reason, float(devices), float(have)))
    return found


def least_bytes(world: World, devices: int, tp: int, demand: Demand) -> float:
    """What the model takes over so many devices: each layer once, and on every device workspace and process."""
    model = world.model
    held = sum(world.layer_bytes(1.0, demand)) + model.first_bytes() + world.last_bytes(1.0, demand)
    return held + devices * world.fixed_bytes(1 / tp, demand)


def most_bytes(world: World, units: Units, stages: int) -> float:
    """What so many of the units have, the largest ones."""
    free = sorted((sum(world.free_bytes(unit)) for unit in units.units), reverse=True)
    return float(sum(free[:stages]))


def merged(rejected: Sequence[Rejected]) -> tuple[Rejected, ...]:
    """One entry for each reason and axes: those of equal axes together, the nearest miss with its figures."""
    groups: dict[tuple[tuple[str, int], ...], Rejected] = {}
    for one in rejected:
        key = tuple(sorted(one.split.items()))
        known = groups.get(key)
        nearest = one if known is None or one.need - one.have < known.need - known.have else known
        groups[key] = replace(nearest, count=one.count + (known.count if known else 0))
    return tuple(groups.values())
