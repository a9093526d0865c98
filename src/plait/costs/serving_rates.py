"""What a device reaches while it generates: its figures as they are, or through a profile (`costs.profiles`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

from plait.costs.operations import Operation
from plait.costs.profiles import MEASURED, PLAIN, DeviceRates, Profile, beside_of, profile_named, profile_names
from plait.spec.cluster import Device

_LEAST_TILE = 16
"""Rows of the smallest tile: products of few rows are done with flat ones (NVIDIA, "CUTLASS", tile shapes)."""


class Rates:
    """Seconds of operations on one device. Without a profile its figures are taken as they are, and nothing beside.

    The plain profile, and one never heard of, give the plain shares of FLOP/s and memory bandwidth alone: published
    figures are peaks, but plain tiles and starts are of large GPUs, and a device may be anything.
    """

    def __init__(self, device: Device, dtype: str, profile: Profile | None) -> None:
        flops, bandwidth = speed(device, dtype), device.memory_bandwidth
        self.profile = profile
        if device.profile is not None and self.profile is None:
            plain = profile_named(PLAIN)
            flops, bandwidth = flops * plain.matrix_share, bandwidth * plain.memory_share
        self.flops, self.bandwidth, self.beside = flops, bandwidth, beside_of(device, dtype)
        self._through: dict[int, DeviceRates] = {}

    @property
    def action_s(self) -> float:
        """What a forward takes beside its layers."""
        return 0.0 if self.profile is None else self.profile.micro_batch_s

    def seconds(self, operations: Sequence[Operation]) -> float:
        """One after another on the device, while the host starts them."""
        if self.profile is None:
            return sum(max(one.flops / self.flops, one.moved_bytes / self.bandwidth) for one in operations)
        device_s = sum(self._rates(one).operation_s(one, fused=True) for one in operations)
        return self._rates(operations[0]).longer_s(device_s, self.profile.launch_s * len(operations))

    def _rates(self, operation: Operation) -> DeviceRates:
        """The profile with tiles no higher than the operation's rows ask for."""
        assert self.profile is not None
        tiles = min(self.profile.tile_rows, max(1, ceil(operation.rows / _LEAST_TILE)) * _LEAST_TILE)
        if tiles not in self._through:
            narrowed = self.profile.changed(tile_rows=tiles)
            self._through[int(tiles)] = DeviceRates(narrowed, self.flops, self.bandwidth, self.beside)
        return self._through[int(tiles)]


Profiles = Mapping[str, Profile | None]
"""Of each device by name; None where it has none that we know, or the plain one."""


def profiles_of(devices: Sequence[Device]) -> Profiles:
    """Each device's profile, but for the plain one; every file is read once."""
    names = dict.fromkeys(device.profile for device in devices)
    there = set(profile_names()) - {PLAIN}
    known = {name: profile_named(name) for name in names if name is not None and name in there}
    if any(device.profile is None and device.beside for device in devices):
        known[MEASURED] = profile_named(MEASURED)
    return {device.name: known.get(_profile_name(device)) for device in devices}


def _profile_name(device: Device) -> str:
    """One that says what its operations take beside, and names none, was measured."""
    return device.profile or (MEASURED if device.beside else "")


def rates_of(devices: Sequence[Device], dtype: str, profiles: Profiles) -> dict[str, Rates]:
    """Each device's rates; devices that are alike have the same object."""
    found: dict[object, Rates] = {}
    result = {}
    for device in devices:
        key = tuple(device.flops.items()), device.memory_bandwidth, device.profile, tuple(device.beside.items())
        if key not in found:
            found[key] = Rates(device, dtype, profiles[device.name])
        result[device.name] = found[key]
    return result


def speed(device: Device, dtype: str) -> float:
    """FLOP/s of a device in a dtype; where it gives none, of the other 16-bit one, or the slowest that it gives."""
    sixteen = ("bfloat16", "float16")
    for name in (dtype, *(sixteen if dtype in sixteen else ())):
        if name in device.flops:
            return device.flops[name]
    return min(device.flops.values())


_GENERATING = ("raspberry-pi-5",)
"""Profiles that were fitted on generation; others on training, whose operations are larger."""


def note_of(devices: Sequence[Device]) -> str:
    """How far predictions for these devices are calibrated, in words."""
    words = [
        _measured_note(devices) if name == MEASURED else _note(name)
        for name in dict.fromkeys(device.profile for device in devices)
    ]
    calibrated = all(device.profile in _GENERATING for device in devices)
    return f"{'calibrated in part' if calibrated else 'not calibrated for generation'}: {'; '.join(words)}"


def _measured_note(devices: Sequence[Device]) -> str:
    """With the largest spread of all measured figures; where nothing is known beside them, that."""
    measured = [device for device in devices if device.profile == MEASURED]
    spreads = [part for device in measured for part in device.spread.values()]
    spreads += [part for device in measured for one in device.beside.values() for part in one.spread]
    most = max(spreads, default=0)
    words = "the devices' figures as they were measured" + (f", ± {most:.0%} or less" if most else "")
    if all(device.beside for device in measured):
        return words
    return f"{words}; what operations take beside FLOP and bytes was not measured and counts as 0 (plait probe does)"


def _note(name: str | None) -> str:
    if name is None:
        return "the devices' figures as they are"
    if name == PLAIN or name not in profile_names():
        plain = profile_named(PLAIN)
        shares = f"{plain.matrix_share:.0%} of FLOP/s and {plain.memory_share:.0%} of memory bandwidth assumed"
        return shares if name == PLAIN else f"no profile {name!r}, {shares}"
    fitted = profile_named(name).calibrated_on
    if name in _GENERATING:
        return f"profile {name!r}, its memory's bandwidth fitted on {fitted}"
    return f"profile {name!r}, fitted on training ({fitted})"
