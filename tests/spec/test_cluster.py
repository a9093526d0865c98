from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.errors import SpecError
from plait.spec.cluster import Cluster, Device, Host, Link
from plait.spec.cluster_file import cluster_from_toml, cluster_to_toml, read_cluster

TWO = """
[[hosts]]
name = "desk"

[[hosts]]
name = "laptop"

[[devices]]
name = "desk-cpu"
host = "desk"
memory_gib = 32
gflops = { float32 = 450 }
memory_bandwidth_gb_per_s = 40

[[devices]]
name = "laptop-cpu"
host = "laptop"
memory_bytes = 16000000000
tflops = { float32 = 0.2, bfloat16 = 0.4 }
memory_bandwidth_bytes_per_s = 20e9

[[links]]
from = "desk"
to = "laptop"
latency_us = 120
bandwidth_gbit_per_s = 1
both_ways = true
"""
DESK = Device("desk-cpu", "desk", 32 * 2**30, {"float32": 450e9}, 40e9)
LAPTOP = Device("laptop-cpu", "laptop", 16_000_000_000, {"float32": 0.2e12, "bfloat16": 0.4e12}, 20e9)


def cluster(text: str = TWO) -> Cluster:
    return cluster_from_toml(tomllib.loads(text))


def message(old: str, new: str) -> str:
    assert old in TWO
    with pytest.raises(SpecError) as caught:
        cluster(TWO.replace(old, new))
    return str(caught.value)


def test_units() -> None:
    there, back = Link("desk", "laptop", 120e-6, 125e6), Link("laptop", "desk", 120e-6, 125e6)
    assert cluster() == Cluster((Host("desk"), Host("laptop")), (DESK, LAPTOP), (there, back))
    assert cluster().link("laptop-cpu", "desk-cpu") == back
    assert cluster().device("desk-cpu") == DESK


def test_a_device_of_its_own_goes_before_its_host() -> None:
    own = Link("desk-cpu", "laptop-cpu", 1e-6, 1e9)
    both = Cluster(cluster().hosts, cluster().devices, (*cluster().links, own))
    assert both.link("desk-cpu", "laptop-cpu") == own


def test_devices_of_one_host() -> None:
    inside = Link("desk", "desk", 1e-6, 1e9)
    pair = (DESK, Device("desk-gpu", "desk", 8 * 2**30, {"float32": 1e13}, 4e11))
    assert Cluster((Host("desk"),), pair, (inside,)).link("desk-gpu", "desk-cpu") == inside


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(TWO)
    assert read_cluster(path) == cluster()
    path.write_text("[[hosts")
    with pytest.raises(SpecError, match=r"cluster.toml is not TOML: "):
        read_cluster(path)


figures = st.floats(min_value=1e-9, max_value=1e18)


@given(st.integers(1, 4), st.data())
def test_round_trip(count: int, data: st.DataObject) -> None:
    hosts = tuple(Host(f"h{index}") for index in range(count))
    devices = tuple(
        Device(
            f"d{index}",
            f"h{index}",
            data.draw(st.integers(1, 2**50)),
            data.draw(st.dictionaries(st.sampled_from(["float32", "bfloat16", "int8"]), figures, min_size=1)),
            data.draw(figures),
        )
        for index in range(count)
    )
    links = tuple(
        Link(source.name, target.name, data.draw(figures), data.draw(figures))
        for source in devices
        for target in devices
        if source != target
    )
    made = Cluster(hosts, devices, links)
    assert cluster_from_toml(tomllib.loads(cluster_to_toml(made))) == made


ONE_FAULT = [
    ("memory_gib = 32", "memory_gb = 0", "devices.0.memory_gb is 0: input should be greater than 0"),
    ("memory_gib = 32", "memory_gib = inf", "devices.0.memory_gib is inf: input should be a finite number"),
    ("memory_gib = 32", "memry_gib = 32", "unknown key 'devices.0.memry_gib': did you mean 'memory_gib'?"),
    ("gflops = { float32 = 450 }", "gflops = {}", None),
    (
        "gflops = { float32 = 450 }",
        "gflops = { float32 = -1 }",
        "devices.0.gflops.float32 is -1: input should be greater than 0",
    ),
    (
        "gflops = { float32 = 450 }",
        "gflops = { bfloat = 450 }",
        "devices.0: unknown dtype 'bfloat': did you mean 'bfloat16'?",
    ),
    (
        "memory_gib = 32",
        "",
        "devices.0: it needs exactly one of memory_bytes, memory_gib, memory_gb; given: none",
    ),
    (
        "latency_us = 120",
        "latency_us = 120\nlatency_s = 1",
        "links.0: it needs exactly one of latency_s, latency_ms, latency_us; given: latency_s and latency_us",
    ),
    ("latency_us = 120", "latency_us = -1", "links.0.latency_us is -1: input should be greater than or equal to 0"),
    ('from = "desk"', "", "key 'links.0.from' is missing"),
    ("[[links]]", "[[linkss]]", "unknown key 'linkss': did you mean 'links'?"),
]


@pytest.mark.parametrize(("old", "new", "problem"), ONE_FAULT)
def test_faults_of_the_file(old: str, new: str, problem: str | None) -> None:
    problem = problem or "devices.0.gflops is {}: dictionary should have at least 1 item after validation, not 0"
    assert message(old, new) == f"cluster has a fault:\n  {problem}"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            "both_ways = true",
            "",
            "1 of 2 directed links are missing: laptop-cpu -> desk-cpu; "
            "a link has one direction, unless it says both_ways = true",
        ),
        (
            TWO[TWO.index("[[links]]") :],
            "",
            "2 of 2 directed links are missing: desk-cpu -> laptop-cpu, laptop-cpu -> desk-cpu",
        ),
        ('to = "laptop"', 'to = "lapto"', "link desk -> lapto ends at unknown 'lapto'; did you mean 'laptop'?"),
        (
            'host = "laptop"',
            'host = "lap top"',
            "device 'laptop-cpu' is on unknown host 'lap top'; did you mean 'laptop'?",
        ),
        (
            'name = "laptop-cpu"',
            'name = "desk"',
            "'desk' names more than one host or device; a link could mean either",
        ),
        (
            "both_ways = true",
            'both_ways = true\n[[links]]\nfrom = "desk"\nto = "laptop"\nlatency_s = 0\nbandwidth_gb_per_s = 1',
            "link desk -> laptop is there more than once",
        ),
    ],
)
def test_names_that_do_not_fit(old: str, new: str, problem: str) -> None:
    assert message(old, new) == f"cluster: {problem}"


def test_many_missing_links_are_cut() -> None:
    hosts = tuple(Host(f"h{index}") for index in range(6))
    devices: Any = tuple(Device(f"d{index}", f"h{index}", 1, {"float32": 1.0}, 1.0) for index in range(6))
    with pytest.raises(SpecError, match=r"^30 of 30 directed links are missing: d0 -> d1, .* and 10 more$"):
        Cluster(hosts, devices, ())


def test_an_unknown_device() -> None:
    with pytest.raises(SpecError) as caught:
        cluster().link("desk-cpu", "laptop-gpu")
    assert str(caught.value) == "no device 'laptop-gpu' in the cluster; did you mean 'laptop-cpu'?"
