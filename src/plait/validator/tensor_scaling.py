"""Weak scaling of tensor parallelism inside a host (Megatron-LM 2019, figure 5), by the machine of `tensor_speedup`."""

from __future__ import annotations

from collections.abc import Sequence

from plait.errors import SpecError
from plait.validator.cells import number, reading, where, whole
from plait.validator.table import Compared, Record, Validation
from plait.validator.tensor_speedup import (
    CALIBRATED_ON,
    calibrated_runs,
    other_device,
    scaled,
    scaling_pct,
    solved_machine,
)

COLUMNS = frozenset({"hidden", "heads", "layers", "tp", "scaling_mp_pct"})


def validate(name: str, records: Sequence[Record]) -> list[Validation]:
    """Per cent of the one-GPU baseline that each model reaches on its `tp` GPUs; nothing here is fitted on this table.

    Its first row is the baseline and its last is also a row of table 7, which the machine was solved from.
    """
    machine = solved_machine()
    rows = []
    for record in records:
        hidden, heads, layers, tp = (whole(record, key, most=10**5) for key in ("hidden", "heads", "layers", "tp"))
        if hidden % heads or tp > heads:
            raise SpecError(
                f"{where(record)}: heads is {heads}, but must divide hidden {hidden} and be at least tp {tp}"
            )
        published = number(record, "scaling_mp_pct")
        run = scaled(hidden, heads, layers, tp, published)
        with reading(record):
            predicted = scaling_pct(machine, run)
        notes = [
            other_device(record),
            "published figure unverified" if "unverified" in record.get("status", "") else "",
        ]
        calibrated = run in calibrated_runs() and not notes[0]
        title = f"{record['params_B']}B on {tp}" if record.get("params_B") else f"hidden {hidden} on {tp}"
        rows.append(Compared(title, published, predicted, "%", calibrated, "; ".join(filter(None, notes))))
    note = "tensor parallelism alone; the columns with data parallelism over 512 GPUs are not predicted here"
    return [Validation(name, "weak scaling over tp", tuple(rows), CALIBRATED_ON, note=note)]
