"""Step times of training runs in tables that do not come with Plait: any GPT, any degrees, on A100 or another device.

What is measured may be a step's time or samples or tokens a second. On A100 it is predicted with profile a100, on
another device from its data sheet. Nothing is ever fitted on such a table.
"""

from __future__ import annotations

from collections.abc import Sequence

from plait.costs.profiles import Profile, profile_named
from plait.errors import SpecError
from plait.plans.split import Recompute
from plait.validator.cells import has, number, reading, text, where, whole
from plait.validator.devices import ground
from plait.validator.published import Run, optional, predict, read_degrees, read_shape
from plait.validator.table import Compared, Record, Validation

COLUMNS = frozenset({"heads", "hidden", "layers", "tp", "pp", "gpus", "global_batch", "seq"})
STEP_COLUMNS = frozenset({"iteration_time_ms", "iter_s", "samples_per_s", "tokens_per_s", "tokens_per_gpu_s"})
"""One of them is enough."""

PROFILE = "a100"

_VOCAB = 51200
_RECOMPUTE: dict[str, Recompute] = {"none": "none", "no": "none", "selective": "selective", "full": "full"}

_NOTE = (
    "every model is taken for a GPT with an MLP of 4 × hidden; what a row does not say is chosen: the fastest "
    "micro-batch that fits, the fewest virtual stages above 1 in a pipeline, full recompute"
)


def validate(name: str, records: Sequence[Record]) -> list[Validation]:
    """Seconds of a step, row by row. Errors: SpecError."""
    profile = profile_named(PROFILE)
    rows = tuple(_compared(record, profile) for record in records)
    return [Validation(name, "step time", rows, profile.calibrated_on, note=_NOTE)]


def _compared(record: Record, profile: Profile) -> Compared:
    with reading(record):
        run = run_of(record)
        devices = run.tp * run.pp * run.dp
        on = ground(record, profile, devices)
        found = predict(run, on.profile, machine=on.machine)
    setup = found.setup
    chosen = f"micro-batch {setup.micro_batch}, {setup.virtual} virtual, recompute {setup.recompute}"
    notes = [chosen, on.words, on.profile.note(run.shape.hidden, devices) if on.own else ""]
    name = f"{record.get('model') or f'hidden {run.shape.hidden}'} on {devices}: tp{run.tp} pp{run.pp} dp{run.dp}"
    seconds = found.estimate.step_s
    return Compared(name, step_s(record, run), seconds, "s", note="; ".join(filter(None, notes)))


def run_of(record: Record) -> Run:
    """The row as a run. Errors: SpecError."""
    recompute: Recompute = "full"
    if has(record, "recompute"):
        said = text(record, "recompute").lower()
        recompute = _RECOMPUTE[said if said in _RECOMPUTE else text(record, "recompute", _RECOMPUTE)]
    return Run(
        read_shape(record, ("hidden", "heads", "layers", "seq"), _VOCAB),
        *read_degrees(record),
        whole(record, "global_batch"),
        optional(record, "micro_batch"),
        optional(record, "interleave"),
        recompute,
    )


def step_s(record: Record, run: Run) -> float:
    """Measured seconds of a step, from the first column that has something. Errors: SpecError."""
    tokens = run.batch * run.shape.sequence
    if has(record, "iter_s"):
        return number(record, "iter_s")
    if has(record, "iteration_time_ms"):
        return number(record, "iteration_time_ms") * 1e-3
    if has(record, "samples_per_s"):
        return run.batch / number(record, "samples_per_s")
    if has(record, "tokens_per_s"):
        return tokens / number(record, "tokens_per_s")
    if has(record, "tokens_per_gpu_s"):
        return tokens / (number(record, "tokens_per_gpu_s") * run.tp * run.pp * run.dp)
    raise SpecError(f"{where(record)}: it has none of {', '.join(sorted(STEP_COLUMNS))}")
