"""The predicted step of a plan of training: of its cluster's figures, or of what was measured on this host."""

from __future__ import annotations

from collections.abc import Callable

from plait.costs.work import model_flops
from plait.plans.layout import Layout
from plait.plans.training import TrainingPlan
from plait.plans.training_exchanges import step_bytes
from plait.simulator.step import forecast_step
from plait.spec.cluster import Cluster
from plait.spec.model import ModelSpec
from plait.timeline.timeline import Timeline
from plait.trainer.train_figures import FIGURES, Prediction

Say = Callable[[str], None]


def predict(plan: TrainingPlan, spec: ModelSpec, cluster: Cluster | None, buckets: int, say: Say) -> Prediction:
    """What a step of the plan is expected to take; `buckets`: parts of the last backward.

    Errors: PlanError where its cluster does not fit it.
    """
    sent = {"comm_bytes": step_bytes(spec, plan, buckets)}
    if cluster is None:
        return Prediction(sent, note="only bytes are predicted: the plan names no cluster")
    found = forecast_step(plan, spec, cluster, executed=True, buckets=buckets)
    figures = {key: found.predicted[key] for key in FIGURES}
    peak = model_flops(spec, plan.batch, plan.sequence) / (figures["mfu"] * figures["step_s"])
    return Prediction(figures | sent, of_all_ranks(found.timeline, plan.layout), peak, found.note)


def of_all_ranks(timeline: Timeline, layout: Layout) -> Timeline:
    """The timeline of each position's first rank, as that of all its ranks: a measured one has them all."""
    ranks = frozenset(timeline.ranks)
    spans = [
        span._replace(rank=rank)
        for span in timeline.spans
        for rank in _stood_for(layout.stages[span.action.stage].ranks, ranks, span.rank)
    ]
    return Timeline(timeline.source, tuple(spans), timeline.hosts, timeline.clocks)


def _stood_for(members: tuple[int, ...], shown: frozenset[int], rank: int) -> tuple[int, ...]:
    return members if shown.intersection(members) == {rank} else (rank,)
