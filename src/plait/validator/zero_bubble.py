"""Schedules against "Zero Bubble Pipeline Parallelism" (Qi et al., arXiv 2401.10241): bubbles, speed and memory.

Bubbles (tables 5 and 8) were computed by the authors from profiled times (table 9), so those of the same schedules must
come out equal. Theirs counts the longest span of a stage, last end minus first begin, against m (F + I + W). It takes
every stage's times as the profiled ones (that the first and last stage hold a layer fewer does not enter), and each
hand-over as T_comm later, on links that never queue. In 1F1B-I a virtual stage is one layer: v = layers of a stage;
theirs waits for a hand-over from the last position to the first only at the first of each p micro-batches, so ours are
up to 0.4 points longer. Table 8, the only one with ZB-V, was profiled apart, with times that are not published: those
of table 9 are taken.

Samples a second (table 4) are measured. Perfect times leave a residue, which grows with the micro-batches that pass
through stages: a term of its own for each schedule, in seconds for every micro-batch of every stage of a position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from plait.errors import SpecError
from plait.schedules.training import compute_order
from plait.simulator.waves import Replayed, even_run, replay
from plait.validator.cells import has, number, reading, text, where, whole
from plait.validator.devices import is_named
from plait.validator.table import Compared, Record, Validation, read_records
from plait.validator.zero_bubble_memory import Model, model_of, read_models, validate_memory

SCHEDULES: Mapping[str, str] = {
    "1F1B": "1f1b",
    "1F1B-I": "interleaved",
    "ZB-H1": "zb-h1",
    "ZB-H2": "zb-h2",
    "ZB-V": "zb-v",
    "ZB-1p": "zb-h1",
    "ZB-2p": "zb-h2",
}
"""The paper's schedules and ours. ZB-1p and ZB-2p were found by search: ZB-H1 and ZB-H2 hold as much and are near."""

BUBBLE_COLUMNS = frozenset({"model", "pp", "num_microbatches", "schedule", "bubble_rate"})
MEASURED_COLUMNS = frozenset({"model", "pp", "num_microbatches", "schedule"})
MEASURED_ONE_OF = frozenset({"samples_per_gpu_s", "memory_gb"})
"""One of them is enough."""

SEARCHED = ("ZB-1p", "ZB-2p")
EXACT = ("1F1B", "ZB-H1", "ZB-H2")

CALIBRATED_ON = ("14.6B", 64)
"""Each schedule's residue is taken from this model with so many micro-batches, and from no other row."""


class Times(NamedTuple):
    """Profiled seconds of a whole stage's F, I and W of one micro-batch, and of a hand-over (table 9)."""

    forward_s: float
    input_s: float
    weight_s: float
    hand_over_s: float

    @property
    def busy_s(self) -> float:
        """Seconds that a stage computes for a micro-batch."""
        return self.forward_s + self.input_s + self.weight_s


class Run(NamedTuple):
    """A row: which model on how many stages, with how many micro-batches, in which of the paper's schedules."""

    model: str
    positions: int
    micro_batches: int
    schedule: str

    @property
    def name(self) -> str:
        """What the row is called in a report."""
        return f"{self.model}, {self.positions} stages, {self.micro_batches} micro-batches, {self.schedule}"


def validate_bubbles(name: str, records: Sequence[Record]) -> list[Validation]:
    """Tables 5 and 8: the longest spans, of schedules that are not found by search. Errors: SpecError."""
    models = read_models()
    groups: dict[str, list[Compared]] = {}
    for run, times, record in _timed(name, records):
        with reading(record):
            found = replayed(run, times, models[run.model])
        predicted = 1 - run.micro_batches * times.busy_s / found.longest_span_s
        published = number(record, "bubble_rate")
        row = Compared(run.name, published, predicted, "share of the longest span", group=run.model)
        groups.setdefault(_group(record), []).append(row)
    left = len(records) - sum(map(len, groups.values()))
    return [_bubble_validation(name, quantity, rows, left) for quantity, rows in groups.items()]


def _timed(name: str, records: Sequence[Record]) -> list[tuple[Run, Times, Record]]:
    """The rows that there are times for, schedules found by search left out."""
    known = read_times()
    found = []
    for record in records:
        run = read_run(record)
        times = known.get((run.model, run.positions, run.micro_batches))
        number(record, "bubble_rate")
        if times is not None and run.schedule not in SEARCHED and is_named(record, "a100"):
            found.append((run, times, record))
    if not found:
        raise SpecError(f"table {name}: no row is of a schedule and a run whose times, on A100, table 9 has")
    return found


def _group(record: Record) -> str:
    schedule = text(record, "schedule")
    where = " of table 8, with the times of table 9" if record.get("table") == "table8" else ""
    kind = "bubble of 1F1B, ZB-H1 and ZB-H2" if schedule in EXACT else f"bubble of {schedule}"
    return kind + where


def _bubble_validation(name: str, quantity: str, rows: Sequence[Compared], left: int) -> Validation:
    points = max(100 * abs(row.predicted - row.published) for row in rows)
    return Validation(
        name,
        quantity,
        tuple(rows),
        "nothing: the profiled times of table 9 are what goes in",
        note=f"at most {points:.2f} points apart; {left} rows of the table are left out: of schedules found by search "
        "(ZB-1p, ZB-2p), and of runs or devices whose times are not published",
    )


