"""Profiles: what real work reaches of a device's figures. A file a machine and its software, each figure with a source.

A product of matrices is cut into tiles, which the device's units compute in waves; a wave takes as long as one tile:

    seconds = (tiles / units + started) · 2 · tile rows · tile columns · (inner + inner_half) / (share · unit's FLOP/s)

so that small products, few tiles and short inner dimensions reach less of the device (NVIDIA, "Matrix Multiplication
Background User's Guide" (2020), sections 3 and 4). Everything else is bound by the memory's bandwidth, and all of it by
the host that starts one operation after another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib.resources import files
from math import ceil
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from plait.costs.operations import Operation
from plait.errors import SpecError, nearest
from plait.spec.cluster import NOTHING_BESIDE, Beside, Device
from plait.spec.tables import read_toml

T = TypeVar("T")

PLAIN = "plain"
"""The profile of a device that none is named for, or one never heard of."""

MEASURED = "measured"
"""The profile of a device whose figures are of real work already (`plait probe`): it takes them as they are."""

_FOLDER = "profile_data"

_FEW_ROWS = 32
"""Of several users' tokens: weights are laid out for them, and as many rows take no more than the weights' bytes do."""

_POSITIVE = (
    "matrix_share", "tile_rows", "tile_columns", "units", "attention_share", "fused_attention_share", "memory_share",
    "sharpness", "within_share", "between_share",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Profile:
    """Shares are of the device's or the link's figure; `_s` are seconds; `_bytes` are of a parameter.

    Products: `matrix_share`, `tile_rows`, `tile_columns`, `units`, `started` (waves), `inner_half`. Attention:
    `attention_share` where scores are stored, `fused_attention_share` where not. `memory_share`: of the memory's
    bandwidth. `operation_s`: the least that an operation takes on the device. `launch_s`: what the host takes to start
    one. `rendezvous_s`: what an exchange waits for each further rank whose host is late. `sharpness`: how sharply the
    longer of device and host decides (a p-norm's p). `within_share`, `between_share`: of links in a host and between
    hosts. `exchange_s`: the start of an exchange. `split_exchange`: reduce-scatter and all-gather of a sequence split,
    in all-reduces. `hidden_backward`: share of a backward's tensor exchanges that runs beside its weight products.
    `hidden_reduction`: share of the gradients' reduction that runs beside the last backwards. `accumulated_bytes`: what
    adding a micro-batch's weight gradients to the step's moves beside the product itself. `reduced_bytes`: of gradients
    in the reduction. `stepped_bytes`: what the optimizer moves. `micro_batch_s`: of a stage beside its layers, each
    way. `parameter_s`: the optimizer's of each tensor. `step_s`: of a step. `reduction_s`: of a reduction. `residue`:
    by schedule, the share of the time that perfect times for all actions leave out. `parted`: messages go in tp parts,
    one a rank. `error_pct`: mean of the absolute errors on rows that it was not fitted on; None: never compared.
    """

    name: str
    matrix_share: float
    tile_rows: float
    tile_columns: float
    units: float
    started: float
    inner_half: float
    attention_share: float
    fused_attention_share: float
    memory_share: float
    operation_s: float
    launch_s: float
    rendezvous_s: float
    sharpness: float
    within_share: float
    between_share: float
    exchange_s: float
    split_exchange: float
    hidden_backward: float
    hidden_reduction: float
    accumulated_bytes: float
    reduced_bytes: float
    stepped_bytes: float
    micro_batch_s: float
    parameter_s: float
    step_s: float
    reduction_s: float
    residue: Mapping[str, float]
    parted: bool
    calibrated_on: str
    error_pct: float | None
    hidden_range: tuple[int, int]
    devices_range: tuple[int, int]
    sources: Mapping[str, str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "residue", MappingProxyType(dict(self.residue)))
        object.__setattr__(self, "sources", MappingProxyType(dict(self.sources)))

        for name in _POSITIVE:
            if not getattr(self, name) > 0:
                raise SpecError(f"profile {self.name!r}: {name} is {getattr(self, name)}, but must be above 0")

    def changed(self, **figures: Any) -> Profile:
        """The same with other figures."""
        return replace(self, **figures)

    def note(self, hidden: int, devices: int, beyond: Sequence[str] = ()) -> str:
        """How far a prediction for this model width, on so many devices, is calibrated.

        `beyond`: what else of it no calibration has seen, in words.
        """
        if self.error_pct is None:
            return f"not calibrated: profile {self.name!r} was never compared with a measured run"
        sizes = (("hidden", hidden, self.hidden_range), ("devices", devices, self.devices_range))
        outside = [
            f"{what} {value} is outside {low} to {high}"
            for what, value, (low, high) in sizes
            if not low <= value <= high
        ]
        outside += [f"{words}: never compared" for words in beyond]
        if outside:
            return f"not calibrated here: profile {self.name!r} extrapolates ({', '.join(outside)})"
        return f"± {self.error_pct:.1f} % (mean absolute error of profile {self.name!r} on rows it was not fitted on)"


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """A profile on one device: seconds of operations. `flops` and `beside` of the dtype that is computed in."""

    profile: Profile
    flops: float
    bandwidth: float
    beside: Beside = NOTHING_BESIDE

    def operation_s(self, operation: Operation, *, fused: bool) -> float:
        """Seconds on the device, its host's apart."""
        profile = self.profile
        moved = operation.moved_bytes / (self.bandwidth * profile.memory_share)
        if operation.kind == "matmul":
            seconds = max(self._product_s(operation) + self._begun_s(operation, moved), moved)
        elif operation.kind == "attention" and fused:
            seconds = max(operation.flops / (self.flops * profile.fused_attention_share), moved)
        elif operation.kind == "attention":
            seconds = operation.flops / (self.flops * profile.attention_share) + moved
        else:
            seconds = operation.moved_bytes / (self.beside.activation_bandwidth or math.inf)
            seconds = max(seconds, moved)
        return seconds + profile.operation_s + self.beside.operation_s

    def _begun_s(self, operation: Operation, moved_s: float) -> float:
        """What a product of many rows takes before its FLOP: its weights are read and laid out."""
        if not self.beside.weight_reads or operation.rows <= _FEW_ROWS:
            return 0.0
        weights = operation.columns * operation.inner
        return (
            self.beside.weight_reads
            * moved_s
            * weights
            / (weights + operation.rows * (operation.columns + operation.inner))
        )

    def _product_s(self, operation: Operation) -> float:
        profile = self.profile
        rows, columns = ceil(operation.rows / profile.tile_rows), ceil(operation.columns / profile.tile_columns)
        waves = operation.times * rows * columns / profile.units + profile.started
        tile = 2 * profile.tile_rows * profile.tile_columns * (operation.inner + profile.inner_half)
        return waves * tile * profile.units / (profile.matrix_share * self.flops)

    def moved_s(self, moved_bytes: float) -> float:
        """Seconds to move so many bytes of the device's memory."""
        return moved_bytes / (self.bandwidth * self.profile.memory_share)

    def longer_s(self, device_s: float, host_s: float) -> float:
        """The longer of the two, and a little more where they are near each other: neither is always ahead."""
        if host_s <= 0 or device_s <= 0:
            return max(device_s, host_s)
        power, most = self.profile.sharpness, max(device_s, host_s)
        scaled = (device_s / most) ** power + (host_s / most) ** power
        return float(most * scaled ** (1 / power))


def profile_names() -> tuple[str, ...]:
    """The profiles that come with Plait."""
    folder = files("plait.costs") / _FOLDER
    return tuple(sorted(each.name.removesuffix(".toml") for each in folder.iterdir() if each.name.endswith(".toml")))


def profile_named(name: str) -> Profile:
    """The profile of that name. Errors: SpecError, with the nearest."""
    if name not in profile_names():
        raise SpecError(f"no profile {name!r}; {nearest(name, profile_names())}")
    return read_profile(Path(str(files("plait.costs") / _FOLDER / f"{name}.toml")))


def profile_for(device: Device) -> Profile:
    """The device's profile, or the plain one where it has none or one never heard of.

    One that says what its operations take beside, and names none, was measured.
    """
    if device.profile is None and device.beside:
        return profile_named(MEASURED)
    return profile_named(device.profile if device.profile in profile_names() else PLAIN)


def rates(device: Device, profile: Profile, dtype: str) -> DeviceRates:
    """The profile on a device. Errors: SpecError where its FLOP/s in this dtype are not known."""
    flops = _of_dtype(device.flops, dtype)
    if flops is None:
        raise SpecError(f"device {device.name!r} has no FLOP/s for {dtype}; {nearest(dtype, device.flops)}")
    return DeviceRates(profile, flops, device.memory_bandwidth, beside_of(device, dtype))


def beside_of(device: Device, dtype: str) -> Beside:
    """What the device's operations take beside in this dtype, or in the other one of 16 bits; else nothing."""
    return _of_dtype(device.beside, dtype) or NOTHING_BESIDE


def _of_dtype(given: Mapping[str, T], dtype: str) -> T | None:
    """Of the dtype, or of the other one of 16 bits."""
    others = {"bfloat16": "float16", "float16": "bfloat16"}
    return given.get(dtype, given.get(others.get(dtype, dtype)))


def read_profile(path: Path) -> Profile:
    """The profile in a TOML file: every figure is a table of `value` and `source`. Errors: SpecError."""
    values = read_toml(path, "profile", SpecError)
    known = {field.name for field in fields(Profile)} - {"sources"}
    plain: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, given in values.items():
        if name not in known:
            raise SpecError(f"profile {path}: unknown key {name!r}: {nearest(name, known)}")
        figure = given if isinstance(given, dict) and "value" in given else {"value": given, "source": ""}
        plain[name] = tuple(figure["value"]) if isinstance(figure["value"], list) else figure["value"]
        sources[name] = str(figure.get("source", ""))
    plain.setdefault("error_pct", None)
    missing = sorted(known - set(plain))
    if missing:
        raise SpecError(f"profile {path}: missing {', '.join(missing)}")
    return Profile(**plain, sources={name: source for name, source in sources.items() if source})
