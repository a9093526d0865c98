"""Which host each rank of a plan is on, and the same layout on this host, where it is tried before it is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from plait.plans.layout import Layout
from plait.plans.plan import LOCALHOST
from plait.spec.cluster import Cluster


def rank_hosts(layout: Layout, cluster: Cluster | None = None) -> dict[int, str]:
    """Each rank's host: its device's, where the stage names devices of the cluster, else its stage's."""
    hosts: dict[int, str] = {}
    for stage in layout.stages:
        for place, rank in enumerate(stage.ranks):
            named = stage.devices[place] if place < len(stage.devices) else None
            hosts[rank] = stage.host if cluster is None or named is None else cluster.device(named).host
    return dict(sorted(hosts.items()))


def several_hosts(layout: Layout, cluster: Cluster | None = None) -> dict[int, str]:
    """The same; empty where there is only one host."""
    hosts = rank_hosts(layout, cluster)
    return hosts if len(set(hosts.values())) > 1 else {}


def on_this_host(layout: Layout) -> Layout:
    """The layout with every stage here: its ranks share this host's cores and memory."""
    return replace(layout, stages=tuple(replace(stage, host=LOCALHOST) for stage in layout.stages))


def on_hosts(layout: Layout, hosts: Mapping[int, str]) -> Layout:
    """The layout with every stage on the host of its first rank; as it is where `hosts` is empty."""
    if not hosts:
        return layout
    return replace(layout, stages=tuple(replace(stage, host=hosts[stage.ranks[0]]) for stage in layout.stages))
