"""Where the rows of the picture stand: for each rank, predicted above measured, each with two bands.

rank 0  predicted  ████ ███ ████   computes
                    ▬   ▬  ▬       talks
        measured   ████  ███ ████
                     ▬    ▬   ▬
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

GAP = 0.5
"""Between two ranks, in heights of a line."""

COMPUTES, TALKS = (0.04, 0.66), (0.72, 0.94)
"""The bands' top and bottom in a line of height 1."""

_MIDDLE = sum(COMPUTES) / 2

MOST_PIXELS = 640
"""The picture's rows are at most so high; where there are more, they are moved up and down."""

_LARGEST, _SMALLEST = 26.0, 9.0
"""Pixels of a line."""

NARROW = 700
"""A picture narrower than this has short labels."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """`line_pixels`: the height of a line, of which every rank has `lines` (one for each timeline)."""

    rows: int
    lines: int
    line_pixels: float

    @property
    def row_height(self) -> float:
        """From one rank to the next, in lines."""
        return self.lines + GAP

    @property
    def height(self) -> float:
        """Of all ranks, in lines."""
        return max(1.0, self.rows * self.row_height - GAP)

    @property
    def shown(self) -> float:
        """What is seen at once, in lines."""
        return min(self.height, MOST_PIXELS / self.line_pixels)

    def top(self, row: int, line: int) -> float:
        """Where a line begins, from the top."""
        return row * self.row_height + line


def make_geometry(rows: int, lines: int) -> Geometry:
    """Lines as high as fit, within bounds."""
    all_lines = max(1.0, rows * (lines + GAP) - GAP)
    return Geometry(rows, lines, min(_LARGEST, max(_SMALLEST, MOST_PIXELS / all_lines)))


def labels(geometry: Geometry, names: Sequence[str], sources: Sequence[str]) -> dict[float, str]:
    """What stands beside each line, by its middle: the rank's name at its first, and which timeline it is.

    Where lines are too low for text, the name alone, in the middle of its lines.
    """
    if geometry.line_pixels < 12 or geometry.lines == 1:
        middle = geometry.lines / 2 if geometry.lines > 1 else _MIDDLE
        return {geometry.top(row, 0) + middle: name for row, name in enumerate(names)}
    return {
        geometry.top(row, line) + _MIDDLE: f"{name}   {source}" if line == 0 else source
        for row, name in enumerate(names)
        for line, source in enumerate(sources)
    }
