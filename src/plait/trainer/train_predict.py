"""The predicted step of a plan of training: of its cluster's figures, or of what was measured on this host."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from plait.costs.work import model_flops
from plait.plans.layout import Layout
from plait.plans.training import TrainingPlan
from plait.plans.training_exchanges import step_bytes
from plait.prober.training import measured_training_costs
from plait.schedules.step import executed_round
from plait.simulator.simulate import simulate
from plait.simulator.step import forecast_step
from plait.spec.cluster import Cluster
from plait.spec.emulation import Emulation
from plait.spec.model import ModelSpec
from plait.timeline.timeline import Timeline
from plait.timeline.training_metrics import training_metrics
from plait.trainer.emulated import emulated_costs
from plait.trainer.train_figures import FIGURES, Prediction

Say = Callable[[str], None]


def predict(
    plan: TrainingPlan,
    spec: ModelSpec,
    cluster: Cluster | None,
    buckets: int,
    say: Say,
    emulation: Emulation | None = None,
) -> Prediction:
    """What a step of the plan is expected to take; `buckets`: parts of the last backward.

    `emulation`: the ranks are on this host, and talk as if over its links. Errors: PlanError where the plan's cluster
    does not fit it.
    """
    sent = {"comm_bytes": step_bytes(spec, plan, buckets)}
    if cluster is None or emulation is not None:
        return _measured(plan, spec, buckets, sent, say, emulation)
    found = forecast_step(plan, spec, cluster, executed=True, buckets=buckets)
    figures = {key: found.predicted[key] for key in FIGURES}
    peak = model_flops(spec, plan.batch, plan.sequence) / (figures["mfu"] * figures["step_s"])
    return Prediction(figures | sent, of_all_ranks(found.timeline, plan.layout), peak, found.note)


def _measured(
    plan: TrainingPlan,
    spec: ModelSpec,
    buckets: int,
    sent: Mapping[str, Mapping[str, int]],
    say: Say,
    emulation: Emulation | None,
) -> Prediction:
    """From what was measured on this host; its peak FLOP/s are those of a large matrix product."""
    inside = measured_training_costs(plan, spec, say=say)
    costs = inside if emulation is None else emulated_costs(inside, emulation)
    timeline = simulate(plan.layout, [executed_round(0, plan, spec, buckets)], costs, spec)
    flops, peak = model_flops(spec, plan.batch, plan.sequence), costs.peak_flops
    found = training_metrics(timeline, plan.layout, model_flops=flops, peak_flops=peak)
    figures = {key: found[key] for key in ("step_s", "mfu", "bubble")}
    figures["tokens_per_s"] = plan.batch * plan.sequence / found["step_s"]
    beyond = "" if emulation is None else ", and the links that are emulated"
    return Prediction({**figures, **sent}, timeline, peak, f"from what was measured on this machine{beyond}")


def of_all_ranks(timeline: Timeline, layout: Layout) -> Timeline:
    """The timeline of each position's first rank, as that of all its ranks: a measured one has them all."""
    ranks = frozenset(timeline.ranks)
    spans = [
        span._replace(rank=rank)
        for span in timeline.spans
        for rank in _stood_for(layout.stages[span.action.stage].ranks, ranks, span.rank)
    ]
    memory = {
        rank: track
        for stage in layout.stages
        for shown, track in timeline.memory.items()
        if shown in stage.ranks
        for rank in _stood_for(stage.ranks, ranks, shown)
    }
    return Timeline(timeline.source, tuple(spans), timeline.hosts, timeline.clocks, memory)


def _stood_for(members: tuple[int, ...], shown: frozenset[int], rank: int) -> tuple[int, ...]:
    return members if shown.intersection(members) == {rank} else (rank,)
