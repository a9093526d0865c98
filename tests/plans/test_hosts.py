"""Which host each rank of a plan is on."""

from __future__ import annotations

from plait.plans.hosts import on_hosts, on_this_host, rank_hosts, several_hosts
from plait.plans.layout import Layout, Stage
from plait.spec.cluster import Cluster, Device, Host, Network, Wire

DEVICES = ("left-0", "left-1", "right-0", "right-1")
CLUSTER = Cluster(
    (Host("left"), Host("right")),
    tuple(Device(name, name.partition("-")[0], 1 << 33, {"float32": 1e12}, 1e11) for name in DEVICES),
    network=Network(Wire(1e-6, 1e10), Wire(1e-3, 1e8)),
)


def layout(*hosts: str, devices: tuple[str, ...] = ()) -> Layout:
    """Stages of two ranks each."""
    stages = tuple(
        Stage((at, at + 1), (2 * at, 2 * at + 1), host=host, devices=devices[2 * at : 2 * at + 2])
        for at, host in enumerate(hosts)
    )
    return Layout({"pp": len(hosts), "tp": 2}, stages)


def test_ranks_are_where_their_stage_is() -> None:
    found = layout("left", "right")
    assert rank_hosts(found) == {0: "left", 1: "left", 2: "right", 3: "right"}
    assert several_hosts(found) == rank_hosts(found)
    assert several_hosts(layout("left", "left")) == {}


def test_a_clusters_device_says_it_of_each_rank() -> None:
    """Of a tensor group over two hosts the stage names only one."""
    crossing = layout("left", "left", devices=("left-0", "right-0", "left-1", "right-1"))
    assert several_hosts(crossing) == {}
    assert several_hosts(crossing, CLUSTER) == {0: "left", 1: "right", 2: "left", 3: "right"}


def test_here_and_back() -> None:
    there = layout("left", "right")
    here = on_this_host(there)
    assert rank_hosts(here) == dict.fromkeys(range(4), "localhost")
    assert on_hosts(here, rank_hosts(there)) == there
    assert on_hosts(here, {}) == here
