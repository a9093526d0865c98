"""What a caller may want to hear while a training run is made ready and goes on."""

from __future__ import annotations

from typing import Protocol

from plait.plans.training import TrainingPlan
from plait.trainer.train_figures import Prediction, StepLine


class TrainWatch(Protocol):
    """Follows a training run."""

    def say(self, text: str) -> None:
        """Something takes a while, or needs a word, and this is what."""

    def planned(self, plan: TrainingPlan, prediction: Prediction, steps: int) -> None:
        """The plan is made, and will run."""

    def ready(self) -> None:
        """All ranks hold their stages."""

    def step(self, line: StepLine, prediction: Prediction) -> None:
        """A step is done."""


class Unwatched:
    """Listens to nothing."""

    def say(self, text: str) -> None:
        """See `TrainWatch`."""

    def planned(self, plan: TrainingPlan, prediction: Prediction, steps: int) -> None:
        """See `TrainWatch`."""

    def ready(self) -> None:
        """See `TrainWatch`."""

    def step(self, line: StepLine, prediction: Prediction) -> None:
        """See `TrainWatch`."""