def validate_measured(name: str, records: Sequence[Record]) -> list[Validation]:
    """Table 4: samples a second, with perfect times and with the residue, and peak memory. Errors: SpecError."""
    timed = [record for record in records if has(record, "samples_per_gpu_s")]
    weighed = [record for record in records if has(record, "memory_gb")]
    for record in records:
        if not has(record, "samples_per_gpu_s") and not has(record, "memory_gb"):
            raise SpecError(f"{where(record)}: it has neither samples_per_gpu_s nor memory_gb")
    speeds = _throughput(name, timed) if timed else []
    memory = validate_memory(name, weighed, SCHEDULES) if weighed else []
    if timed and not speeds:
        words = "samples a second are not compared: table 9 has no times for these runs on this device"
        memory = [replace(each, note="; ".join(filter(None, [each.note, words]))) for each in memory]
    return [*speeds, *memory]


def _throughput(name: str, records: Sequence[Record]) -> list[Validation]:
    known, models = read_times(), read_models()
    told = [(read_run(record), record) for record in records]
    published = {run: number(record, "samples_per_gpu_s") for run, record in told}
    runs = [
        (run, record)
        for run, record in told
        if (run.model, run.positions, run.micro_batches) in known
        and model_of(record) == models[run.model]
        and is_named(record, "a100")
    ]
    if not runs:
        return []
    left = len(told) - len(runs)
    note = f"; {left} rows are left out: runs or devices whose times table 9 does not have" if left else ""
    perfect: dict[Run, float] = {}
    for run, record in runs:
        with reading(record):
            perfect[run] = _step_s(run, known, models)
    residues = {
        run.schedule: (_measured_s(run, models, published[run]) - perfect[run]) / _passes(run, models)
        for run, _ in runs
        if (run.model, run.micro_batches) == CALIBRATED_ON
    }
    plain, whole = [], []
    for run, _ in runs:
        residue_s = residues.get(run.schedule)
        plain.append(_samples(run, models, published[run], perfect[run]))
        if residue_s is not None:
            step_s = perfect[run] + residue_s * _passes(run, models)
            whole.append(_samples(run, models, published[run], step_s, (run.model, run.micro_batches) == CALIBRATED_ON))
    told_residues = ", ".join(f"{schedule} {1e3 * residue_s:.2f} ms" for schedule, residue_s in residues.items())
    quantities = [
        Validation(
            name,
            "samples a second and GPU, perfect times",
            tuple(plain),
            "nothing: the profiled times of table 9 are what goes in",
            note=f"what is missing is the residue{note}",
        )
    ]
    if whole:
        quantities.append(
            Validation(
                name,
                "samples a second and GPU",
                tuple(whole),
                f"each schedule's row of {CALIBRATED_ON[0]} with {CALIBRATED_ON[1]} micro-batches",
                note=f"residue of every micro-batch in every stage of a position: {told_residues}{note}",
            )
        )
    return quantities


def _samples(
    run: Run, models: Mapping[str, Model], published: float, step_s: float, calibrated: bool = False
) -> Compared:
    predicted = run.micro_batches * models[run.model].micro_batch / run.positions / step_s
    note = f"taken as {SCHEDULES[run.schedule]}" if run.schedule in SEARCHED else ""
    return Compared(run.name, published, predicted, "samples/s/GPU", calibrated, note, run.model)


def _step_s(run: Run, known: Mapping[tuple[str, int, int], Times], models: Mapping[str, Model]) -> float:
    """A step's time when the next one begins on each stage as soon as it can: the longest span.

    The authors' optimizer does not wait for all stages (section 4 of the paper).
    """
    times = known[run.model, run.positions, run.micro_batches]
    return replayed(run, times, models[run.model]).longest_span_s


def _measured_s(run: Run, models: Mapping[str, Model], samples: float) -> float:
    return run.micro_batches * models[run.model].micro_batch / run.positions / samples


def _passes(run: Run, models: Mapping[str, Model]) -> int:
    return run.micro_batches * virtual_stages(run, models[run.model])


def virtual_stages(run: Run, model: Model) -> int:
    """Stages a position in the paper's runs: one layer each in 1F1B-I, two in ZB-V."""
    if run.schedule == "1F1B-I":
        return model.stage_layers(run.positions)
    return 2 if run.schedule == "ZB-V" else 1


def replayed(run: Run, times: Times, model: Model) -> Replayed:
    """The run's schedule with perfect times: all stages alike, every hand-over as late as profiled."""
    virtual = virtual_stages(run, model)
    order = compute_order(SCHEDULES[run.schedule], run.positions, virtual, run.micro_batches)
    seconds = (times.forward_s / virtual, times.input_s / virtual, times.weight_s / virtual)
    return replay([even_run(order, *seconds, times.hand_over_s)])[0]


def read_run(record: Record) -> Run:
    """A line of tables 4, 5 or 8. Errors: SpecError."""
    schedule = text(record, "schedule", SCHEDULES)
    positions, count = whole(record, "pp", most=1000), whole(record, "num_microbatches", most=10**4)
    return Run(text(record, "model"), positions, count, schedule)


def read_times() -> dict[tuple[str, int, int], Times]:
    """Table 9: by model, stages and micro-batches."""
    path = Path(str(files("plait.validator") / "tables" / "zero_bubble_table9_profiled.csv"))
    return {
        (record["model"], whole(record, "pp"), whole(record, "num_microbatches")): Times(
            *(number(record, column) * 1e-3 for column in ("tf_ms", "tb_ms", "tw_ms", "tcomm_ms"))
        )
        for record in read_records(path)
    }
