"""What a person sees while a model learns: a line a step on stdout, a bar and words on stderr."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from plait.cli.output import write_json
from plait.plans.training import TrainingPlan
from plait.trainer.train_figures import Prediction, StepLine
from plait.units import format_seconds

_MOST_LINES = 50
"""More steps than this are not printed one by one."""


class StepWatch:
    """Follows a training run: a line for each step, or of many for each so many; with --json one object for each."""

    def __init__(self, console: Console, *, as_json: bool) -> None:
        self._console, self._as_json = console, as_json
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        # lines on stdout pass above the bar where both are one terminal, and are left alone where they are not
        both = sys.stdout.isatty()
        self._bar = Progress(
            *columns,
            console=console,
            transient=True,
            disable=not console.is_terminal,
            redirect_stdout=both,
            redirect_stderr=False,
        )
        self._steps = 0

    def __enter__(self) -> StepWatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """See `TrainWatch`."""
        self._console.print(text, style="dim", soft_wrap=True)

    def planned(self, plan: TrainingPlan, prediction: Prediction, steps: int) -> None:
        """See `TrainWatch`."""
        self._steps = steps
        self.say(plan_words(plan))
        if prediction.figures.get("step_s") is not None:
            self.say(f"predicted: {format_seconds(prediction.figures['step_s'])} a step; {prediction.note}")
        elif prediction.note:
            self.say(prediction.note)
        if prediction.peak_flops is None:
            self.say("no MFU: the peak FLOP/s of this machine are not known")

    def ready(self) -> None:
        """See `TrainWatch`."""
        self._bar.start()
        self._bar.add_task("training", total=self._steps)

    def step(self, line: StepLine, prediction: Prediction) -> None:
        """See `TrainWatch`."""
        if self._as_json:
            write_json(line.json(prediction))
            sys.stdout.flush()
        elif self._shown(line.step):
            sys.stdout.write(step_words(line) + "\n")
            sys.stdout.flush()
        for task in self._bar.task_ids:
            self._bar.advance(task)

    def _shown(self, step: int) -> bool:
        every = -(-self._steps // _MOST_LINES)
        return step % every == 0 or step == self._steps - 1


def plan_words(plan: TrainingPlan) -> str:
    """``dp 2 × pp 2: layers 0 to 1, 2 to 3; 1f1b, 4 micro-batches of 2; 16 sequences of 128 tokens a step``."""
    layout, setup = plan.layout, plan.setup
    axes = " × ".join(f"{axis} {size}" for axis, size in layout.axes.items() if size > 1) or "one rank"
    cut = ", ".join(f"{first} to {end - 1}" if end - first > 1 else f"{first}" for first, end in layout.cut)
    count = setup.micro_batches
    micro_batches = f"{count} micro-batch{'es' if count > 1 else ''} of {setup.micro_batch}"
    sequences = f"{plan.batch} sequence{'s' if plan.batch > 1 else ''} of {plan.sequence} tokens a step"
    stage = layout.stages[0]
    threads = f"{stage.threads} thread{'s' if stage.threads > 1 else ''} a rank"
    return f"{axes}: layers {cut}; {setup.schedule}, {micro_batches}; {sequences}; {stage.dtype}, {threads}"


def step_words(line: StepLine) -> str:
    """``step   12  loss 2.3456  norm 0.812  lr 0.001  3120 tokens/s  656 ms  bubble 21 %  MFU 9 %``."""
    parts = [
        f"step {line.step:>4}",
        f"loss {line.loss:.4f}",
        f"norm {line.grad_norm:.3g}",
        f"lr {line.lr:.2g}",
        f"{line.tokens_per_s:.0f} tokens/s",
        format_seconds(line.step_s),
        f"bubble {line.bubble * 100:.0f} %",
    ]
    parts += [f"MFU {line.mfu * 100:.0f} %"] if line.mfu is not None else []
    return "  ".join(parts)
