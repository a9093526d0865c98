"""Cluster files: hosts, devices and what joins them, as TOML.

    [[hosts]]
    name = "desk"

    [[devices]]
    name = "desk-cpu"
    host = "desk"
    memory_gib = 32                    # or memory_bytes, memory_gb
    gflops = { float32 = 450 }         # or flops, tflops: for each dtype
    memory_bandwidth_gb_per_s = 40     # or memory_bandwidth_bytes_per_s

    [[devices]]
    name = "desk-gpu"
    host = "desk"
    preset = "rtx-4090"                # figures from the presets; those that stand here go before

    [[links]]
    from = "desk"                      # a device, or a host: then for all its devices
    to = "desk"                        # the same host: joins the devices in it
    latency_us = 10                    # or latency_s, latency_ms
    bandwidth_gb_per_s = 25            # or bandwidth_bytes_per_s, _mb_per_s, _mbit_per_s, _gbit_per_s; or a preset

A link has a direction, and every ordered pair of devices needs one; `both_ways = true` writes both at once. Many equal
hosts are written at once, and a network joins all pairs that no link joins:

    [[hosts]]
    name = "node"                      # node-0 to node-47, with devices node-0.0 to node-47.7
    count = 48
    devices = 8
    preset = "a100-80gb"               # or figures, as of a device

    [network]
    within_host = { preset = "nvlink3" }
    between_hosts = { latency_us = 5, bandwidth_gbit_per_s = 200, host_bandwidth_gbit_per_s = 1600 }

Where figures were measured (`plait probe`) their spread may stand beside them, as a part of the figure:

    spread = { float32 = 0.02, memory_bandwidth = 0.03 }       # of a device
    spread = { latency = 0.1, bandwidth = 0.02 }               # of a link

and so may what a device's operations take beside them, for each dtype (decision 0028); without it that is 0:

    [devices.beside.float32]
    operation_us = 24                  # every operation; or operation_s, operation_ms
    weight_reads = 2.1                 # a product of many rows before its FLOP, in reads of its weights
    activation_bandwidth_gb_per_s = 5  # norms and the like; or activation_bandwidth_bytes_per_s
    spread = { operation = 0.1, weight_reads = 0.05, activation_bandwidth = 0.1 }
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from pydantic import ConfigDict, Field, model_validator

from plait.errors import SpecError
from plait.spec.cluster import Beside, Cluster, Device, Host, Link, Network, Wire
from plait.spec.figures import DeviceFigures, Name, NetworkWireFigures, WireFigures
from plait.spec.preset_files import device_figures, wire_figures
from plait.spec.tables import Table, read_toml, validated

_Count = Annotated[int, Field(ge=1, le=1_000_000)]

PLAIN_PROFILE = "plain"
"""The profile (`costs.profiles`) of a device preset that names none: shares of its data sheet, not calibrated."""

MEASURED_PROFILE = "measured"
"""The profile of a device whose figures `plait probe` measured."""


class _Device(DeviceFigures):
    """Figures of a device, its own or a preset's."""

    preset: Name | None = None

    @model_validator(mode="after")
    def _has_figures(self) -> _Device:
        self.require_figures(all_needed=self.preset is None)
        self._require_measured()
        return self

    def _require_measured(self) -> None:
        """Errors: ValueError where a profile says already what operations take beside."""
        profile = self.profile or self.base().profile or self._usual_profile
        if self.beside and profile not in (None, MEASURED_PROFILE):
            raise ValueError(
                f"beside goes with measured figures alone, and profile {profile!r} says what operations take already: "
                f'leave beside out, or write profile = "{MEASURED_PROFILE}"'
            )

    def base(self) -> DeviceFigures:
        """The preset's figures. Errors: SpecError, for a preset never heard of."""
        return DeviceFigures() if self.preset is None else device_figures(self.preset)

    def device(self, name: str, host: str) -> Device:
        """A device with these figures."""
        base = self.base()
        memory, bandwidth = self.memory or base.memory, self.memory_bandwidth or base.memory_bandwidth
        assert memory is not None
        assert bandwidth is not None
        speeds = {**base.speeds, **self.speeds}
        kind = self.kind or base.kind or "cpu"
        profile = self.profile or base.profile or self._usual_profile
        beside = {dtype: one.beside for dtype, one in (self.beside or {}).items()}
        return Device(name, host, memory, speeds, bandwidth, profile, kind, self.spread or {}, beside)

    @property
    def _usual_profile(self) -> str | None:
        """The plain one for data-sheet figures, which no program reaches; none where a person gave all speeds."""
        own = bool(self.speeds) and self.memory_bandwidth is not None
        return None if self.preset is None or own else PLAIN_PROFILE


