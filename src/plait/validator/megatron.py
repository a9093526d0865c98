"""Megatron-LM on Selene in 2021: step times of ten GPTs on 32 to 3,072 A100.

Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (2021), arXiv
2104.04473, table 1. It gives FLOP/s, which count the recomputed forward; the step's seconds follow from its equation 3.
"""

from __future__ import annotations

from collections.abc import Sequence

from plait.costs.profiles import Profile, profile_named
from plait.costs.work import model_flops
from plait.validator.published import Run, Shape, gpt, integer, number, predict
from plait.validator.table import Compared, Record, Validation

COLUMNS = frozenset({"heads", "hidden", "layers", "tp", "pp", "gpus", "global_batch", "seq", "tflops_per_gpu"})

PROFILE = "a100-megatron-2021"
"""The machine's figures with that year's software."""

_VOCAB = 51200  # section 5.1


def validate(name: str, records: Sequence[Record]) -> list[Validation]:
    """Seconds of a step, row by row."""
    return [validated(name, records, profile_named(PROFILE))]


def validated(name: str, records: Sequence[Record], profile: Profile) -> Validation:
    """As `validate`, with any profile."""
    rows = tuple(_compared(record, profile) for record in records)
    return Validation(name, "step time", rows, profile.calibrated_on, note=_NOTE)


_NOTE = (
    "what the table does not say is chosen: the fastest micro-batch that fits the memory, and in a pipeline the fewest "
    "virtual stages above 1"
)


def run_of(record: Record) -> Run:
    """The row as a run. Micro-batch and virtual stages are used where a table has them."""
    tp, pp, gpus = int(record["tp"]), int(record["pp"]), int(record["gpus"])
    shape = Shape(
        int(record["hidden"]),
        int(record["heads"]),
        int(record["layers"]),
        int(record["seq"]),
        number(record, "vocab", default=_VOCAB),
    )
    return Run(
        shape,
        tp,
        pp,
        gpus // (tp * pp),
        int(record["global_batch"]),
        integer(record, "micro_batch"),
        integer(record, "interleave", "virtual"),
        "full",
    )


def step_s(record: Record) -> float:
    """Published seconds of a step: FLOP of a step with the recomputed forward ÷ what all devices reach together."""
    run = run_of(record)
    flops = model_flops(gpt(run.shape), run.batch, run.shape.sequence, "full")
    return flops / (int(record["gpus"]) * float(record["tflops_per_gpu"]) * 1e12)


def _compared(record: Record, profile: Profile) -> Compared:
    run = run_of(record)
    found = predict(run, profile)
    name = f"{record.get('params_B') or run.shape.hidden}B on {record['gpus']}"
    setup = found.setup
    chosen = f"micro-batch {setup.micro_batch}, {setup.virtual} virtual"
    note = f"{chosen}; {profile.note(run.shape.hidden, int(record['gpus']))}"
    return Compared(name, step_s(record), found.estimate.step_s, "s", note=note)
