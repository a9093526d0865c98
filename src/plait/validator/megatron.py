"""Megatron-LM on Selene in 2021: step times of ten GPTs on 32 to 3,072 A100.

Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (2021), arXiv
2104.04473, table 1. It gives FLOP/s, which count the recomputed forward; the step's seconds follow from its equation 3.
"""

from __future__ import annotations

from collections.abc import Sequence

from plait.costs.profiles import Profile, profile_named
from plait.costs.work import model_flops, model_parameters
from plait.validator.cells import number, reading, whole
from plait.validator.devices import ground
from plait.validator.published import Run, gpt, optional, predict, read_degrees, read_shape
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
    "virtual stages above 1; no figure is fitted on these rows, but two are set by what is known of that year's "
    "software (with those of 2022 the mean of table 1 is 4.6 %), and other rules were looked at (3.2 and 3.8 %)"
)


def run_of(record: Record) -> Run:
    """The row as a run. Micro-batch and virtual stages are used where a table has them."""
    shape = read_shape(record, ("hidden", "heads", "layers", "seq"), _VOCAB)
    return Run(
        shape,
        *read_degrees(record),
        whole(record, "global_batch"),
        optional(record, "micro_batch"),
        optional(record, "interleave"),
        "full",
    )


def step_s(record: Record) -> float:
    """Published seconds of a step: FLOP of a step with the recomputed forward ÷ what all devices reach together."""
    run = run_of(record)
    flops = model_flops(gpt(run.shape), run.batch, run.shape.sequence, "full")
    return flops / (run.tp * run.pp * run.dp * number(record, "tflops_per_gpu") * 1e12)


def _compared(record: Record, profile: Profile) -> Compared:
    with reading(record):
        run = run_of(record)
        published, devices = step_s(record), run.tp * run.pp * run.dp
        on = ground(record, profile, devices)
        found = predict(run, on.profile, machine=on.machine)
    setup = found.setup
    name = f"{record.get('params_B') or gpt_billions(run)}B on {devices}"
    chosen = f"micro-batch {setup.micro_batch}, {setup.virtual} virtual"
    notes = [chosen, on.words, on.profile.note(run.shape.hidden, devices) if on.own else ""]
    return Compared(name, published, found.estimate.step_s, "s", note="; ".join(filter(None, notes)))


def gpt_billions(run: Run) -> str:
    """Parameters in billions, for a line that does not name its model."""
    return f"{model_parameters(gpt(run.shape)).total / 1e9:.3g}"
