"""Cluster files: presets, hosts by the dozen, networks; and whole messages for what cannot be."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.errors import SpecError
from plait.spec.cluster import (
    Beside,
    BesideSpread,
    Cluster,
    Device,
    EqualMachine,
    Host,
    Link,
    Network,
    Wire,
    WireSpread,
    equal_machine,
    first_devices,
)
from plait.spec.cluster_file import cluster_from_toml, cluster_to_toml
from plait.spec.presets import device_preset
from plait.spec.weakest import weakest_machine

DOZENS = """
[[hosts]]
name = "node"
count = 48
devices = 8
preset = "a100-80gb"

[network]
within_host = { preset = "nvlink3" }
between_hosts = { latency_us = 5, bandwidth_gbit_per_s = 200, host_bandwidth_gbit_per_s = 1600 }
"""
HOME = """
[[hosts]]
name = "desk"

[[hosts]]
name = "laptop"

[[devices]]
name = "gpu"
host = "desk"
preset = "rtx-4090"
memory_gib = 20
tflops = { bfloat16 = 150 }

[[devices]]
name = "cpu"
host = "laptop"
memory_gib = 16
gflops = { float32 = 300 }
memory_bandwidth_gb_per_s = 40
profile = "never-heard-of"

[[links]]
from = "desk"
to = "laptop"
preset = "ethernet-1g"
latency_us = 250
both_ways = true
"""


def cluster(text: str) -> Cluster:
    return cluster_from_toml(tomllib.loads(text))


def message(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        cluster(text)
    return str(caught.value)


def changed(text: str, old: str, new: str) -> str:
    assert old in text
    return message(text.replace(old, new, 1))


def test_hosts_by_the_dozen() -> None:
    made = cluster(DOZENS)
    assert [host.name for host in made.hosts] == [f"node-{index}" for index in range(48)]
    assert len(made.devices) == 384
    assert made.devices[9] == device_preset("a100-80gb", "node-1.1", "node-1")
    network = Network(Wire(3.4e-6, 300e9), Wire(5e-6, 25e9, 200e9))
    assert equal_machine(made) == EqualMachine(made.devices[0], 8, 48, network)
    assert made.link("node-0.0", "node-0.7").bandwidth == 300e9
    assert made.link("node-0.0", "node-1.0") == Link("node-0.0", "node-1.0", 5e-6, 25e9)


def test_figures_go_before_the_preset() -> None:
    made = cluster(HOME)
    gpu, cpu = made.devices
    known = device_preset("rtx-4090")
    assert gpu.memory_bytes == 20 * 2**30
    assert dict(gpu.flops) == {**known.flops, "bfloat16": 150e12}
    assert (gpu.memory_bandwidth, gpu.kind) == (1008e9, "cuda")
    assert made.link("gpu", "cpu") == Link("desk", "laptop", 250e-6, 0.9415e9 / 8)
    assert (cpu.profile, cpu.kind) == ("never-heard-of", "cpu")  # works from its own figures


def test_one_host_needs_no_wire_between_hosts() -> None:
    text = DOZENS.replace("count = 48\n", "")
    one = cluster(text[: text.index("between_hosts")])
    assert equal_machine(one) == EqualMachine(one.devices[0], 8, 1, Network(Wire(3.4e-6, 300e9), Wire(3.4e-6, 300e9)))


MEASURED = HOME.replace(
    'profile = "never-heard-of"\n',
    """profile = "measured"
