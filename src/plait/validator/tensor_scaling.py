"""Weak scaling of tensor parallelism inside a host (Megatron-LM 2019, figure 5), by the machine of `tensor_speedup`."""

from __future__ import annotations

from collections.abc import Sequence

from plait.validator.table import Compared, Record, Validation
from plait.validator.tensor_speedup import CALIBRATED_ON, calibrated_runs, scaled, scaling_pct, solved_machine

COLUMNS = frozenset({"hidden", "heads", "layers", "tp", "scaling_mp_pct"})


def validate(name: str, records: Sequence[Record]) -> list[Validation]:
    """Per cent of the one-GPU baseline that each model reaches on its `tp` GPUs; nothing here is fitted on this table.

    Its first row is the baseline and its last is also a row of table 7, which the machine was solved from.
    """
    machine = solved_machine()
    rows = []
    for record in records:
        hidden, heads, layers, tp = (int(record[key]) for key in ("hidden", "heads", "layers", "tp"))
        run = scaled(hidden, heads, layers, tp, float(record["scaling_mp_pct"]))
        rows.append(
            Compared(
                f"{record.get('params_B', '?')}B on {tp}",
                float(record["scaling_mp_pct"]),
                scaling_pct(machine, run),
                "%",
                calibrated=run in calibrated_runs(),
                note="published figure unverified" if "unverified" in record.get("status", "") else "",
            )
        )
    note = "tensor parallelism alone; the columns with data parallelism over 512 GPUs are not predicted here"
    return [Validation(name, "weak scaling over tp", tuple(rows), CALIBRATED_ON, note=note)]
