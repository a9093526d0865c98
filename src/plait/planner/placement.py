"""Where ranks lie: tensor groups on neighbouring devices, then ep, then dp; positions of the pipeline farthest apart.

    rank = ((position · dp + d) · ep + e) · tp + t

Devices stand host by host, so that the axis that talks most (tp, twice or more a layer) stays on the fastest links, and
the one that talks least (pp, one message a micro-batch) takes the slowest.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from plait.costs.training import positions
from plait.planner.cut import Cut
from plait.plans.layout import Layout, Stage
from plait.plans.split import Split, TrainingSetup
from plait.spec.cluster import Cluster


def devices_in_order(cluster: Cluster) -> tuple[str, ...]:
    """Names of the devices, host by host."""
    by_host: dict[str, list[str]] = {host.name: [] for host in cluster.hosts}
    for device in cluster.devices:
        by_host[device.host].append(device.name)
    return tuple(name for names in by_host.values() for name in names)


def training_layout(setup: TrainingSetup, cut: Cut, devices: Sequence[str], dtype: str, hosts: Sequence[str]) -> Layout:
    """The layout of a setup over the first of `devices`; `hosts` names each one's host."""
    split = setup.split
    width = split.ranks // split.pp
    ranks = [tuple(range(position * width, (position + 1) * width)) for position in range(split.pp)]
    names = [tuple(devices[position * width : (position + 1) * width]) for position in range(split.pp)]
    stages = [Stage((0, 0), ())] * len(cut)
    for position, held in enumerate(positions(setup)):
        for stage in held:
            host = hosts[position * width]
            stages[stage] = Stage(cut[stage], ranks[position], dtype, dtype, host=host, devices=names[position])
    return Layout(_axes(split), tuple(stages), link_capacity(setup))


def link_capacity(setup: TrainingSetup) -> int:
    """Unreceived messages that a link must hold: one for every micro-batch that a schedule may run ahead."""
    return max(2, 2 * setup.split.pp)


def cut_of(counts: Sequence[int]) -> Cut:
    """The cut that gives each stage so many layers."""
    return tuple(pairwise(accumulate(counts, initial=0)))


def _axes(split: Split) -> dict[str, int]:
    axes = {"dp": split.dp, "pp": split.pp, "tp": split.tp}
    return axes if split.ep == 1 else {**axes, "ep": split.ep}
