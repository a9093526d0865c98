"""What a training run is told beside its plan: the optimizer, the learning rate over the steps, and the guards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

OptimizerName = Literal["adamw", "sgd"]
RateName = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True, slots=True)
class Rate:
    """A learning rate: up to `peak` over `warmup` steps, then as `decay` says to `floor` × peak at step `steps`."""

    peak: float
    decay: RateName = "constant"
    warmup: int = 0
    steps: int = 0
    floor: float = 0.0


@dataclass(frozen=True, slots=True)
class Settings:
    """How weights are updated. `clip`: the gradient norm of the whole mesh above which gradients are scaled down to it.

    `weight_decay` is of matrices alone: norms and biases have none. `frozen`: patterns of tensor names (as of
    `fnmatch`) that do not learn. `dropout`: of the embedding and of what each block adds, with masks that depend on
    `seed`, step and place alone. `check_every`: steps between two comparisons of all replicas; 0 never.
    """

    rate: Rate
    optimizer: OptimizerName = "adamw"
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    frozen: tuple[str, ...] = ()
    dropout: float = 0.0
    seed: int = 0
    check_every: int = 10
