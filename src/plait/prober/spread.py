"""A figure that was measured several times: its median, and by how much it varied.

The spread is half the distance from the 10th to the 90th of a hundred, as a part of the median: where repetitions vary
as a bell curve does, 1.28 of its standard deviations. What an hour changes in a machine no repetition within seconds
shows, so that no figure is claimed to be better than one part in a hundred.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

LEAST_SPREAD = 0.01
_LOW, _HIGH = 0.1, 0.9
_DIGITS = 4


class Figure(msgspec.Struct, frozen=True):
    """The median of what was measured, in SI units, and its spread as a part of it."""

    value: float
    spread: float

    def agrees(self, other: Figure) -> bool:
        """Another measurement of the same: they lie no further apart than both spreads together."""
        return abs(self.value - other.value) <= self.spread * self.value + other.spread * other.value


def figure(samples: Sequence[float]) -> Figure:
    """Of at least one sample above 0. Four digits of the median, three of the spread."""
    return figure_about(statistics.median(samples), samples)


def figure_about(value: float, samples: Sequence[float]) -> Figure:
    """`value`, which was found from medians of what goes into it; the samples, each found from one of each, say how
    far it varied. Digits as in `figure`.
    """
    ordered = sorted(samples)
    half = (_at(ordered, _HIGH) - _at(ordered, _LOW)) / 2
    return Figure(rounded(value), max(LEAST_SPREAD, rounded(half / value, 3)))


def rounded(value: float, digits: int = _DIGITS) -> float:
    """With so many digits: more would say more than is known."""
    return float(f"{value:.{digits}g}")


def _at(ordered: Sequence[float], share: float) -> float:
    """The value below which that share of the samples lies; straight lines between them."""
    place = share * (len(ordered) - 1)
    left = min(int(place), len(ordered) - 1)
    right = min(left + 1, len(ordered) - 1)
    return ordered[left] + (place - left) * (ordered[right] - ordered[left])
