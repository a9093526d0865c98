"""The costs of a layout whose stages all run on this host, measured where they are not known yet."""

from __future__ import annotations

from plait.costs.measured import Kernel, MeasuredCosts
from plait.costs.protocol import FREE, LinkCost
from plait.errors import PlanError
from plait.plans.layout import Layout
from plait.prober.calibrate import Say, calibrate
from plait.prober.exchanges import measure_exchanges
from plait.prober.links import measure_shm_link
from plait.spec.model import ModelSpec


def local_costs(
    layout: Layout, spec: ModelSpec, rows: int = 1, *, fresh: bool = False, say: Say | None = None
) -> MeasuredCosts:
    """Costs of `layout` on this host; `rows` is how many rows decode together, usually.

    Each kernel (dtype, weights, threads, tensor group) is calibrated beside as many ranks as the layout has. `fresh`
    measures again what is known. Errors: PlanError where a stage runs elsewhere.
    """
    elsewhere = {stage.host for stage in layout.stages} - {layout.stages[0].host}
    if elsewhere or any(stage.device != "cpu" for stage in layout.stages):
        raise PlanError(f"only the CPU of one host can be measured here, but the plan names {sorted(elsewhere)} too")
    kernels = sorted({Kernel.of(layout, stage) for stage in range(len(layout.stages))})
    calibrations = {kernel: calibrate(spec, kernel, layout.ranks, rows, fresh=fresh, say=say) for kernel in kernels}
    threads = sum(stage.threads * len(stage.ranks) for stage in layout.stages)
    exchanges = {
        kernel: measure_exchanges(kernel.threads, kernel.tp, kernel.dtype, all_threads=threads, fresh=fresh)
        for kernel in kernels
        if kernel.tp > 1
    }
    return MeasuredCosts(spec, calibrations, _link(layout, fresh=fresh), exchanges)


def _link(layout: Layout, *, fresh: bool) -> LinkCost:
    if len(layout.stages) < 2:
        return FREE
    busiest = max(layout.stages, key=lambda stage: stage.threads)
    return measure_shm_link(busiest.threads, len(layout.stages), busiest.dtype, beside=layout.tp, fresh=fresh)
