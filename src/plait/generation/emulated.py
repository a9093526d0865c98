"""`plait generate --emulate`: ranks are processes of this host, and talk as if they were on several."""

from __future__ import annotations

from dataclasses import replace

from plait.costs.emulated import BASE, EmulatedCosts, FramedTimes
from plait.costs.framed import crosses
from plait.costs.measured import Kernel
from plait.costs.protocol import Costs
from plait.generation.launch import ProcessRanks
from plait.generation.planning import measured_costs
from plait.plans.file import dump_plan
from plait.plans.layout import Layout
from plait.plans.plan import Plan
from plait.prober.calibrate import Say
from plait.prober.emulated import own_link, require_possible
from plait.prober.exchanges import measure_framed_exchanges
from plait.spec.emulation import EmulatedLinks, Emulation, host_names
from plait.spec.model import ModelSpec
from plait.timeline.record import RunRecord
from plait.weights.index import WeightsIndex


class EmulatedHosts:
    """What such links change of a generation: how ranks are started, what a plan costs, what hosts are called."""

    def __init__(self, links: EmulatedLinks, say: Say) -> None:
        """Errors: SpecError where this machine is slower than the links."""
        self._links, self._say = links, say
        require_possible(links.wire, own_link(say=say))

    def launch(self, plan: Plan, index: WeightsIndex) -> ProcessRanks:
        """See `answer.Launch`."""
        return ProcessRanks(plan, index, emulation=self._among(plan))

    def costs_for(self, plan: Plan, spec: ModelSpec) -> Costs:
        """See `planning.CostsFor`."""
        inside, emulation, layout = measured_costs(plan, spec, self._say), self._among(plan), plan.layout
        kernels = {Kernel.of(layout, at) for at, stage in enumerate(layout.stages) if crosses(stage.ranks, emulation)}
        return EmulatedCosts(spec, inside, emulation, {kernel: _framed_times(layout, kernel) for kernel in kernels})

    def record(self, record: RunRecord, plan: Plan) -> RunRecord:
        """The record of a run of the plan, with every rank on its emulated host. All hosts have one clock."""
        emulation, wire = self._among(plan), self._links.wire
        names = host_names(emulation)
        stages = tuple(replace(stage, host=names[stage.ranks[0]]) for stage in plan.layout.stages)
        told = {
            "hosts": list(emulation.hosts),
            "latency_s": wire.latency_s,
            "bandwidth_bytes_per_s": wire.bandwidth,
        }
        return replace(
            record,
            plan=dump_plan(replace(plan, layout=replace(plan.layout, stages=stages))),
            predicted=record.predicted and replace(record.predicted, hosts=names),
            measured=record.measured and replace(record.measured, hosts=names),
            result={**record.result, "emulated": told},
        )

    def _among(self, plan: Plan) -> Emulation:
        return self._links.among(plan.layout.ranks)


def _framed_times(layout: Layout, kernel: Kernel) -> FramedTimes:
    threads = sum(stage.threads * len(stage.ranks) for stage in layout.stages)
    return FramedTimes(measure_framed_exchanges(kernel.threads, kernel.tp, kernel.dtype, BASE, all_threads=threads))
