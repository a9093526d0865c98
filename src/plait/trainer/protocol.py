"""What the front and the ranks of a training run say to each other: msgpack structs, never pickles.

front → rank   Setup
rank → front   Ready, for every step StepDone, Finished; Stalled and Failed at any time
"""

from __future__ import annotations

import msgspec

from plait.ranks.failures import Failed
from plait.spec.model import ModelSpec
from plait.trainer.settings import Settings


class Work(msgspec.Struct, array_like=True, frozen=True):
    """What all ranks do: `plan` is a plan file's text, `timelines` the steps whose spans are kept.

    `index`: the weights to begin with; None for random ones. `buckets`: parts of the last backward.
    """

    plan: str
    spec: ModelSpec
    settings: Settings
    index: bytes | None
    steps: int
    timelines: tuple[int, ...]
    buckets: int


class Setup(msgspec.Struct, tag="setup"):
    """Which rank a process is, and over what transport. `tokens`: descriptor of the ids, of `item_bytes` each."""

    rank: int
    work: Work
    mesh: dict[str, object]
    tokens: int
    item_bytes: int


class Ready(msgspec.Struct, tag="ready"):
    """The rank holds its stages, `weight_bytes` of them, and can train."""

    rank: int
    load_s: float
    weight_bytes: int


class StepDone(msgspec.Struct, tag="step"):
    """A rank has done a step. `loss` to `valid` are the mesh's, the rest is this rank's.

    `wall_s`: since the step before it; `compute_s`: of that it computed. `sent_bytes`: payload by axis. `spans`: what
    its tracer encoded, where the step's timeline is kept.
    """

    rank: int
    step: int
    loss: float
    grad_norm: float
    rate: float
    tokens: int
    valid: int
    wall_s: float
    compute_s: float
    sent_bytes: dict[str, int]
    spans: bytes | None = None


class Stalled(msgspec.Struct, tag="stalled"):
    """A rank waits for something longer than usual, in words."""

    rank: int
    words: str


class Finished(msgspec.Struct, tag="finished"):
    """A rank's last word: its peak memory."""

    rank: int
    peak_bytes: int


ToRank = Setup
ToFront = Ready | StepDone | Stalled | Finished | Failed
