"""Published, measured figures beside what the cost model predicts for them: rows, errors, and how tables are read."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from plait.errors import SpecError

Record = dict[str, str]
"""A line of a table: column to text."""


class Compared(NamedTuple):
    """One published figure and its prediction, both in `unit`. `calibrated`: the profile was fitted on this row."""

    name: str
    published: float
    predicted: float
    unit: str
    calibrated: bool = False
    note: str = ""

    @property
    def error_pct(self) -> float:
        """Prediction minus published, in per cent of published."""
        return 100 * (self.predicted / self.published - 1)


@dataclass(frozen=True, slots=True)
class Validation:
    """What one quantity of a table gives. Errors are over the rows not used for calibration, if there are any.

    `calibrated_on` says in words what the profile was fitted on. `regret_pct`: by how much the plan that the model
    would choose is slower than the best measured one, mean over the choices in the table; None where nothing is
    chosen. `rank_correlation`: Spearman's, mean over the choices.
    """

    table: str
    quantity: str
    rows: tuple[Compared, ...]
    calibrated_on: str
    regret_pct: float | None = None
    rank_correlation: float | None = None
    note: str = ""

    @property
    def judged(self) -> tuple[Compared, ...]:
        """The rows that the errors are taken over."""
        return tuple(row for row in self.rows if not row.calibrated) or self.rows

    @property
    def mean_abs_error_pct(self) -> float:
        """Mean of the absolute errors."""
        return mean(abs(row.error_pct) for row in self.judged)

    @property
    def worst_pct(self) -> float:
        """The largest absolute error."""
        return max(abs(row.error_pct) for row in self.judged)


Validate = Callable[[str, Sequence[Record]], Sequence[Validation]]
"""From a table's name and its lines, one validation per quantity."""


def read_records(path: Path) -> list[Record]:
    """The lines of a CSV file, its `#` header left out. Errors: SpecError."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [dict(line) for line in csv.DictReader(line for line in file if not line.startswith("#"))]
    except FileNotFoundError:
        raise SpecError(f"table {path}: no such file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as cause:
        raise SpecError(f"table {path} cannot be read: {cause}") from None
