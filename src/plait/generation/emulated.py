"""`plait generate --emulate`: ranks are processes of this host, and talk as if they were on several."""

from __future__ import annotations

from plait.costs.emulated import BASE, EmulatedCosts, FramedTimes
from plait.costs.framed import crosses
from plait.costs.measured import Kernel
from plait.costs.protocol import Costs
from plait.generation.launch import ProcessRanks
from plait.generation.planning import measured_costs
from plait.plans.layout import Layout
from plait.plans.plan import Plan
from plait.prober.calibrate import Say
from plait.prober.emulated import own_link, require_possible
from plait.prober.exchanges import measure_framed_exchanges
from plait.ranks.emulated_hosts import on_emulated_hosts
from plait.spec.emulation import EmulatedLinks, Emulation
from plait.spec.model import ModelSpec
from plait.timeline.record import RunRecord
from plait.weights.index import WeightsIndex


class EmulatedHosts:
    """What such links change of a generation: how ranks are started, what a plan costs, what its record says."""

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
        """What is kept of a run of the plan."""
        return on_emulated_hosts(record, self._among(plan))

    def _among(self, plan: Plan) -> Emulation:
        return self._links.among(plan.layout.ranks)


def _framed_times(layout: Layout, kernel: Kernel) -> FramedTimes:
    threads = sum(stage.threads * len(stage.ranks) for stage in layout.stages)
    return FramedTimes(measure_framed_exchanges(kernel.threads, kernel.tp, kernel.dtype, BASE, all_threads=threads))
