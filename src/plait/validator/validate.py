"""Every published table that Plait knows, recognised by its columns, whatever its file is called."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from importlib.resources import files
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from plait.errors import SpecError, UsageError
from plait.validator import (
    collectives,
    distributed_llama,
    gpipe,
    korthikanti,
    megatron,
    stage_times,
    steps,
    tensor_scaling,
    tensor_speedup,
    vtrain,
    zero_bubble,
)
from plait.validator.table import Compared, Record, Validate, Validation, read_records, renamed, spelling


class Known(NamedTuple):
    """A sort of table: the file that comes with Plait, the columns that it is recognised by, and what compares it.

    `one_of`: columns of which a table needs one, where it is not empty. `shipped`: one comes with Plait.
    """

    name: str
    columns: frozenset[str]
    validate: Validate
    one_of: frozenset[str] = frozenset()
    shipped: bool = True

    def missing(self, spelled: Collection[str]) -> list[str]:
        """The columns that a table lacks, by the one spelling of those it has."""
        lacks = sorted(column for column in self.columns if spelling(column) not in spelled)
        if self.one_of and not any(spelling(column) in spelled for column in self.one_of):
            lacks.append(" or ".join(sorted(self.one_of)))
        return lacks


OPTIONAL = (
    "vocab", "interleave", "micro_batch", "params_B", "note", "status", "sync_buffer", "weights", "device", "link",
    "sent_kB", "received_kB", "table", "layers", "heads", "hidden", "seq", "dp", "model", "recompute", "network_ms",
)  # fmt: skip
"""Columns that validators read where a table has them, as they spell them."""


def known_tables() -> tuple[Known, ...]:
    """All sorts, in the order of the page."""
    speed, transfer = distributed_llama.SPEED, distributed_llama.TRANSFER
    return (
        Known("korthikanti2022_tables3_5", korthikanti.COLUMNS, korthikanti.validate, korthikanti.STEP_COLUMNS),
        Known(
            "korthikanti2022_530b_dp8",
            korthikanti.SCALED_COLUMNS,
            korthikanti.validate_scaled,
            korthikanti.SCALED_ONE_OF,
        ),
        Known("korthikanti2022_table4_layer", korthikanti.LAYER_COLUMNS, korthikanti.validate_layers),
        Known("megatron2021_table1", megatron.COLUMNS, megatron.validate),
        Known("vtrain_ground_truth_single", vtrain.COLUMNS, vtrain.validate),
        Known("vtrain_ground_truth_multi", vtrain.COLUMNS, vtrain.validate),
        Known("zero_bubble_table9_profiled", stage_times.COLUMNS, stage_times.validate),
        Known("zero_bubble_tables5_8_bubble", zero_bubble.BUBBLE_COLUMNS, zero_bubble.validate_bubbles),
        Known(
            "zero_bubble_table4_measured",
            zero_bubble.MEASURED_COLUMNS,
            zero_bubble.validate_measured,
            zero_bubble.MEASURED_ONE_OF,
        ),
        Known("gpipe2019_tables2_3", gpipe.COLUMNS, gpipe.validate),
        Known("torchgpipe_speed", gpipe.TORCHGPIPE_COLUMNS, gpipe.validate_torchgpipe),
        Known("vtrain_nccl_allreduce", collectives.COLUMNS, collectives.validate),
        Known("megatron2019_tables7_8", tensor_speedup.COLUMNS, tensor_speedup.validate),
        Known("megatron2019_weak_scaling", tensor_scaling.COLUMNS, tensor_scaling.validate),
        Known(speed, frozenset(distributed_llama.COLUMNS[speed]), _named(speed, distributed_llama.validate)),
        Known(transfer, frozenset(distributed_llama.COLUMNS[transfer]), _named(transfer, distributed_llama.validate)),
        Known("training steps", steps.COLUMNS, steps.validate, steps.STEP_COLUMNS, shipped=False),
    )


def validate_tables(paths: Sequence[Path] | None = None) -> list[Validation]:
    """Compare these tables, or all that come with Plait. Errors: SpecError.

    A table of another name is recognised by its columns, in any order and spelling; one with unknown columns is
    refused, with the nearest sort and what it lacks of it.
    """
    found: list[Validation] = []
    for path in table_paths() if paths is None else paths:
        found += _validated(path)
    return found


def _validated(path: Path) -> Sequence[Validation]:
    """Of one table. Errors: SpecError also where nothing in it can be compared, and where a prediction is no figure."""
    records = read_records(path)
    if not records:
        raise SpecError(f"table {path} has no rows")
    known = recognised(path, records)
    records = renamed(records, {*OPTIONAL, *known.columns, *known.one_of})
    try:
        found = known.validate(path.stem, records)
    except (ArithmeticError, LookupError, TypeError, ValueError) as cause:
        if isinstance(cause, UsageError) and str(cause).startswith("table "):
            raise
        if isinstance(cause, UsageError):
            raise SpecError(f"table {path}: {cause}") from cause
        raise SpecError(f"table {path}: its figures do not go together, nothing can be computed: {cause}") from cause
    if not found or not all(each.rows for each in found):
        raise SpecError(f"table {path} has no row that can be compared: only references, or rows that say too little")
    for each in found:
        for row in each.rows:
            if not ((isfinite(row.predicted) and row.predicted > 0) or row.predicted == row.published == 0):
                raise SpecError(
                    f"table {path}: {each.quantity} of {row.name} is predicted as {row.predicted:g} {row.unit}: "
                    "its figures cannot be right"
                )
    return found


def table_paths() -> list[Path]:
    """The tables that come with Plait and are compared."""
    folder = Path(str(files("plait.validator") / "tables"))
    return [folder / f"{known.name}.csv" for known in known_tables() if known.shipped]


def recognised(path: Path, records: Sequence[Record]) -> Known:
    """The sort of table that these columns are. Errors: SpecError.

    Of several the one that needs most of them.
    """
    columns = {spelling(column) for record in records for column in record}
    fitting = [known for known in known_tables() if not known.missing(columns)]
    if fitting:
        return max(fitting, key=lambda known: len(known.columns))
    nearest = min(known_tables(), key=lambda known: len(known.missing(columns)) / len(known.columns))
    missing = ", ".join(nearest.missing(columns))
    raise SpecError(
        f"table {path} has columns of no table that Plait knows; nearest is {nearest.name}, of which it lacks {missing}"
    )


def validations_json(validations: Iterable[Validation]) -> dict[str, Any]:
    """What `plait validate --json` prints. `rows` is a count; `compared` holds every row."""
    return {"tables": [_json(each) for each in validations]}


def _json(validation: Validation) -> dict[str, Any]:
    return {
        "table": validation.table,
        "quantity": validation.quantity,
        "rows": len(validation.rows),
        "judged_rows": len(validation.unseen),
        "calibrated_on": validation.calibrated_on,
        "mean_abs_error_pct": validation.mean_abs_error_pct,
        "worst_pct": validation.worst_pct,
        "regret_pct": validation.regret_pct,
        "rank_correlation": validation.rank_correlation,
        "note": validation.note,
        "compared": [_row_json(row) for row in validation.rows],
    }


def _row_json(row: Compared) -> dict[str, Any]:
    return {**row._asdict(), "error_pct": row.error_pct}


def _named(name: str, validate: Validate) -> Validate:
    """A validator that tells its tables by name is given its own; the answer bears the file's."""

    def run(table: str, records: Sequence[Record]) -> Sequence[Validation]:
        return [
            Validation(
                table, each.quantity, each.rows, each.calibrated_on, each.regret_pct, each.rank_correlation, each.note
            )
            for each in validate(name, records)
        ]

    return run
