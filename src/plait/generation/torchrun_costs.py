"""What a plan costs on the hosts of a mesh: layers as this host computes them, links between hosts as measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from plait.costs.inside import InsideCosts
from plait.costs.measured import Kernel
from plait.costs.protocol import Costs, LinkCost, Running
from plait.generation.torchrun_hosts import Hosts
from plait.plans.layout import Layout, Stage
from plait.plans.plan import LOCALHOST

LinkOf = Callable[[int, int], LinkCost]
"""The link between two ranks of different hosts."""


@dataclass(frozen=True, slots=True)
class HostsCosts(InsideCosts):
    """`Costs` of ranks on several hosts. `inside` knows layers and links of one host, `between` the links beyond."""

    inside: Costs
    hosts: Hosts
    between: LinkOf

    def speeds(self, layout: Layout, running: Sequence[Running]) -> tuple[float, ...]:
        """Only stages of the same host slow each other down, whatever host the layout names (a draft names none)."""
        homes = [self.hosts.name(layout.stages[one.stage].ranks[0]) for one in running]
        speeds = [0.0] * len(running)
        for home in set(homes):
            places = [place for place, theirs in enumerate(homes) if theirs == home]
            for place, speed in zip(
                places, self.inside.speeds(layout, [running[place] for place in places]), strict=True
            ):
                speeds[place] = speed
        return tuple(speeds)

    def link(self, layout: Layout, source: int, to: int) -> LinkCost:
        """Measured between the first ranks of both stages; the ranks of a tensor group share its bandwidth."""
        pair = layout.stages[source].ranks[0], layout.stages[to].ranks[0]
        if self.hosts.together(pair):
            return self.inside.link(layout, source, to)
        one = self.between(*pair)
        return replace(one, bandwidth_bytes_per_s=one.bandwidth_bytes_per_s / layout.tp)


def on_this_host(layout: Layout, hosts: Hosts) -> Layout:
    """The part of a layout that is like this host's: its stages, and one of each other kind, to be calibrated here."""
    here = [at for at, stage in enumerate(layout.stages) if hosts.together((0, stage.ranks[0]))]
    known = {Kernel.of(layout, at) for at in here}
    for at in range(len(layout.stages)):
        if Kernel.of(layout, at) not in known:
            known.add(Kernel.of(layout, at))
            here.append(at)
    stages = tuple(_moved(layout.stages[at], place, layout.tp) for place, at in enumerate(sorted(here)))
    return replace(layout, axes={**layout.axes, "pp": len(stages)}, stages=stages)


def _moved(stage: Stage, place: int, tp: int) -> Stage:
    return replace(stage, ranks=tuple(range(place * tp, (place + 1) * tp)), host=LOCALHOST)
