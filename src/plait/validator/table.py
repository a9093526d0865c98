"""Published, measured figures beside what the cost model predicts for them: rows, errors, and how tables are read.

Tables are CSV with a `#` header of words, columns in any order and spelling: `hidden size`, `# GPUs` and
`iteration time (ms)` are `hidden`, `gpus` and `iteration_time_ms`. Names are compared in one spelling.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from plait.errors import SpecError
from plait.validator.cells import Line, Record

__all__ = ["Compared", "Record", "Validate", "Validation", "read_records", "renamed", "spelling"]


class Compared(NamedTuple):
    """One published figure and its prediction, both in `unit`. `calibrated`: the profile was fitted on this row.

    `group`: which rows of a long table are summed up together.
    """

    name: str
    published: float
    predicted: float
    unit: str
    calibrated: bool = False
    note: str = ""
    group: str = ""

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
    def unseen(self) -> tuple[Compared, ...]:
        """The rows that nothing was fitted on: none where a table is all calibration."""
        return tuple(row for row in self.rows if not row.calibrated)

    @property
    def judged(self) -> tuple[Compared, ...]:
        """The rows that the errors are taken over."""
        return self.unseen or self.rows

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

_SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "hidden": ("hidden_size", "hidden_dim", "d_model"),
    "heads": ("attention_heads",),
    "layers": ("transformer_layers",),
    "seq": ("sequence", "sequence_length", "seq_len", "seq_length"),
    "tp": ("tensor_parallelism", "tensor_parallel", "tensor_parallel_size", "tp_size", "tensor_model_parallel_size"),
    "pp": (
        "pipeline_parallelism", "pipeline_parallel", "pipeline_parallel_size", "pp_size",
        "pipeline_model_parallel_size",
    ),
    "dp": ("data_parallelism", "data_parallel", "data_parallel_size", "dp_size"),
    "global_batch": ("global_batch_size", "gbs"),
    "micro_batch": ("micro_batch_size", "microbatch", "microbatch_size", "mbs"),
    "microbatches": ("micro_batches",),
    "interleave": ("virtual", "virtual_stages", "interleaving", "interleaved_stages"),
    "vocab": ("vocab_size", "vocabulary"),
    "tflops_per_gpu": ("teraflops_per_gpu", "teraflop_s_per_gpu", "achieved_teraflop_s_per_gpu", "tflop_s_per_gpu"),
    "iteration_time_ms": ("iter_ms", "iter_time_ms", "iteration_ms", "step_ms", "step_time_ms"),
    "samples_per_s": ("samples_per_second", "sequences_per_s", "sequences_per_second"),
    "tokens_per_s": ("tokens_per_second", "tokens_s"),
    "tokens_per_gpu_s": ("tokens_per_s_per_gpu", "tokens_per_second_per_gpu", "tokens_s_gpu", "tokens_per_gpu_per_s"),
    "recompute": ("recomputation", "activation_recompute", "activation_checkpointing", "checkpointing"),
    "iter_s": ("iteration_time_s", "iteration_s", "step_s", "step_time_s", "iter_time_s"),
}  # fmt: skip
"""A column's name, and others for it, after `spelling` has made them lower case and taken counts' words away."""

_NAMES = {other: name for name, others in _SPELLINGS.items() for other in others}


def spelling(column: str) -> str:
    """The one spelling of a column's name: ``# GPUs`` and ``num_gpus`` are ``gpus``, ``K`` is ``k``."""
    plain = re.sub(r"[^0-9a-z]+", "_", column.lower()).strip("_")
    plain = re.sub(r"^(number_of|num|n|no)_", "", plain)
    return _NAMES.get(plain, plain)


def renamed(records: Sequence[Record], names: Iterable[str]) -> list[Record]:
    """The lines with these names for their columns, where they have them in some spelling; others stay as they are."""
    wanted = [(name, spelling(name)) for name in names]
    return [_renamed(record, wanted) for record in records]


def _renamed(record: Record, wanted: Sequence[tuple[str, str]]) -> Record:
    cells = {spelling(column): cell for column, cell in record.items()}
    values = {**{name: cells[spelled] for name, spelled in wanted if spelled in cells}, **record}
    values = {**record, **values}  # the file's own columns first, as errors name the first ones
    return Line(values, record.where, record.hardware) if isinstance(record, Line) else values


def read_records(path: Path) -> list[Record]:
    """The lines of a CSV file, its `#` header left out. Errors: SpecError.

    A header of columns that itself begins with `#` is taken where the first line without one holds figures.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
        return _records(path, lines)
    except FileNotFoundError:
        raise SpecError(f"table {path}: no such file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as cause:
        raise SpecError(f"table {path} cannot be read: {cause}") from None


def _records(path: Path, lines: Sequence[str]) -> list[Record]:
    words = [line.lstrip("# \t") for line in lines if line.startswith("#")]
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")]
    if not numbered:
        return []
    mark = _delimiter(numbered[0][1])
    reader = csv.reader((line for _, line in numbered), delimiter=mark)
    rows = [([cell.strip() for cell in cells], numbered[reader.line_num - 1][0]) for cells in reader]
    header = rows[0][0]
    if any(_is_number(cell) for cell in header):
        header = _hidden_header(path, words, mark, len(header))
    else:
        rows = rows[1:]
    twice = sorted({column for column in header if column and header.count(column) > 1})
    if twice:
        raise SpecError(f"table {path} has two columns named {', '.join(twice)}")
    hardware = next((line.partition(":")[2].strip() for line in words if line.lower().startswith("hardware:")), "")
    return [_line(path, number, header, cells, hardware) for cells, number in rows if any(cells)]


def _delimiter(header: str) -> str:
    return max(",;\t", key=header.count)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _hidden_header(path: Path, words: Sequence[str], mark: str, count: int) -> list[str]:
    """The last `#` line with as many cells. Errors: SpecError where there is none."""
    for line in reversed(words):
        cells = [cell.strip() for cell in next(csv.reader([line], delimiter=mark), [])]
        if len(cells) == count and count > 1:
            return cells
    raise SpecError(f"table {path} has no header: its first line holds figures; name the columns in the line before")


def _line(path: Path, number: int, header: Sequence[str], cells: Sequence[str], hardware: str) -> Record:
    if len(cells) > len(
        header
    ):  # a comma in words that nobody quoted, or too many figures: the last column's reader sees
        cells = [*cells[: len(header) - 1], ", ".join(cells[len(header) - 1 :])]
    return Line(dict(zip(header, cells, strict=False)), f"table {path}, line {number}", hardware)
