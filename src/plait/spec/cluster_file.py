"""A cluster's TOML tables: each figure in one of several units, the unit in the key's name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import ConfigDict, Field, model_validator

from plait.spec.tables import Table

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=False)]
Name = Annotated[str, Field(min_length=1)]

_MEMORY = {"memory_bytes": 1.0, "memory_gib": 2.0**30, "memory_gb": 1e9}
_SPEEDS = {"flops": 1.0, "gflops": 1e9, "tflops": 1e12}
_MEMORY_BANDWIDTH = {"memory_bandwidth_bytes_per_s": 1.0, "memory_bandwidth_gb_per_s": 1e9}
_LATENCY = {"latency_s": 1.0, "latency_ms": 1e3, "latency_us": 1e6}  # of them a second has
_BANDWIDTH = {
    "bandwidth_bytes_per_s": 1.0,
    "bandwidth_mb_per_s": 1e6,
    "bandwidth_gb_per_s": 1e9,
    "bandwidth_mbit_per_s": 1e6 / 8,
    "bandwidth_gbit_per_s": 1e9 / 8,
}


class HostTable(Table):
    """``[[hosts]]``."""

    name: Name


class DeviceTable(Table):
    """``[[devices]]``."""

    name: Name
    host: Name
    memory_bytes: Positive | None = None
    memory_gib: Positive | None = None
    memory_gb: Positive | None = None
    flops: dict[str, Positive] | None = Field(default=None, min_length=1)
    gflops: dict[str, Positive] | None = Field(default=None, min_length=1)
    tflops: dict[str, Positive] | None = Field(default=None, min_length=1)
    memory_bandwidth_bytes_per_s: Positive | None = None
    memory_bandwidth_gb_per_s: Positive | None = None

    @model_validator(mode="after")
    def _one_unit_each(self) -> DeviceTable:
        for units in (_MEMORY, _SPEEDS, _MEMORY_BANDWIDTH):
            _unit(self, units)
        return self

    @property
    def memory(self) -> int:
        """Bytes."""
        return round(_figure(self, _MEMORY))

    @property
    def speeds(self) -> dict[str, float]:
        """FLOP/s for each dtype."""
        key = _unit(self, _SPEEDS)
        given: Mapping[str, float] = getattr(self, key)
        return {dtype: value * _SPEEDS[key] for dtype, value in given.items()}

    @property
    def memory_bandwidth(self) -> float:
        """Bytes/s."""
        return _figure(self, _MEMORY_BANDWIDTH)


class LinkTable(Table):
    """``[[links]]``."""

    model_config = ConfigDict(populate_by_name=False)

    source: Name = Field(alias="from")
    target: Name = Field(alias="to")
    both_ways: bool = False
    latency_s: NotNegative | None = None
    latency_ms: NotNegative | None = None
    latency_us: NotNegative | None = None
    bandwidth_bytes_per_s: Positive | None = None
    bandwidth_mb_per_s: Positive | None = None
    bandwidth_gb_per_s: Positive | None = None
    bandwidth_mbit_per_s: Positive | None = None
    bandwidth_gbit_per_s: Positive | None = None

    @model_validator(mode="after")
    def _one_unit_each(self) -> LinkTable:
        for units in (_LATENCY, _BANDWIDTH):
            _unit(self, units)
        return self

    @property
    def latency(self) -> float:
        """Seconds."""
        key = _unit(self, _LATENCY)
        value: float = getattr(self, key)
        return value / _LATENCY[key]

    @property
    def bandwidth(self) -> float:
        """Bytes/s."""
        return _figure(self, _BANDWIDTH)


class ClusterTable(Table):
    """The whole file."""

    hosts: list[HostTable] = Field(min_length=1)
    devices: list[DeviceTable] = Field(min_length=1)
    links: list[LinkTable] = Field(default=[])


def _unit(table: Table, units: Mapping[str, float]) -> str:
    """The one of these keys that the table has."""
    given = [key for key in units if getattr(table, key) is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise ValueError(f"it needs exactly one of {', '.join(units)}; given: {found}")
    return given[0]


def _figure(table: Table, units: Mapping[str, float]) -> float:
    key = _unit(table, units)
    value: float = getattr(table, key)
    return value * units[key]
