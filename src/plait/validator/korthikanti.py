"""Megatron-LM on Selene in 2022: step times with full and with selective recompute, and one layer's milliseconds.

Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022), arXiv 2205.05198, tables 3
to 5 and section 6.3. The layer times of table 4 are what the machine's profile is calibrated on.
"""

from __future__ import annotations

from collections.abc import Sequence

from plait.costs.profiles import Profile, profile_named
from plait.costs.training import TrainingModel
from plait.costs.work import model_flops
from plait.errors import SpecError, nearest
from plait.plans.split import Recompute, Split, TrainingSetup
from plait.spec.job import TrainingJob
from plait.validator.cells import has, number, reading, text, where, whole
from plait.validator.devices import ground, is_named
from plait.validator.published import Run, Shape, a100_hosts, gpt, optional, predict, read_degrees, read_shape
from plait.validator.table import Compared, Record, Validation

COLUMNS = frozenset(
    {
        "heads", "hidden", "layers", "tp", "pp", "gpus", "global_batch", "micro_batch", "seq",
    }
)  # fmt: skip
STEP_COLUMNS = frozenset({"iter_full_recompute_s", "iter_selective_sp_s"})
"""One of them is enough."""

LAYER_COLUMNS = frozenset({"experiment", "forward_ms", "backward_ms"})
SCALED_COLUMNS = frozenset({"model", "gpus", "tp", "pp", "dp"})
SCALED_ONE_OF = frozenset({"iter_s", "mfu_pct"})

PROFILE = "a100"
"""The machine's figures with that year's software."""

RESIDUE_MODEL = "175B"
"""The model whose two steps say how large this machine's residue is."""

_VOCAB, _SEQUENCE, _PEAK = 51200, 2048, 312e12  # section 6

MODELS = {
    "22B": Run(Shape(6144, 64, 48, 2048, 51200), 8, 1, 1, 4, 4, 1, "selective", sequence_split=True),
    "175B": Run(Shape(12288, 96, 96, 2048, 51200), 8, 8, 1, 64, 1, 3, "selective", sequence_split=True),
    "530B": Run(Shape(20480, 128, 105, 2048, 51200), 8, 35, 1, 280, 1, 3, "selective", sequence_split=True),
    "1T": Run(Shape(25600, 160, 128, 2048, 51200), 8, 64, 1, 512, 1, 1, "selective", sequence_split=True),
}
"""Table 3, with one replica."""

_COLUMNS: dict[str, tuple[Recompute, bool]] = {
    "iter_full_recompute_s": ("full", False),
    "iter_selective_sp_s": ("selective", True),
}
_EXPERIMENTS: dict[str, tuple[Recompute, bool]] = {
    "baseline no recompute": ("none", False),
    "sequence parallelism": ("none", True),
    "full recompute": ("full", False),
    "selective recompute": ("selective", False),
    "selective + sequence parallelism": ("selective", True),
}


def validate(name: str, records: Sequence[Record]) -> list[Validation]:
    """Seconds of a step with full recompute, and with selective recompute and sequence split."""
    return [validated(name, records, profile_named(PROFILE))]


def validated(name: str, records: Sequence[Record], profile: Profile) -> Validation:
    """As `validate`, with any profile."""
    rows: list[Compared] = []
    for record in records:
        told = [column for column in _COLUMNS if has(record, column)]
        if not told:
            raise SpecError(f"{where(record)}: it has no step time in {' or '.join(_COLUMNS)}")
        rows += [_compared(record, column, *_COLUMNS[column], profile) for column in told]
    return Validation(name, "step time", tuple(rows), profile.calibrated_on)