class _DeviceTable(_Device):
    """``[[devices]]``."""

    name: Name
    host: Name


class _HostTable(_Device):
    """``[[hosts]]``: a name, or `count` hosts of `devices` equal devices each."""

    name: Name
    count: _Count | None = None
    devices: _Count | None = None

    @model_validator(mode="after")
    def _has_figures(self) -> _HostTable:
        self.require_figures(all_needed=self.devices is not None and self.preset is None)
        self._require_measured()
        if self.devices is None and (self.speeds or self.memory or self.preset):
            raise ValueError("it has a device's figures, so it needs devices = 1, or how many there are")
        return self

    def names(self) -> list[str]:
        """Of the hosts."""
        return [self.name] if self.count is None else [f"{self.name}-{index}" for index in range(self.count)]


class _LinkTable(WireFigures):
    """``[[links]]``."""

    model_config = ConfigDict(populate_by_name=False)

    source: Name = Field(alias="from")
    target: Name = Field(alias="to")
    both_ways: bool = False
    preset: Name | None = None

    @model_validator(mode="after")
    def _has_figures(self) -> _LinkTable:
        _require_wire(self, self.preset)
        return self

    def links(self) -> Iterator[Link]:
        """The link, and the one back where it goes both ways."""
        latency_s, bandwidth = _wire(self, self.preset)
        yield Link(self.source, self.target, latency_s, bandwidth, self.spreads)
        if self.both_ways and self.source != self.target:
            yield Link(self.target, self.source, latency_s, bandwidth, self.spreads)


class _WireTable(NetworkWireFigures):
    """A wire of ``[network]``."""

    preset: Name | None = None

    @model_validator(mode="after")
    def _has_figures(self) -> _WireTable:
        _require_wire(self, self.preset)
        return self

    def wire(self) -> Wire:
        """The wire."""
        return Wire(*_wire(self, self.preset), self.host_bandwidth, self.spreads)


class _NetworkTable(Table):
    """``[network]``. A wire that nothing uses may be absent: it is then that of the other kind."""

    within_host: _WireTable | None = None
    between_hosts: _WireTable | None = None

    @model_validator(mode="after")
    def _has_a_wire(self) -> _NetworkTable:
        if self.within_host is None and self.between_hosts is None:
            raise ValueError("it needs within_host, between_hosts or both")
        return self


class ClusterTable(Table):
    """The whole file."""

    hosts: list[_HostTable] = Field(min_length=1)
    devices: list[_DeviceTable] = Field(default=[])
    links: list[_LinkTable] = Field(default=[])
    network: _NetworkTable | None = None

    @model_validator(mode="after")
    def _has_devices(self) -> ClusterTable:
        if not self.devices and not any(host.devices for host in self.hosts):
            raise ValueError("it has no devices: write [[devices]], or devices = 1 and their figures in [[hosts]]")
        return self


def device_from_preset(preset: str, name: str, host: str) -> Device:
    """A device with a preset's figures. Errors: SpecError, with the nearest known preset."""
    device_figures(preset)
    return _Device(preset=preset).device(name, host)


def read_cluster(path: Path) -> Cluster:
    """The cluster in a TOML file. Raises SpecError that names every fault and its place."""
    what = "cluster file"
    return cluster_from_toml(read_toml(path, what, SpecError), f"{what} {path}")


def cluster_from_toml(values: Mapping[str, Any], what: str = "cluster") -> Cluster:
    """The cluster in a parsed TOML table; `what` begins every error."""
    table = validated(ClusterTable, values, what, SpecError)
    try:
        return _cluster(table)
    except SpecError as error:
        raise SpecError(f"{what}: {error}") from None


def _cluster(table: ClusterTable) -> Cluster:
    hosts = [name for each in table.hosts for name in each.names()]
    devices = [device for each in table.hosts for device in _host_devices(each)]
    devices += [each.device(each.name, each.host) for each in table.devices]
    links = tuple(link for each in table.links for link in each.links())
    return Cluster(tuple(map(Host, hosts)), tuple(devices), links, _network(table.network, devices))


def _host_devices(table: _HostTable) -> Iterator[Device]:
    if table.devices is None:
        return
    first = table.device("", "")
    for host in table.names():
        for index in range(table.devices):
            yield replace(first, name=f"{host}.{index}", host=host)


