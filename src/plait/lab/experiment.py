"""An experiment of the lab: a claim about splitting, measured here beside what is predicted for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from plait.reports.charts import Chart as Chart  # noqa: PLC0414  the lab gives them on
from plait.reports.charts import Series as Series  # noqa: PLC0414

Size = Literal["full", "short"]
"""`short`: a small form for a test, on the virtual clock or with stages that only wait."""

Say = Callable[[str], None]
"""Told in a few words what is being measured."""


class Check(NamedTuple):
    """A figure, predicted and measured. `unit`: a printing unit, as in "tokens/s", "points", "bytes", "s".

    `bound`: how far measured may lie from predicted: relative to the predicted where `relative`, else in `unit`. 0 asks
    for the same.
    """

    what: str
    predicted: float
    measured: float
    unit: str
    bound: float
    relative: bool = True

    @property
    def off(self) -> float:
        """Measured from predicted, as `bound` counts it."""
        difference = self.measured - self.predicted
        return difference / self.predicted if self.relative and self.predicted else difference

    @property
    def holds(self) -> bool:
        """Within the bound."""
        return abs(self.off) <= self.bound


class Table(NamedTuple):
    """Rows of what was measured, beside what was predicted."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an experiment found.

    `sentence` says it with the numbers measured here; `notes` what must be known of them.
    """

    experiment: str
    checks: tuple[Check, ...]
    sentence: str
    table: Table
    charts: tuple[Chart, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        """Every figure is within its bound."""
        return all(check.holds for check in self.checks)


@dataclass(frozen=True, slots=True)
class Experiment:
    """`name`: as typed. `claim`: what people say. `formula`: what is predicted, with lower and upper bound, in words.

    `how`: what is measured, and how. `run` measures it.
    """

    name: str
    title: str
    claim: str
    formula: str
    how: str
    run: Callable[[Size, Say], Outcome]
