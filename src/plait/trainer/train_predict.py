"""The predicted step of a plan of training: of its cluster's figures, or of what was measured on this host."""

from __future__ import annotations

from collections.abc import Callable

from plait.costs.work import model_flops
from plait.plans.training import TrainingPlan
from plait.plans.training_exchanges import step_bytes
from plait.simulator.step import forecast_step
from plait.spec.cluster import Cluster
from plait.spec.model import ModelSpec
from plait.trainer.train_figures import FIGURES, Prediction

Say = Callable[[str], None]


def predict(plan: TrainingPlan, spec: ModelSpec, cluster: Cluster | None, buckets: int, say: Say) -> Prediction:
    """What a step of the plan is expected to take; `buckets`: parts of the last backward.

    Errors: PlanError where its cluster does not fit it.
    """
    sent = {"comm_bytes": step_bytes(spec, plan, buckets)}
    if cluster is None:
        return Prediction(sent, note="only bytes are predicted: the plan names no cluster")
    found = forecast_step(plan, spec, cluster)
    figures = {key: found.predicted[key] for key in FIGURES}
    peak = model_flops(spec, plan.batch, plan.sequence) / (figures["mfu"] * figures["step_s"])
    return Prediction(figures | sent, found.timeline, peak, found.note)
