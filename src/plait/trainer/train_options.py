"""What a person asks `plait train` for; what is None is chosen, or is the plan file's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from plait.errors import PlanError
from plait.plans.split import RECOMPUTE, Recompute
from plait.plans.training import BUCKETS
from plait.spec.emulation import EmulatedLinks
from plait.trainer.settings import OptimizerName, RateName

OPTIMIZERS: tuple[OptimizerName, ...] = ("adamw", "sgd")
RATES: tuple[RateName, ...] = ("constant", "linear", "cosine")

FRESH_RATE, TRAINED_RATE = 1e-3, 2e-5
"""The usual learning rate of a model that begins at random, and of one that has learned already."""


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """Everything beside the model's name and the text.

    The mesh: `dp` × `pp` × `tp` ranks, each with `virtual` stages; `batch` sequences of `sequence_length` tokens a step
    over the whole mesh, in `micro_batches` through each pipeline. `sequence`: activations between the blocks are split
    along the sequence over a tensor group. `plan`: a plan file, which says all of this.

    `lr`: the peak, after `warmup` steps; None is 1e-3 for random weights and 2e-5 for a model's own. `clip`: the
    gradient norm that is not exceeded; 0 never clips. `freeze`: patterns of tensor names that do not learn.
    `timeline`: the steps whose timelines are kept; None is the last one. Steps count from 0. `buckets`: parts of the
    last backward, each reduced over the replicas while the next one runs. `emulate`: ranks are processes of this host
    that talk as if over such links; where the plan file names several hosts, the links are between these.
    """

    dp: int | None = None
    pp: int | None = None
    tp: int | None = None
    virtual: int | None = None
    schedule: str | None = None
    micro_batches: int | None = None
    batch: int | None = None
    sequence_length: int | None = None
    sequence: bool | None = None
    zero: int | None = None
    recompute: str | None = None
    dtype: str | None = None
    threads: int | None = None
    plan: Path | None = None
    dropout: float = 0.0
    lr: float | None = None
    lr_schedule: str = "constant"
    warmup: int = 0
    optimizer: str = "adamw"
    weight_decay: float = 0.0
    clip: float = 1.0
    freeze: tuple[str, ...] = ()
    seed: int = 0
    steps: int = 100
    check_every: int = 10
    timeline: tuple[int, ...] | None = None
    buckets: int = BUCKETS
    emulate: EmulatedLinks | None = None

    @property
    def kept_steps(self) -> tuple[int, ...]:
        """The steps whose timelines are kept. Errors: PlanError for a step that does not run."""
        if self.timeline is None:
            return (self.steps - 1,)
        beyond = [step for step in self.timeline if step >= self.steps]
        if beyond:
            raise PlanError(
                f"--timeline names step {beyond[0]}, but {self.steps} steps, 0 to {self.steps - 1}, are trained: "
                f"name others, or train --steps {beyond[0] + 1}"
            )
        return tuple(sorted(set(self.timeline)))


def parse_steps(text: str) -> tuple[int, ...]:
    """``3,10-12`` becomes (3, 10, 11, 12). Errors: PlanError."""
    found: list[int] = []
    for piece in text.split(","):
        first, dash, last = piece.partition("-")
        if not first.isdigit() or (dash and (not last.isdigit() or int(last) < int(first))):
            raise PlanError(f"--timeline {text!r} names no steps: write them as in 5, or 3,10-12")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def one_of(name: str, given: str, known: Sequence[str]) -> str:
    """`given`, if it is known. Errors: PlanError, with the nearest one."""
    from plait.errors import nearest

    if given not in known:
        raise PlanError(f"unknown {name} {given!r}: {nearest(given, known)}")
    return given


def recompute_of(given: str | None) -> Recompute:
    """The recompute that is asked for, none where nobody did. Errors: PlanError."""
    for known in RECOMPUTE:
        if given == known:
            return known
    one_of("--recompute", given or "none", RECOMPUTE)
    return "none"
