"""`plait generate --emulate`: ranks are processes of this host, and talk as if they were on several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from plait.costs.emulated import BASE, EmulatedCosts, FramedTimes
from plait.costs.framed import crosses
from plait.costs.measured import Kernel
from plait.costs.protocol import Costs
from plait.generation.launch import ProcessRanks
from plait.generation.planning import measured_costs
from plait.plans.file import dump_plan, load_plan_file
from plait.plans.hosts import on_hosts, on_this_host, several_hosts
from plait.plans.layout import Layout
from plait.plans.plan import Plan
from plait.prober.calibrate import Say
from plait.prober.emulated import own_link, require_possible
from plait.prober.exchanges import measure_framed_exchanges
from plait.ranks.emulated_hosts import on_emulated_hosts
from plait.spec.emulation import EmulatedLinks, Emulation, links_words, named_links_words
from plait.spec.model import ModelSpec
from plait.timeline.record import RunRecord
from plait.weights.index import WeightsIndex


class EmulatedHosts:
    """What such links change of a generation: how ranks are started, what a plan costs, what its record says.

    `planned`: each rank's host, where a plan file names several; else every rank, or so many as asked for, is one.
    """

    def __init__(self, links: EmulatedLinks, say: Say, planned: Mapping[int, str] | None = None) -> None:
        """Errors: SpecError where this machine is slower than the links, or ranks of the plan's hosts were counted."""
        self._links, self._say, self._planned = links, say, dict(planned or {})
        if self._planned:
            links.between(list(self._planned.values()))
        require_possible(links.wire, own_link(2, say=say))

    def placed(self, plan: Plan) -> Plan:
        """The plan as it runs: on this host, whose cores and memory all its hosts share."""
        return replace(plan, layout=on_this_host(plan.layout)) if self._planned else plan

    def words(self, plan: Plan) -> str:
        """What is emulated."""
        ranks = plan.layout.ranks
        return named_links_words(self._links, self._names(ranks)) if self._planned else links_words(self._links, ranks)

    def launch(self, plan: Plan, index: WeightsIndex) -> ProcessRanks:
        """See `answer.Launch`."""
        return ProcessRanks(plan, index, emulation=self._among(plan))

    def costs_for(self, plan: Plan, spec: ModelSpec) -> Costs:
        """See `planning.CostsFor`."""
        inside, emulation, layout = measured_costs(plan, spec, self._say), self._among(plan), plan.layout
        kernels = {Kernel.of(layout, at) for at, stage in enumerate(layout.stages) if crosses(stage.ranks, emulation)}
        return EmulatedCosts(spec, inside, emulation, {kernel: _framed_times(layout, kernel) for kernel in kernels})

    def record(self, record: RunRecord, plan: Plan) -> RunRecord:
        """What is kept of a run of the plan: the hosts are those of its file."""
        text = dump_plan(replace(plan, layout=on_hosts(plan.layout, self._planned)))
        return on_emulated_hosts(replace(record, plan=text), self._among(plan))

    def _among(self, plan: Plan) -> Emulation:
        ranks = plan.layout.ranks
        return self._links.between(self._names(ranks)) if self._planned else self._links.among(ranks)

    def _names(self, ranks: int) -> list[str]:
        """Of so many ranks: one process alone is on the first host."""
        return [self._planned[rank] for rank in range(ranks)]


def planned_hosts(path: Path | None) -> dict[int, str]:
    """Each rank's host where a plan file names several; empty otherwise. Errors: PlanError."""
    if path is None:
        return {}
    file = load_plan_file(path)
    return several_hosts(file.plan.layout, file.cluster)


def _framed_times(layout: Layout, kernel: Kernel) -> FramedTimes:
    threads = sum(stage.threads * len(stage.ranks) for stage in layout.stages)
    return FramedTimes(measure_framed_exchanges(kernel.threads, kernel.tp, kernel.dtype, BASE, all_threads=threads))