[devices.beside.float32]
operation_us = 24
weight_reads = 2.1
activation_bandwidth_gb_per_s = 5
spread = { operation = 0.1, weight_reads = 0.05 }
[devices.beside.bfloat16]
operation_s = 3e-5
""",
)
BESIDE = "cluster has a fault:\n  devices.1.beside.float32"
FAULTS = [
    (
        MEASURED,
        "operation_us = 24",
        "operation_us = -24",
        f"{BESIDE}.operation_us is -24: input should be greater than or equal to 0",
    ),
    (
        MEASURED,
        "operation_us = 24",
        'operation_us = "24 µs"',
        f"{BESIDE}.operation_us is '24 µs': input should be a valid number, unable to parse string as a number",
    ),
    (
        MEASURED,
        "operation_us = 24",
        "operation_us = nan",
        f"{BESIDE}.operation_us is nan: input should be a finite number",
    ),
    (
        MEASURED,
        "weight_reads = 2.1",
        "weight_reads = inf",
        f"{BESIDE}.weight_reads is inf: input should be a finite number",
    ),
    (
        MEASURED,
        "activation_bandwidth_gb_per_s = 5",
        "activation_bandwidth_gb_per_s = 0",
        f"{BESIDE}.activation_bandwidth_gb_per_s is 0: input should be greater than 0",
    ),
    (
        MEASURED,
        "operation_us = 24",
        "operation_us = 24\noperation_s = 1",
        f"{BESIDE}: it needs exactly one of operation_s, operation_ms, operation_us; "
        "given: operation_s and operation_us",
    ),
    (
        MEASURED,
        "{ operation = 0.1",
        "{ operations = 0.1",
        f"{BESIDE}: spread of unknown figure 'operations': did you mean 'operation'?",
    ),
    (
        MEASURED,
        "weight_reads = 2.1",
        "weights_read = 2.1",
        "cluster has a fault:\n  unknown key 'devices.1.beside.float32.weights_read': did you mean 'weight_reads'?",
    ),
    (
        MEASURED,
        "beside.float32",
        "beside.float23",
        "cluster has a fault:\n  devices.1: unknown dtype 'float23': did you mean 'float32'?",
    ),
    (
        MEASURED,
        'profile = "measured"',
        'profile = "a100"',
        "cluster has a fault:\n  devices.1: beside goes with measured figures alone, and profile 'a100' says what "
        'operations take already: leave beside out, or write profile = "measured"',
    ),
    (
        DOZENS,
        'preset = "a100-80gb"',
        'preset = "a100-90gb"',
        "cluster has a fault:\n  hosts.0: unknown device preset 'a100-90gb': did you mean 'a100-80gb'? "
        "(plait plan --list shows all of them)",
    ),
    (
        DOZENS,
        'preset = "nvlink3"',
        'preset = "nvlink33"',
        "cluster has a fault:\n  network.within_host: unknown link preset 'nvlink33': did you mean 'nvlink3'? "
        "(plait plan --list shows all of them)",
    ),
    (
        DOZENS,
        "devices = 8\n",
        "",
        "cluster has a fault:\n  hosts.0: it has a device's figures, so it needs devices = 1, or how many there are",
    ),
    (
        DOZENS,
        "count = 48",
        "count = 0",
        "cluster has a fault:\n  hosts.0.count is 0: input should be greater than or equal to 1",
    ),
    (
        HOME,
        "gflops = { float32 = 300 }",
        "gflops = { float32 = 300 }\nspread = { float23 = 0.1 }",
        "cluster has a fault:\n  devices.1: spread of unknown figure 'float23': did you mean 'float32'?",
    ),
    (
        HOME,
        "gflops = { float32 = 300 }",
        "gflops = { float32 = 300 }\nspread = { float32 = -0.1 }",
        "cluster has a fault:\n  devices.1.spread.float32 is -0.1: input should be greater than or equal to 0",
    ),
    (
        HOME,
        "latency_us = 250",
        "latency_us = 250\nspread = { latancy = 0.1 }",
        "cluster has a fault:\n  links.0: spread of unknown figure 'latancy': did you mean 'latency'?",
    ),
    (
        DOZENS,
        "count = 48",
        "counts = 48",
        "cluster has a fault:\n  unknown key 'hosts.0.counts': did you mean 'count'?",
    ),
    (
        DOZENS,
        "latency_us = 5",
        "latency_us = -5",
        "cluster has a fault:\n  network.between_hosts.latency_us is -5: input should be greater than or equal to 0",
    ),
    (
        DOZENS,
        "host_bandwidth_gbit_per_s = 1600",
        "host_bandwidth_gbit_per_s = 0",
        "cluster has a fault:\n  network.between_hosts.host_bandwidth_gbit_per_s is 0: input should be greater than 0",
    ),
    (
        DOZENS,
        "latency_us = 5, ",
        "",
        "cluster has a fault:\n  network.between_hosts: it needs exactly one of latency_s, latency_ms, latency_us; "
        "given: none",
    ),
    (
        DOZENS,
        "within_host = ",
        "within_hosts = ",
        "cluster has a fault:\n  unknown key 'network.within_hosts': did you mean 'within_host'?",
    ),
    (
        DOZENS,
        'within_host = { preset = "nvlink3" }\n',
        "",
        "cluster: a host has several devices, so the network needs within_host beside between_hosts",
    ),
    (
        DOZENS,
        DOZENS[DOZENS.index("between_hosts") :],
        "",
        "cluster: there are 48 hosts, so the network needs between_hosts beside within_host",
    ),
    (
        DOZENS,
        DOZENS[DOZENS.index("within_host") :],
        "",
        "cluster has a fault:\n  network: it needs within_host, between_hosts or both",
    ),
    (
        HOME,
        HOME[HOME.index("[[devices]]") :],
        "",
        "cluster has a fault:\n  it has no devices: write [[devices]], or devices = 1 and their figures in [[hosts]]",
    ),
    (
        HOME,
        "memory_gib = 20",
        "memory_gib = 20\nmemory_gb = 24",
        "cluster has a fault:\n  devices.0: it needs exactly one of memory_bytes, memory_gib, memory_gb; "
        "given: memory_gib and memory_gb",
    ),
    (
        HOME,
        "memory_gib = 16\n",
        "",
        "cluster has a fault:\n  devices.1: it needs exactly one of memory_bytes, memory_gib, memory_gb; given: none",
    ),
    (
        HOME,
        "both_ways = true",
        "",
        "cluster: 1 of 2 directed links are missing: cpu -> gpu; a link has one direction, unless it says "
        "both_ways = true",
    ),
]


@pytest.mark.parametrize(("text", "old", "new", "problem"), FAULTS)
def test_faults(text: str, old: str, new: str, problem: str) -> None:
    assert changed(text, old, new) == problem


def test_every_fault_at_once() -> None:
    text = HOME.replace("memory_gib = 16", "memory_gib = 0").replace("rtx-4090", "rtx-4091").replace("250", "-1")
    assert message(text).splitlines() == [
        "cluster has 3 faults:",
        "  devices.0: unknown device preset 'rtx-4091': did you mean 'rtx-4090'? (plait plan --list shows all of them)",
        "  devices.1.memory_gib is 0: input should be greater than 0",
        "  links.0.latency_us is -1: input should be greater than or equal to 0",
    ]


def test_names_among_thousands() -> None:
    many = cluster(DOZENS)
    with pytest.raises(SpecError) as caught:
        many.device("node-11.9")
    assert str(caught.value) == "no device 'node-11.9' in the cluster; did you mean 'node-11.7'?"
    with pytest.raises(SpecError) as caught:
        many.device("gpu")
    listed = ", ".join(f"node-{index // 8}.{index % 8}" for index in range(20))
    assert str(caught.value) == f"no device 'gpu' in the cluster; known: {listed} and 364 more"


figures = st.floats(min_value=1e-9, max_value=1e18)
parts = st.floats(min_value=1e-6, max_value=3)
spreads = st.one_of(st.just(WireSpread()), st.builds(WireSpread, parts, parts), parts.map(WireSpread))
some_beside = st.builds(
    Beside, figures, figures, st.one_of(st.none(), figures), st.builds(BesideSpread, parts, parts, parts)
)
devices = st.builds(
    lambda memory, flops, bandwidth, profile, kind, spread, beside: Device(
        "",
        "",
        memory,
        flops,
        bandwidth,
        "measured" if beside else profile,
        kind,
        dict.fromkeys((*flops, "memory_bandwidth"), spread or 0),
        beside,
    ),
    st.integers(1, 2**50),
    st.dictionaries(st.sampled_from(["float32", "bfloat16", "float8"]), figures, min_size=1),
    figures,
    st.sampled_from([None, "a100", "raspberry-pi-5"]),
    st.sampled_from(["cpu", "cuda", "mps"]),
    st.one_of(st.none(), parts),
    st.dictionaries(st.sampled_from(["float32", "bfloat16"]), some_beside),
)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Runs of equal hosts, named as the file names them or otherwise, with a network or links or both."""
    hosts, made = [], []
    for run in range(draw(st.integers(1, 3))):
        base, count, size = (
            draw(st.sampled_from([f"h{run}", f"a-{run}"])),
            draw(st.integers(1, 3)),
            draw(st.integers(1, 3)),
        )
        figures_of_run, dot = draw(devices), draw(st.sampled_from([".", ".", ":"]))
        for number in range(count):
            host = f"{base}-{number}" if draw(st.booleans()) else f"{base}{number}"
            hosts.append(Host(host))
            f = figures_of_run
            made += [replace(f, name=f"{host}{dot}{i}", host=host) for i in range(size)]
    wires = st.builds(Wire, figures, figures, st.one_of(st.none(), figures), spreads)
    network = Network(draw(wires), draw(wires)) if draw(st.booleans()) else None
    pairs = [(one.name, other.name) for one in made for other in made if one != other]
    kept = pairs if network is None else pairs[: draw(st.integers(0, 2))]
    links = tuple(Link(*pair, draw(figures), draw(figures), draw(spreads)) for pair in kept)
    order = draw(st.permutations(made)) if draw(st.booleans()) else made
    return Cluster(tuple(hosts), tuple(order), links, network)


