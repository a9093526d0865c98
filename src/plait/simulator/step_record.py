"""A predicted training step as a run's record, so that whatever reads runs reads it too."""

from __future__ import annotations

from plait.plans.file import dump_any_plan
from plait.simulator.step import StepForecast
from plait.spec.cluster import Cluster
from plait.spec.model import ModelSpec
from plait.timeline.record import RunRecord


def step_record(forecast: StepForecast, spec: ModelSpec, cluster: Cluster | None) -> RunRecord:
    """The record of a step that was only predicted; its timeline has each position's first rank.

    `result`: ``predicted`` holds the forecast's figures, ``free_bytes`` those of each position's tightest device.
    """
    model = {
        "name": forecast.plan.model,
        "family": spec.family,
        "layers": spec.layers,
        "hidden": spec.hidden,
        "vocab": spec.vocab,
    }
    result = {
        "task": "train",
        "predicted": dict(forecast.predicted),
        "free_bytes": list(forecast.free_bytes),
        "note": forecast.note,
    }
    text = dump_any_plan(forecast.plan, cluster)
    return RunRecord(text, forecast.stages, model, (), forecast.timeline, None, result)
