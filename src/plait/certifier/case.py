"""A case: one mesh, schedule and small model, to be compared with one process."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal

from plait.certifier.models import Small
from plait.plans.split import Recompute, Split, TrainingSetup

Dtype = Literal["float64", "float32", "bfloat16"]
Transport = Literal["threads", "shm", "c10d"]
DTYPES: tuple[Dtype, ...] = ("float64", "float32", "bfloat16")
TRANSPORTS: tuple[Transport, ...] = ("threads", "shm", "c10d")


@dataclass(frozen=True, slots=True)
class Case:
    """What `certify` is told; every name is an option of the command.

    `layers`: layers of the small model, or of each stage, in order; none means one a stage, and one more.
    `batch`: sequences of a step over the whole mesh; 0 means two a micro-batch. `buckets`: parts in which gradients are
    reduced. `capacity`: messages that a link holds. `clip`: 0 for none. `shares`: of each rank of a tensor group.
    `frozen`: patterns of tensors that do not learn.
    """

    dp: int = 1
    pp: int = 1
    tp: int = 1
    virtual: int = 1
    schedule: str = "1f1b"
    micro_batches: int = 1
    zero: int = 0
    recompute: Recompute = "none"
    tied: bool = False
    dropout: float = 0.0
    sequence: bool = False
    dtype: Dtype = "float64"
    steps: int = 2
    transport: Transport = "threads"
    model: str = "llama"
    layers: tuple[int, ...] = ()
    batch: int = 0
    buckets: int = 2
    capacity: int = 2
    clip: float = 0.0
    shares: tuple[int, ...] = ()
    frozen: tuple[str, ...] = ()
    seed: int = 0

    @property
    def split(self) -> Split:
        """The axes."""
        return Split(dp=self.dp, pp=self.pp, tp=self.tp)

    @property
    def mesh(self) -> dict[str, int]:
        """The axes, as JSON has them."""
        return {"dp": self.dp, "pp": self.pp, "tp": self.tp, "virtual": self.virtual}

    @property
    def cut(self) -> tuple[int, ...] | None:
        """Layers of each stage, where the case names them."""
        return self.layers if len(self.layers) > 1 else None

    @property
    def small(self) -> Small:
        """The model."""
        layers = sum(self.layers) if self.layers else self.pp * self.virtual + 1
        return Small(self.model, layers, self.tied, self.seed)

    @property
    def sequences(self) -> int:
        """Sequences of a step over the whole mesh."""
        return self.batch or 2 * self.dp * self.micro_batches

    @property
    def setup(self) -> TrainingSetup:
        """How a step runs; the sequences of a micro-batch follow from the batch."""
        return TrainingSetup(
            self.split,
            self.schedule,
            0,
            self.micro_batches,
            virtual=self.virtual,
            recompute=self.recompute,
            zero=self.zero,
            sequence_split=self.sequence,
        )

    def command(self) -> str:
        """The command that runs this case alone."""
        return " ".join(("plait certify", *_options(self)))


def _options(case: Case) -> Iterator[str]:
    for field in fields(Case):
        value = getattr(case, field.name)
        if value != field.default:
            yield f"--{field.name.replace('_', '-')}{_written(value)}"


def _written(value: Any) -> str:
    if value is True:
        return ""
    if isinstance(value, tuple):
        return " " + shlex.quote(",".join(map(str, value)))
    return f" {value}"