@given(clusters())
def test_round_trip(made: Cluster) -> None:
    assert cluster_from_toml(tomllib.loads(cluster_to_toml(made))) == made


def test_spreads() -> None:
    text = HOME.replace("latency_us = 250", "latency_us = 250\nspread = { latency = 0.1 }").replace(
        'profile = "never-heard-of"', "spread = { float32 = 0.02, memory_bandwidth = 0.03 }"
    )
    made = cluster(text)
    assert dict(made.device("cpu").spread) == {"float32": 0.02, "memory_bandwidth": 0.03}
    assert dict(made.device("gpu").spread) == {}
    assert made.link("cpu", "gpu").spread == WireSpread(latency=0.1) == made.link("gpu", "cpu").spread


def test_the_weakest_machine_has_the_largest_spread() -> None:
    first = Device("a", "h", 1, {"float32": 2.0}, 1.0, spread={"float32": 0.1})
    both = Cluster((Host("h"),), (first, replace(first, name="b", spread={"float32": 0.3})), (), ONE_WIRE)
    weakest = weakest_machine(both)
    assert weakest is not None
    assert dict(weakest.device.spread) == {"float32": 0.3}


def test_the_weakest_machine_takes_most_beside() -> None:
    one = Beside(2e-5, 0.5, 3e9, BesideSpread(0.1, 0.2, 0.3))
    other = Beside(1e-5, 2.0, None, BesideSpread(0.2, 0.1, 0.0))
    first = Device("a", "h", 1, {"float32": 2.0}, 1.0, beside={"float32": one})
    both = Cluster((Host("h"),), (first, replace(first, name="b", beside={"float32": other})), (), ONE_WIRE)
    weakest = weakest_machine(both)
    assert weakest is not None
    assert dict(weakest.device.beside) == {"float32": Beside(2e-5, 2.0, 3e9, BesideSpread(0.2, 0.2, 0.3))}


