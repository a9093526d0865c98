"""Figures of devices and links as people write them: each in one of several units, the unit in the key's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field, model_validator

from plait.errors import nearest
from plait.spec.cluster import Beside, BesideSpread, WireSpread
from plait.spec.tables import Table

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=False)]
Name = Annotated[str, Field(min_length=1)]
Part = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=False)]
"""A spread: a part of the figure that it is of. Above 1 where a figure varies by more than itself."""

MEMORY_BANDWIDTH = "memory_bandwidth"
"""The key of its spread."""

_DTYPES = ("float64", "float32", "tf32", "bfloat16", "float16", "float8", "int8", "int4")
_MEMORY = {"memory_bytes": 1.0, "memory_gib": 2.0**30, "memory_gb": 1e9}
_SPEEDS = {"flops": 1.0, "gflops": 1e9, "tflops": 1e12}
_MEMORY_BANDWIDTH = {"memory_bandwidth_bytes_per_s": 1.0, "memory_bandwidth_gb_per_s": 1e9}
_OPERATION = {"operation_s": 1.0, "operation_ms": 1e3, "operation_us": 1e6}  # of them a second has
_ACTIVATION_BANDWIDTH = {"activation_bandwidth_bytes_per_s": 1.0, "activation_bandwidth_gb_per_s": 1e9}
_LATENCY = {"latency_s": 1.0, "latency_ms": 1e3, "latency_us": 1e6}  # of them a second has
_BANDWIDTH = {
    "bandwidth_bytes_per_s": 1.0,
    "bandwidth_mb_per_s": 1e6,
    "bandwidth_gb_per_s": 1e9,
    "bandwidth_mbit_per_s": 1e6 / 8,
    "bandwidth_gbit_per_s": 1e9 / 8,
}
_HOST_BANDWIDTH = {f"host_{key}": factor for key, factor in _BANDWIDTH.items()}


class BesideFigures(Table):
    """What operations take in a dtype beside their FLOP and bytes, as a probe measures it; what is absent is 0."""

    operation_s: NotNegative | None = None
    operation_ms: NotNegative | None = None
    operation_us: NotNegative | None = None
    weight_reads: NotNegative = 0.0
    activation_bandwidth_bytes_per_s: Positive | None = None
    activation_bandwidth_gb_per_s: Positive | None = None
    spread: dict[str, Part] | None = None

    @model_validator(mode="after")
    def _once_each(self) -> BesideFigures:
        for units in (_OPERATION, _ACTIVATION_BANDWIDTH):
            require_unit(self, units, needed=False)
        require_spread(self.spread, BesideSpread._fields)
        return self

    @property
    def beside(self) -> Beside:
        """The figures in SI units."""
        key = require_unit(self, _OPERATION, needed=False)
        operation_s = 0.0 if key is None else getattr(self, key) / _OPERATION[key]
        bandwidth = _figure(self, _ACTIVATION_BANDWIDTH)
        return Beside(operation_s, self.weight_reads, bandwidth, BesideSpread(**self.spread or {}))


class DeviceFigures(Table):
    """Memory, speed for each dtype, memory bandwidth; each may be absent here, and is given at most once."""

    memory_bytes: Positive | None = None
    memory_gib: Positive | None = None
    memory_gb: Positive | None = None
    flops: dict[str, Positive] | None = Field(default=None, min_length=1)
    gflops: dict[str, Positive] | None = Field(default=None, min_length=1)
    tflops: dict[str, Positive] | None = Field(default=None, min_length=1)
    memory_bandwidth_bytes_per_s: Positive | None = None
    memory_bandwidth_gb_per_s: Positive | None = None
    profile: Name | None = None
    kind: Name | None = None
    spread: dict[str, Part] | None = None
    beside: dict[str, BesideFigures] | None = None

    def require_figures(self, *, all_needed: bool) -> None:
        """Errors: ValueError where a figure is given twice, or is absent while `all_needed`."""
        for units in (_MEMORY, _SPEEDS, _MEMORY_BANDWIDTH):
            require_unit(self, units, needed=all_needed)
        for dtype in (*self.speeds, *(self.beside or ())):
            if dtype not in _DTYPES:
                raise ValueError(f"unknown dtype {dtype!r}: {nearest(dtype, _DTYPES)}")
        require_spread(self.spread, (MEMORY_BANDWIDTH, *(self.speeds or _DTYPES)))

    @property
    def memory(self) -> int | None:
        """Bytes."""
        value = _figure(self, _MEMORY)
        return None if value is None else round(value)

    @property
    def speeds(self) -> dict[str, float]:
        """FLOP/s for each dtype; empty where none is given."""
        key = require_unit(self, _SPEEDS, needed=False)
        if key is None:
            return {}
        given: Mapping[str, float] = getattr(self, key)
        return {dtype: value * _SPEEDS[key] for dtype, value in given.items()}

    @property
    def memory_bandwidth(self) -> float | None:
        """Bytes/s."""
        return _figure(self, _MEMORY_BANDWIDTH)


class WireFigures(Table):
    """Latency and bandwidth of a link or wire; each may be absent here, and is given at most once."""

    latency_s: NotNegative | None = None
    latency_ms: NotNegative | None = None
    latency_us: NotNegative | None = None
    bandwidth_bytes_per_s: Positive | None = None
    bandwidth_mb_per_s: Positive | None = None
    bandwidth_gb_per_s: Positive | None = None
    bandwidth_mbit_per_s: Positive | None = None
    bandwidth_gbit_per_s: Positive | None = None
    spread: dict[str, Part] | None = None

    def require_figures(self, *, all_needed: bool) -> None:
        """Errors: ValueError where a figure is given twice, or is absent while `all_needed`."""
        for units in (_LATENCY, _BANDWIDTH):
            require_unit(self, units, needed=all_needed)
        require_spread(self.spread, WireSpread._fields)

    @property
    def spreads(self) -> WireSpread:
        """Of latency and bandwidth; 0 where nothing is said."""
        return WireSpread(**self.spread or {})

    @property
    def latency(self) -> float | None:
        """Seconds."""
        key = require_unit(self, _LATENCY, needed=False)
        if key is None:
            return None
        value: float = getattr(self, key)
        return value / _LATENCY[key]

    @property
    def bandwidth(self) -> float | None:
        """Bytes/s."""
        return _figure(self, _BANDWIDTH)


class NetworkWireFigures(WireFigures):
    """A wire of a network: also what all devices of a host send together."""

    host_bandwidth_bytes_per_s: Positive | None = None
    host_bandwidth_mb_per_s: Positive | None = None
    host_bandwidth_gb_per_s: Positive | None = None
    host_bandwidth_mbit_per_s: Positive | None = None
    host_bandwidth_gbit_per_s: Positive | None = None

    def require_figures(self, *, all_needed: bool) -> None:
        """As of a wire; the host's bandwidth is never needed."""
        super().require_figures(all_needed=all_needed)
        require_unit(self, _HOST_BANDWIDTH, needed=False)

    @property
    def host_bandwidth(self) -> float | None:
        """Bytes/s."""
        return _figure(self, _HOST_BANDWIDTH)


def require_unit(table: Table, units: Mapping[str, float], *, needed: bool) -> str | None:
    """The one of these keys that the table has. Errors: ValueError: there are several, or none and one is needed."""
    given = [key for key in units if getattr(table, key) is not None]
    if len(given) > 1 or (needed and not given):
        found = " and ".join(given) or "none"
        raise ValueError(f"it needs exactly one of {', '.join(units)}; given: {found}")
    return given[0] if given else None


def require_spread(given: Mapping[str, float] | None, known: Sequence[str]) -> None:
    """Errors: ValueError for the spread of a figure that is not there."""
    for name in given or ():
        if name not in known:
            raise ValueError(f"spread of unknown figure {name!r}: {nearest(name, known)}")


def _figure(table: Table, units: Mapping[str, float]) -> float | None:
    key = require_unit(table, units, needed=False)
    if key is None:
        return None
    value: float = getattr(table, key)
    return value * units[key]
