"""Measured curves: straight lines between the points, and on beyond the last ones, never below zero."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Curve:
    """`values` at ascending `at`. Below the first point the curve is flat: less work than that was not measured."""

    at: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        _require_axis(self.at)
        if len(self.values) != len(self.at):
            raise ValueError(f"a curve has {len(self.at)} points but {len(self.values)} values")

    def value(self, x: float) -> float:
        """The curve at `x`."""
        left, share = _place(self.at, x)
        if left + 1 == len(self.at):
            return self.values[left]
        return max(0.0, self.values[left] + share * (self.values[left + 1] - self.values[left]))


@dataclass(frozen=True, slots=True)
class Grid:
    """A curve over `along` at each of ascending `at`; straight lines between the curves, too."""

    at: tuple[float, ...]
    along: tuple[float, ...]
    values: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        _require_axis(self.at)
        _require_axis(self.along)
        if [len(row) for row in self.values] != [len(self.along)] * len(self.at):
            raise ValueError(f"a grid of {len(self.at)} × {len(self.along)} points has other values")

    def value(self, x: float, y: float) -> float:
        """The surface at `x` on the first axis and `y` on the second."""
        left, share = _place(self.at, x)
        below, above = _place(self.along, y)
        first = _between(self.values[left], below, above)
        if left + 1 == len(self.at):
            return max(0.0, first)
        return max(0.0, first + share * (_between(self.values[left + 1], below, above) - first))


def _between(values: Sequence[float], index: int, share: float) -> float:
    if index + 1 == len(values):
        return values[index]
    return values[index] + share * (values[index + 1] - values[index])


def _place(at: Sequence[float], x: float) -> tuple[int, float]:
    """The point to the left of `x`, and how far between it and the next one `x` lies: above 1 beyond the last."""
    if len(at) == 1 or x <= at[0]:
        return 0, 0.0
    left = min(bisect_right(at, x), len(at) - 1) - 1
    return left, (x - at[left]) / (at[left + 1] - at[left])


def _require_axis(at: Sequence[float]) -> None:
    if not at or any(after <= before for before, after in pairwise(at)):
        raise ValueError(f"an axis needs ascending points, not {tuple(at)}")
