"""How far a mesh is off one process, and how far it may be.

The error of a tensor is max|a − b| ÷ max(max|b|, f × the largest entry of any tensor of its kind): a gradient that is
zero by mathematics is only noise. f is 1e-3 in float64 and 0.1 in narrower dtypes. The errors of loss and norm are
relative.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Literal, NamedTuple

from torch import Tensor

from plait.certifier.case import Dtype
from plait.certifier.reference import Expected, Work, exact, expected_steps

What = Literal["loss", "grad", "norm", "weights"]
WHATS: tuple[What, ...] = ("loss", "grad", "norm", "weights")

BROKEN = sys.float_info.max
"""The error of what is no finite number; JSON has no infinity."""

_BFLOAT16_STEP = 2.0**-8
_TIMES = 4
"""A mesh may be so many times further off one process than that is off its float64 self."""


class Deviation(NamedTuple):
    """The largest error of a kind, and where: the parameter (loss and norm have none), and of which rank's stage."""

    error: float = 0.0
    name: str = ""
    step: int = 0
    stage: int = 0
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the errors of each kind must stay below, and why."""

    loss: float
    grad: float
    norm: float
    weights: float
    why: str

    def of(self, what: What) -> float:
        """The bound of one kind."""
        return {"loss": self.loss, "grad": self.grad, "norm": self.norm, "weights": self.weights}[what]


def bounds(work: Work, errors: Mapping[What, float] = MappingProxyType({})) -> Bounds:
    """What a mesh that has these errors may be off this work of one process.

    float64: 1e-10. float32: 1e-5; where that is not enough, and it is more, 4 times what one process is off its float64
    self: two steps of a tiny model can amplify rounding beyond 1e-5. bfloat16: 4 times that, and of one number at least
    a rounding.
    """
    if work.dtype == "float64":
        return Bounds(1e-10, 1e-10, 1e-10, 1e-10, "the design's bound for float64")
    if work.dtype == "float32" and max(errors.values(), default=0.0) <= 1e-5:
        return Bounds(1e-5, 1e-5, 1e-5, 1e-5, "the design's bound for float32")
    own = {what: _TIMES * error for what, error in _rounding(work).items()}
    if work.dtype == "bfloat16":
        least = {"loss": _BFLOAT16_STEP, "grad": _BFLOAT16_STEP, "norm": _BFLOAT16_STEP, "weights": 1e-5}
        why = "4 × what one bfloat16 process is off its float64 self"
    else:
        least = dict.fromkeys(WHATS, 1e-5)
        more = [what for what in WHATS if own[what] > 1e-5]
        why = "the design's bound for float32"
        if more:
            why += f"; for {' and '.join(more)} 4 × what one float32 process is off its float64 self"
    return Bounds(**{what: max(least[what], own[what]) for what in WHATS}, why=why)


@lru_cache(maxsize=1024)
def _rounding(work: Work) -> Mapping[What, float]:
    """The errors of one process against itself in float64."""
    found = dict.fromkeys(WHATS, 0.0)
    for ours, theirs in zip(expected_steps(work), expected_steps(exact(work)), strict=True):
        whole = Whole.of(theirs, work.dtype)
        errors = {"loss": relative(ours.loss, theirs.loss), "norm": relative(ours.norm, theirs.norm)}
        errors["grad"] = max(whole.gradients.off(name, tensor) for name, tensor in ours.gradients.items())
        errors["weights"] = max(whole.weights.off(name, tensor) for name, tensor in ours.weights.items())
        found = {what: max(error, errors[what]) for what, error in found.items()}
    return found


@dataclass(frozen=True, slots=True)
class Measured:
    """Whole tensors of one kind, and what the error of each is divided by."""

    values: Mapping[str, Tensor]
    scales: Mapping[str, float]

    @staticmethod
    def of(tensors: Mapping[str, Tensor], dtype: Dtype) -> Measured:
        """With the scales of the dtype."""
        largest = {name: float(tensor.abs().max()) for name, tensor in tensors.items()}
        least = (1e-3 if dtype == "float64" else 0.1) * max(largest.values(), default=0.0)
        return Measured(tensors, {name: max(one, least) for name, one in largest.items()})

    def off(self, name: str, tensor: Tensor) -> float:
        """The error of a whole tensor."""
        return off(tensor, self.values[name], self.scales[name])


@dataclass(frozen=True, slots=True)
class Whole:
    """What one process has after a step, to measure against."""

    expected: Expected
    gradients: Measured
    weights: Measured

    @staticmethod
    def of(expected: Expected, dtype: Dtype) -> Whole:
        """With the scales of the dtype."""
        return Whole(expected, Measured.of(expected.gradients, dtype), Measured.of(expected.weights, dtype))


@lru_cache(maxsize=1024)
def whole_steps(work: Work) -> tuple[Whole, ...]:
    """What one process has after each step, to measure against."""
    return tuple(Whole.of(expected, work.dtype) for expected in expected_steps(work))


def off(a: Tensor, b: Tensor, scale: float) -> float:
    """max|a − b| ÷ scale, of two tensors of one shape; `BROKEN` where something is no finite number."""
    if not a.numel():
        return 0.0
    difference = float((a - b).abs().max())
    return _known(difference / scale if difference else 0.0)


def relative(a: float, b: float) -> float:
    """|a − b| ÷ |b|."""
    return _known(abs(a - b) / abs(b) if a != b else 0.0)


def _known(error: float) -> float:
    return error if math.isfinite(error) else BROKEN