def _compared(record: Record, column: str, recompute: Recompute, split: bool, profile: Profile) -> Compared:
    with reading(record):
        run = Run(
            read_shape(record, ("hidden", "heads", "layers", "seq"), _VOCAB),
            *read_degrees(record),
            whole(record, "global_batch"),
            whole(record, "micro_batch"),
            optional(record, "interleave"),
            recompute,
            split,
        )
        devices = run.tp * run.pp * run.dp
        on = ground(record, profile, devices)
        seconds = predict(run, on.profile, machine=on.machine).estimate.step_s
    same = MODELS[RESIDUE_MODEL] == run._replace(recompute="selective", sequence_split=True)
    name = f"{record.get('model') or run.shape.hidden} {recompute}{' + sequence split' if split else ''}"
    notes = [on.words, on.profile.note(run.shape.hidden, devices) if on.own else ""]
    return Compared(name, number(record, column), seconds, "s", on.own and same, "; ".join(filter(None, notes)))


def validate_layers(name: str, records: Sequence[Record]) -> list[Validation]:
    """Milliseconds of one layer of the 22B model: what the profile was fitted on, so no test of it."""
    return [validated_layers(name, records, profile_named(PROFILE))]


def validated_layers(name: str, records: Sequence[Record], profile: Profile) -> Validation:
    """As `validate_layers`, with any profile."""
    rows = []
    for record in records:
        experiment = text(record, "experiment", _EXPERIMENTS)
        if not is_named(record, "a100"):
            raise SpecError(f"{where(record)}: layer times are of one model on 8 A100, not of another device")
        for column, seconds in zip(("forward_ms", "backward_ms"), layer_seconds(experiment, profile), strict=True):
            words = f"{experiment}, {column.removesuffix('_ms')}"
            rows.append(Compared(words, number(record, column), seconds * 1e3, "ms", calibrated=True))
    return Validation(
        name, "layer time", tuple(rows), profile.calibrated_on, note="the profile was fitted on these rows"
    )


def layer_seconds(experiment: str, profile: Profile) -> tuple[float, float]:
    """Forward and backward of one layer of the 22B model on 8 devices, micro-batch 4. Errors: SpecError."""
    if experiment not in _EXPERIMENTS:
        raise SpecError(f"unknown experiment {experiment!r}: {nearest(experiment, _EXPERIMENTS)}")
    recompute, split = _EXPERIMENTS[experiment]
    job = TrainingJob(4, _SEQUENCE, "float16", "unfused")
    model = TrainingModel(gpt(MODELS["22B"].shape), job, a100_hosts(8), profile)
    setup = TrainingSetup(Split(tp=8), "1f1b", 4, 1, 1, recompute, 0, split, False)
    times = model.times(setup).before[1]
    return times.forward_s, times.input_s + times.weight_s


def validate_scaled(name: str, records: Sequence[Record]) -> list[Validation]:
    """The same models with replicas, whose gradients are reduced after the last backward."""
    return [validated_scaled(name, records, profile_named(PROFILE))]


def validated_scaled(name: str, records: Sequence[Record], profile: Profile) -> Validation:
    """As `validate_scaled`, with any profile. Where a row has no seconds they follow from its MFU."""
    rows = []
    for record in records:
        one = MODELS[text(record, "model", MODELS)]
        with reading(record):
            tp, pp, dp = read_degrees(record)
            full = "full recompute" in record.get("note", "")
            run = one._replace(
                tp=tp, pp=pp, dp=dp, batch=one.batch * dp, recompute="full" if full else "selective"
            )._replace(sequence_split=not full)
            on = ground(record, profile, tp * pp * dp)
            seconds = predict(run, on.profile, machine=on.machine).estimate.step_s
        words = f"{record['model']} on {tp * pp * dp}{', full recompute' if full else ''}"
        notes = [on.words, on.profile.note(run.shape.hidden, tp * pp * dp) if on.own else ""]
        same = on.own and record["model"] == RESIDUE_MODEL and dp == 1
        rows.append(Compared(words, _published_s(record, run), seconds, "s", same, "; ".join(filter(None, notes))))
    return Validation(name, "step time with replicas", tuple(rows), profile.calibrated_on)


def _published_s(record: Record, run: Run) -> float:
    if has(record, "iter_s"):
        return number(record, "iter_s")
    flops = model_flops(gpt(run.shape), run.batch, run.shape.sequence)
    return flops / (run.tp * run.pp * run.dp * _PEAK * number(record, "mfu_pct") / 100)