def _network(table: _NetworkTable | None, devices: Sequence[Device]) -> Network | None:
    if table is None:
        return None
    hosts = {device.host for device in devices}
    if table.within_host is None and len(hosts) < len(devices):
        raise SpecError("a host has several devices, so the network needs within_host beside between_hosts")
    if table.between_hosts is None and len(hosts) > 1:
        raise SpecError(f"there are {len(hosts)} hosts, so the network needs between_hosts beside within_host")
    within, between = table.within_host or table.between_hosts, table.between_hosts or table.within_host
    assert within is not None
    assert between is not None
    return Network(within.wire(), between.wire())


def _require_wire(table: WireFigures, preset: str | None) -> None:
    table.require_figures(all_needed=preset is None)
    if preset is not None:
        wire_figures(preset)


def _wire(table: WireFigures, preset: str | None) -> tuple[float, float]:
    """Latency and bandwidth, its own or the preset's."""
    base = WireFigures() if preset is None else wire_figures(preset)
    latency_s = base.latency if table.latency is None else table.latency
    bandwidth = table.bandwidth or base.bandwidth
    assert latency_s is not None
    assert bandwidth is not None
    return latency_s, bandwidth


def cluster_to_toml(cluster: Cluster) -> str:
    """The file, in SI units; reading it gives an equal cluster. Equal hosts in a row are written at once."""
    return tomli_w.dumps(cluster_table(cluster))


def cluster_table(cluster: Cluster) -> dict[str, Any]:
    """As `cluster_to_toml`, as plain values."""
    short = _hosts_at_once(cluster)
    values: dict[str, Any] = {"hosts": short or [{"name": host.name} for host in cluster.hosts]}
    if not short:
        values["devices"] = [{"name": each.name, "host": each.host, **_figures(each)} for each in cluster.devices]
    if cluster.links:
        values["links"] = [{"from": link.source, "to": link.target, **_wire_figures(link)} for link in cluster.links]
    if cluster.network is not None:
        wires = {"within_host": cluster.network.within_host, "between_hosts": cluster.network.between_hosts}
        values["network"] = {name: _wire_figures(wire, wire.host_bandwidth) for name, wire in wires.items()}
    return values


def _figures(device: Device) -> dict[str, Any]:
    values: dict[str, Any] = {
        "memory_bytes": device.memory_bytes,
        "flops": dict(device.flops),
        "memory_bandwidth_bytes_per_s": device.memory_bandwidth,
    }
    if device.profile is not None:
        values["profile"] = device.profile
    if device.spread:
        values["spread"] = dict(device.spread)
    if device.beside:
        values["beside"] = {dtype: _beside_figures(one) for dtype, one in device.beside.items()}
    return values if device.kind == "cpu" else {**values, "kind": device.kind}


def _beside_figures(one: Beside) -> dict[str, Any]:
    values: dict[str, Any] = {"operation_s": one.operation_s, "weight_reads": one.weight_reads}
    if one.activation_bandwidth is not None:
        values["activation_bandwidth_bytes_per_s"] = one.activation_bandwidth
    spread = {name: part for name, part in one.spread._asdict().items() if part}
    return {**values, "spread": spread} if spread else values


def _wire_figures(wire: Link | Wire, host_bandwidth: float | None = None) -> dict[str, Any]:
    values: dict[str, Any] = {"latency_s": wire.latency_s, "bandwidth_bytes_per_s": wire.bandwidth}
    if host_bandwidth is not None:
        values["host_bandwidth_bytes_per_s"] = host_bandwidth
    spread = {name: part for name, part in wire.spread._asdict().items() if part}
    return {**values, "spread": spread} if spread else values


def _hosts_at_once(cluster: Cluster) -> list[dict[str, Any]]:
    """Host tables that say all devices; empty where names, order or figures do not allow it."""
    by_host = [(name, list(devices)) for name, devices in groupby(cluster.devices, key=lambda device: device.host)]
    if [name for name, _ in by_host] != [host.name for host in cluster.hosts]:
        return []
    tables: list[dict[str, Any]] = []
    for name, devices in by_host:
        figures = _figures(devices[0])
        if any(device.name != f"{name}.{index}" or _figures(device) != figures for index, device in enumerate(devices)):
            return []
        base, _, number = name.rpartition("-")
        one = {"devices": len(devices), **figures}
        if tables and _continues(tables[-1], base, number, one):
            tables[-1]["count"] += 1
        elif base and number == "0":
            tables.append({"name": base, "count": 1, **one})
        else:
            tables.append({"name": name, **one})
    return tables


def _continues(table: Mapping[str, Any], base: str, number: str, one: Mapping[str, Any]) -> bool:
    """The host is the next of the table's."""
    same = all(table.get(key) == value for key, value in one.items()) and len(table) == len(one) + 2
    return same and table["name"] == base and number == str(table.get("count"))
