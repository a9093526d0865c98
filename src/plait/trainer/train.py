"""`plait.train()`: from a model's name and a text to a model that has learned from it, with what each step took."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from plait.plans.layout import Layout
from plait.prober.host import usable_cores
from plait.ranks.runs import reserved_run
from plait.spec.emulation import Emulation
from plait.timeline.record import RunRecord
from plait.timeline.timeline import Clock
from plait.trainer.emulated import emulation_of
from plait.trainer.launch import TrainRanks, follow
from plait.trainer.predicted_memory import with_step_memory
from plait.trainer.protocol import Finished, Ready, Stalled, StepDone, ToFront
from plait.trainer.record import save_run
from plait.trainer.train_figures import Prediction, StepLine, Steps
from plait.trainer.train_options import TrainOptions
from plait.trainer.train_plan import Started, require_this_host
from plait.trainer.train_predict import predict
from plait.trainer.train_prepare import Prepared, prepare
from plait.trainer.train_watch import TrainWatch, Unwatched


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a training run was: every step's figures, what was predicted, the record and its place."""

    steps: tuple[StepLine, ...]
    prediction: Prediction
    record: RunRecord
    run: Path


def train(
    model: str | None,
    data: str | Path | Iterable[str | Path],
    options: TrainOptions | None = None,
    *,
    watch: TrainWatch | None = None,
    run: Path | None = None,
) -> TrainResult:
    """Train `model` on the text in `data`, files or directories, over local processes, and keep a record of the run.

    Errors: UsageError for what cannot work, before anything is started; RunError for what broke, a loss that is no
    number among it.
    """
    options, watch = options or TrainOptions(), watch or Unwatched()
    with reserved_run(run) as place:
        prepared = prepare(model, paths_of(data), options, watch, Started(cores_here()))
        plan, spec = prepared.plan, prepared.beginning.spec
        require_this_host(plan)
        planned = list(prepared.planned_hosts.values())
        emulation = emulation_of(options.emulate, plan.layout.ranks, planned, watch.say)
        prediction = predict(plan, spec, prepared.cluster, options.buckets, watch.say, emulation)
        prediction = remembered(prediction, prepared)
        following = Following(prepared, prediction, watch, emulation=emulation)
        _run(prepared, following)
        return following.result(place)


def remembered(prediction: Prediction, prepared: Prepared) -> Prediction:
    """The prediction with the memory of a step, of which a plan's emulated hosts have this host's."""
    plan, spec, work = prepared.plan, prepared.beginning.spec, prepared.work
    cluster = None if prepared.planned_hosts else prepared.cluster
    return with_step_memory(prediction, plan, spec, prepared.settings, work.buckets, cluster)


def _run(prepared: Prepared, following: Following) -> None:
    layout = prepared.plan.layout
    layer_wise = prepared.plan.schedule == "layerwise"
    emulation = following.emulation
    ranks = TrainRanks(layout, prepared.work, prepared.ids, layer_wise=layer_wise, emulation=emulation)
    follow(ranks, layout, following.hear)


def paths_of(data: str | Path | Iterable[str | Path]) -> list[Path]:
    """The places of the text."""
    places: Sequence[str | Path] = [data] if isinstance(data, str | Path) else list(data)
    return [Path(place).expanduser() for place in places]


def cores_here() -> int:
    """Threads that may compute at the same time: OMP_NUM_THREADS where it is set, else the cores."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdigit() and int(asked) > 0 else usable_cores()


@dataclass(slots=True)
class Following:
    """What all ranks have said so far; tells the watch, and ends as the result.

    `clocks`: of every host but rank 0's, where there are several. `emulation`: of the links, where they are emulated.
    """

    prepared: Prepared
    prediction: Prediction
    watch: TrainWatch
    clocks: Mapping[str, Clock] = field(default_factory=dict)
    emulation: Emulation | None = None
    ready: dict[int, Ready] = field(default_factory=dict)
    finished: dict[int, Finished] = field(default_factory=dict)
    lines: list[StepLine] = field(default_factory=list)
    steps: Steps = field(init=False)

    def __post_init__(self) -> None:
        prepared = self.prepared
        self.steps = Steps(prepared.plan, prepared.beginning.spec, self.prediction, self.clocks)
        self.watch.say(f"{prepared.beginning.name}: {prepared.beginning.words}")
        self.watch.planned(prepared.plan, self.prediction, prepared.work.steps)

    @property
    def layout(self) -> Layout:
        """The plan's."""
        return self.prepared.plan.layout

    def hear(self, message: ToFront) -> None:
        """A rank's word."""
        match message:
            case Ready():
                self.ready[message.rank] = message
                if len(self.ready) == self.layout.ranks:
                    self.watch.ready()
            case StepDone():
                line = self.steps.take(message)
                if line is not None:
                    self.lines.append(line)
                    self.watch.step(line, self.prediction)
            case Stalled():
                self.watch.say(message.words)
            case Finished():
                self.finished[message.rank] = message

    def result(self, place: Path) -> TrainResult:
        """The result, once all ranks have finished; its record is written to `place`."""
        record = save_run(self, place)
        return TrainResult(tuple(self.lines), self.prediction, record, place)