def test_what_operations_take_beside() -> None:
    """In any unit; a figure that is absent is 0, and so is all of it in a file that says nothing."""
    made = cluster(MEASURED)
    assert dict(made.device("cpu").beside) == {
        "float32": Beside(2.4e-5, 2.1, 5e9, BesideSpread(0.1, 0.05, 0.0)),
        "bfloat16": Beside(operation_s=3e-5),
    }
    assert dict(cluster(HOME).device("cpu").beside) == {}


def test_a_difference_in_what_operations_take_is_seen() -> None:
    pair = tuple(Device(name, "h", 1, {"float32": 1.0}, 1.0) for name in "ab")
    slower = replace(pair[1], beside={"float32": Beside(1e-5)})
    assert equal_machine(Cluster((Host("h"),), pair, (), ONE_WIRE)) is not None
    assert equal_machine(Cluster((Host("h"),), (pair[0], slower), (), ONE_WIRE)) is None


ONE_WIRE = Network(Wire(1.0, 1.0), Wire(1.0, 1.0))


def test_many_hosts_make_a_short_file() -> None:
    assert len(cluster_to_toml(cluster(DOZENS.replace("48", "2048")))) < 1000


def test_equal_machine_sees_every_difference() -> None:
    made = cluster(DOZENS.replace("count = 48", "count = 2"))
    assert equal_machine(made) is not None
    first, *rest = made.devices
    slower = Device(first.name, first.host, first.memory_bytes, first.flops, 1e12, first.profile, first.kind)
    assert equal_machine(Cluster(made.hosts, (slower, *rest), (), made.network)) is None
    assert equal_machine(Cluster(made.hosts, made.devices[:-1], (), made.network)) is None  # a smaller host
    assert equal_machine(Cluster((*made.hosts, Host("spare")), made.devices, (), made.network)) is None
    own = Link("node-0.0", "node-0.1", 1e-6, 1e9)
    assert equal_machine(Cluster(made.hosts, made.devices, (own,), made.network)) is None


def test_equal_links_are_a_network() -> None:
    hosts = (Host("a"), Host("b"))
    pairs = tuple(Device(f"{host.name}{i}", host.name, 1, {"float32": 1.0}, 1.0) for host in hosts for i in range(2))
    links = (Link("a", "a", 1e-6, 1e9), Link("b", "b", 1e-6, 1e9), Link("a", "b", 1e-3, 1e6), Link("b", "a", 1e-3, 1e6))
    found = equal_machine(Cluster(hosts, pairs, links))
    assert found == EqualMachine(pairs[0], 2, 2, Network(Wire(1e-6, 1e9), Wire(1e-3, 1e6, 1e6)))  # shared by the host
    assert equal_machine(Cluster(hosts, pairs, (*links[:3], Link("b", "a", 1e-3, 2e6)))) is None
    lone = equal_machine(Cluster(hosts[:1], pairs[:1]))
    assert lone is not None
    assert (lone.devices_per_host, lone.hosts) == (1, 1)


def test_the_first_devices() -> None:
    made = first_devices(cluster(HOME), 1)
    assert made == Cluster((Host("desk"),), cluster(HOME).devices[:1])
    assert len(first_devices(cluster(DOZENS), 12).hosts) == 2
    for count, problem in (
        (3, "--gpus 3 was asked for, but the cluster has 2 devices: 1 too many"),
        (0, "--gpus 0 was asked for, but there must be at least 1"),
    ):
        with pytest.raises(SpecError) as caught:
            first_devices(cluster(HOME), count)
        assert str(caught.value) == problem
