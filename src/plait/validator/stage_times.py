"""Profiled times of stages against what the device's profile says of them: nothing is fitted on these.

Qi et al., "Zero Bubble Pipeline Parallelism" (2023), arXiv 2401.10241, tables 3 and 9: F, I and W of a stage of four
GPTs, on A100 without tensor parallelism.
"""

from __future__ import annotations

from collections.abc import Sequence

from plait.costs.layer_times import Times
from plait.costs.profiles import Profile, profile_named
from plait.costs.training import TrainingModel
from plait.errors import SpecError
from plait.plans.split import Split, TrainingSetup
from plait.spec.job import TrainingJob
from plait.validator.cells import number, reading, text, whole
from plait.validator.devices import Ground, ground
from plait.validator.table import Compared, Record, Validation
from plait.validator.zero_bubble_memory import Model, model_of

COLUMNS = frozenset({"model", "pp", "num_microbatches", "tf_ms", "tb_ms", "tw_ms"})

PROFILE = "a100"


def validate(name: str, records: Sequence[Record]) -> list[Validation]:
    """All of a stage's time for one micro-batch, and each of its three parts."""
    return validated(name, records, profile_named(PROFILE))


def validated(name: str, records: Sequence[Record], profile: Profile) -> list[Validation]:
    """As `validate`, with any profile. Errors: SpecError for a model that table 3 does not have."""
    stages: list[Compared] = []
    parts: list[Compared] = []
    for record in records:
        model, positions = model_of(record), whole(record, "pp", most=10**4)
        with reading(record):
            on = ground(record, profile, positions)
            times = stage_times(model, positions, on)
        row = f"{model.name}, {text(record, 'num_microbatches')} micro-batches"
        measured = [number(record, column) for column in ("tf_ms", "tb_ms", "tw_ms")]
        predicted = [seconds * 1e3 for seconds in times[:3]]
        note = on.words
        stages.append(Compared(row, sum(measured), sum(predicted), "ms", note=note))
        for part, published, mine in zip(("F", "I", "W"), measured, predicted, strict=True):
            parts.append(Compared(f"{row}: {part}", published, mine, "ms", note=note, group=part))
    return [
        Validation(name, "time of a stage", tuple(stages), profile.calibrated_on, note=_NOTE),
        Validation(name, "F, I and W of a stage apart", tuple(parts), profile.calibrated_on, note=_NOTE),
    ]


_NOTE = "profile a100 as it is: another machine of the same devices, tp 1, nothing fitted on these rows"


def stage_times(model: Model, positions: int, on: Ground) -> Times:
    """Seconds of one stage between the ends: its layers alone, nothing recomputed."""
    job = TrainingJob(model.micro_batch * positions, model.sequence, "float16", "unfused")
    training = TrainingModel(model.full, job, on.machine, on.profile)
    setup = TrainingSetup(
        Split(pp=positions), "zb-h1", model.micro_batch, positions, recompute="none", fused_attention=False
    )
    if model.full.layers % positions:
        raise SpecError(f"{model.full.layers} layers, the ends' missing ones counted, are not divided by {positions}")
    return training.times(setup).before[model.full.layers // positions]
