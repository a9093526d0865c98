"""A step's figures, measured and predicted: what `plait train` prints, a line a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from plait.costs.work import model_flops
from plait.plans.training import TrainingPlan
from plait.spec.model import ModelSpec
from plait.timeline.timeline import Clock, Timeline
from plait.timeline.training_metrics import training_metrics
from plait.tracer.tracer import Tracer, merge
from plait.trainer.protocol import StepDone

AXES = ("dp", "pp", "tp")
FIGURES = ("step_s", "tokens_per_s", "mfu", "bubble", "comm_bytes")
"""Keys that are predicted and measured."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a step was predicted to take. `figures`: those of `FIGURES` that are known; empty where none are.

    `timeline`: of one step, number 0. `peak_flops`: FLOP/s of all devices together. `note`: what it is made of, or why
    there is none.
    """

    figures: Mapping[str, Any] = field(default_factory=dict)
    timeline: Timeline | None = None
    peak_flops: float | None = None
    note: str = ""

    def json(self) -> dict[str, Any] | None:
        """Every key of `FIGURES`, null where it is not known; None where nothing is."""
        return {key: self.figures.get(key) for key in FIGURES} if self.figures else None


@dataclass(frozen=True, slots=True)
class StepLine:
    """One step as it was measured. `comm_bytes`: payload that all ranks sent, by axis. `lr`: the learning rate.

    `step_s`: the mean over the ranks, from the end of the step before. `bubble`: 1 − seconds that the ranks computed ÷
    seconds that passed on them, or the timeline's where that is kept. `mfu` None: no peak FLOP/s are known.
    """

    step: int
    loss: float
    grad_norm: float
    lr: float
    tokens: int
    tokens_per_s: float
    step_s: float
    mfu: float | None
    bubble: float
    comm_bytes: Mapping[str, int]

    def json(self, prediction: Prediction) -> dict[str, Any]:
        """The design's keys; `predicted` holds the same for what was predicted."""
        values = {name: getattr(self, name) for name in StepLine.__dataclass_fields__}
        return {**values, "comm_bytes": dict(self.comm_bytes), "predicted": prediction.json()}


class Steps:
    """Puts together what the ranks tell of each step. `clocks`: of every host but rank 0's."""

    def __init__(
        self, plan: TrainingPlan, spec: ModelSpec, prediction: Prediction, clocks: Mapping[str, Clock]
    ) -> None:
        self._plan, self._clocks = plan, clocks
        self._flops = model_flops(spec, plan.batch, plan.sequence)
        self._peak = prediction.peak_flops
        self._told: dict[int, dict[int, StepDone]] = {}
        self.timelines: dict[int, Timeline] = {}

    def take(self, told: StepDone) -> StepLine | None:
        """A rank's word; the step's line once all ranks have told."""
        ranks = self._told.setdefault(told.step, {})
        ranks[told.rank] = told
        if len(ranks) < self._plan.layout.ranks:
            return None
        return self._line(list(self._told.pop(told.step).values()))

    def _line(self, ranks: Sequence[StepDone]) -> StepLine:
        first = min(ranks, key=lambda one: one.rank)
        walls_s = sum(one.wall_s for one in ranks)
        step_s = walls_s / len(ranks)
        return StepLine(
            first.step,
            first.loss,
            first.grad_norm,
            first.rate,
            first.tokens,
            first.tokens / step_s,
            step_s,
            None if self._peak is None else self._flops / (step_s * self._peak),
            self._bubble(ranks, walls_s),
            {axis: sum(one.sent_bytes[axis] for one in ranks) for axis in AXES},
        )

    def _bubble(self, ranks: Sequence[StepDone], walls_s: float) -> float:
        tracers = [Tracer.decode(one.spans) for one in ranks if one.spans is not None]
        if not tracers:
            return 1 - sum(one.compute_s for one in ranks) / walls_s
        timeline = self.timelines[ranks[0].step] = merge(tracers, self._clocks)
        return training_metrics(timeline, self._plan.layout)["bubble"]
