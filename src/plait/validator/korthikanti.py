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
from plait.validator.published import Run, Shape, a100_hosts, gpt, number, predict
from plait.validator.table import Compared, Record, Validation

COLUMNS = frozenset(
    {
        "heads", "hidden", "layers", "tp", "pp", "interleave", "gpus", "global_batch", "micro_batch", "seq",
        "iter_full_recompute_s", "iter_selective_sp_s",
    }
)  # fmt: skip
LAYER_COLUMNS = frozenset({"experiment", "forward_ms", "backward_ms"})
SCALED_COLUMNS = frozenset({"model", "gpus", "tp", "pp", "dp", "iter_s", "mfu_pct"})

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
        for column, (recompute, split) in _COLUMNS.items():
            if record[column]:
                rows.append(_compared(record, float(record[column]), recompute, split, profile))
    return Validation(name, "step time", tuple(rows), profile.calibrated_on)


def _compared(record: Record, published: float, recompute: Recompute, split: bool, profile: Profile) -> Compared:
    shape = Shape(
        int(record["hidden"]),
        int(record["heads"]),
        int(record["layers"]),
        int(record["seq"]),
        number(record, "vocab", default=_VOCAB),
    )
    tp, pp, gpus = int(record["tp"]), int(record["pp"]), int(record["gpus"])
    run = Run(
        shape,
        tp,
        pp,
        gpus // (tp * pp),
        int(record["global_batch"]),
        int(record["micro_batch"]),
        int(record["interleave"]),
        recompute,
        split,
    )
    named = MODELS.get(RESIDUE_MODEL)
    calibrated = named == run._replace(recompute="selective", sequence_split=True)
    name = f"{record.get('model') or shape.hidden} {recompute}{' + sequence split' if split else ''}"
    note = profile.note(shape.hidden, gpus)
    return Compared(name, published, predict(run, profile).estimate.step_s, "s", calibrated, note)


def validate_layers(name: str, records: Sequence[Record]) -> list[Validation]:
    """Milliseconds of one layer of the 22B model: what the profile was fitted on, so no test of it."""
    return [validated_layers(name, records, profile_named(PROFILE))]


def validated_layers(name: str, records: Sequence[Record], profile: Profile) -> Validation:
    """As `validate_layers`, with any profile."""
    rows = []
    for record in records:
        forward_s, backward_s = layer_seconds(record["experiment"], profile)
        for column, seconds in (("forward_ms", forward_s), ("backward_ms", backward_s)):
            words = f"{record['experiment']}, {column.removesuffix('_ms')}"
            rows.append(Compared(words, float(record[column]), seconds * 1e3, "ms", calibrated=True))
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
        if record["model"] not in MODELS:
            raise SpecError(f"table {name}: unknown model {record['model']!r}: {nearest(record['model'], MODELS)}")
        one, dp = MODELS[record["model"]], int(record["dp"])
        full = "full recompute" in record.get("note", "")
        run = one._replace(
            dp=dp, batch=one.batch * dp, recompute="full" if full else "selective", sequence_split=not full
        )
        seconds = predict(run, profile).estimate.step_s
        words = f"{record['model']} on {record['gpus']}{', full recompute' if full else ''}"
        rows.append(Compared(words, _published_s(record, run), seconds, "s"))
    return Validation(name, "step time with replicas", tuple(rows), profile.calibrated_on)


def _published_s(record: Record, run: Run) -> float:
    if record["iter_s"]:
        return float(record["iter_s"])
    flops = model_flops(gpt(run.shape), run.batch, run.shape.sequence)
    return flops / (int(record["gpus"]) * _PEAK * float(record["mfu_pct"]) / 100)
