"""`plait train --emulate`: what links that are emulated change of a run's prediction."""

from __future__ import annotations

from collections.abc import Sequence

from plait.costs.emulated import BASE, FramedTimes
from plait.costs.emulated_training import EmulatedTrainingCosts
from plait.costs.framed import crosses
from plait.costs.measured_training import MeasuredTrainingCosts, TrainingKernel
from plait.plans.layout import Layout
from plait.prober.calibrate import Say
from plait.prober.emulated import own_link, require_possible
from plait.prober.exchanges import measure_framed_exchanges
from plait.spec.emulation import EmulatedLinks, Emulation, links_words, named_links_words


def emulation_of(links: EmulatedLinks | None, ranks: int, planned: Sequence[str], say: Say) -> Emulation | None:
    """The links among so many ranks, if there are some. `planned`: each rank's host, where a plan names several.

    Errors: SpecError where this machine is slower than they, or ranks of the plan's hosts were counted.
    """
    if links is None:
        return None
    emulation = links.between(planned) if planned else links.among(ranks)
    require_possible(links.wire, own_link(ranks, say=say))
    say(f"as if on {named_links_words(links, planned) if planned else links_words(links, ranks)}")
    return emulation


def emulated_costs(inside: MeasuredTrainingCosts, emulation: Emulation) -> EmulatedTrainingCosts:
    """What the plan of `inside` costs over such links; what is not known yet is measured."""
    layout = inside.plan.layout
    kernels = {
        TrainingKernel.of(layout, number)
        for number, stage in enumerate(layout.stages)
        if crosses(stage.ranks[: layout.tp], emulation)
    }
    return EmulatedTrainingCosts(inside, emulation, {kernel: _framed_times(layout, kernel) for kernel in kernels})


def _framed_times(layout: Layout, kernel: TrainingKernel) -> FramedTimes:
    threads = layout.ranks * kernel.threads
    return FramedTimes(measure_framed_exchanges(kernel.threads, layout.tp, kernel.dtype, BASE, all_threads=threads))
