"""Peak memory of "Zero Bubble Pipeline Parallelism" (Qi et al., arXiv 2401.10241, table 4) from counts alone.

Activations in flight by schedule times what a layer keeps (unfused attention, dropout, nothing recomputed: 34 s b h +
5 b s² a bytes), and the states. The table does not say whether its GB are 10⁹ or 2³⁰ bytes, nor what the states take:
10⁹ and 16 bytes a parameter (16-bit weights and gradients, Adam in float32) are the pair that fits its 1F1B rows best;
with 2³⁰ and 18 bytes (float32 gradients) they are up to 8.7 % lower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from plait.costs.operations import Work
from plait.costs.shares import whole as whole_share
from plait.costs.states import rank_parameters, recipe_named
from plait.costs.training_memory import LayerBytes, position_bytes
from plait.errors import SpecError
from plait.plans.split import Split, TrainingSetup
from plait.spec.model import ModelSpec
from plait.validator.cells import has, number, reading, text, where, whole
from plait.validator.published import Shape, gpt
from plait.validator.table import Compared, Record, Validation, read_records

GB = 1e9
RECIPE = "mixed"
_VOCAB = 50304
"""Of GPT-2, padded to a multiple of 128: the paper does not say; the fullest stage has no embedding."""


class Model(NamedTuple):
    """A line of table 3. `layers`: the first and the last stage hold one fewer than the others."""

    name: str
    layers: int
    heads: int
    hidden: int
    sequence: int
    micro_batch: int

    @property
    def full(self) -> ModelSpec:
        """The GPT that it is, with the two layers that its first and last stage lack."""
        return gpt(Shape(self.hidden, self.heads, self.layers + 2, self.sequence, _VOCAB))

    def stage_layers(self, positions: int) -> int:
        """Layers of a stage that is neither the first nor the last."""
        return (self.layers + 2) // positions


def read_models() -> dict[str, Model]:
    """Table 3, by name."""
    path = Path(str(files("plait.validator") / "tables" / "zero_bubble_table3_configs.csv"))
    columns = ("layers", "heads", "hidden", "seq", "micro_batch")
    return {
        record["model"]: Model(record["model"], *(int(record[column]) for column in columns))
        for record in read_records(path)
    }


def model_of(record: Record) -> Model:
    """The model that a line names, or that its own columns say: layers, heads, hidden, seq and micro_batch.

    The micro-batch is the line's, where it says one.

    Errors: SpecError.
    """
    known, name = read_models(), text(record, "model")
    if name in known:
        given = has(record, "micro_batch")
        return known[name]._replace(micro_batch=whole(record, "micro_batch", most=10**6)) if given else known[name]
    columns = ("layers", "heads", "hidden", "seq", "micro_batch")
    if not all(has(record, column) for column in columns):
        text(record, "model", known)
    found = Model(name, *(whole(record, column, most=10**6) for column in columns))
    if found.layers > 10**4 or found.hidden % found.heads:
        raise SpecError(f"{where(record)}: {found.layers} layers of hidden {found.hidden} with {found.heads} heads")
    return found


def validate_memory(name: str, records: Sequence[Record], schedules: Mapping[str, str]) -> list[Validation]:
    """Peak bytes of the fullest device, a validation for each of the paper's schedules. Errors: SpecError."""
    groups: dict[str, list[Compared]] = {}
    for record in records:
        model, positions = model_of(record), whole(record, "pp", most=1000)
        count, schedule = whole(record, "num_microbatches", most=10**5), text(record, "schedule", schedules)
        with reading(record):
            predicted = peak_gb(model, positions, count, schedules[schedule])
        title = f"{model.name}, {positions} stages, {count} micro-batches, {schedule}"
        row = Compared(title, number(record, "memory_gb"), predicted, "GB", group=model.name)
        groups.setdefault(schedule, []).append(row)
    return [
        Validation(name, f"peak memory of {schedule}", tuple(rows), _CHOSEN, note=_memory_note(schedule, schedules))
        for schedule, rows in groups.items()
    ]


_CHOSEN = (
    "no constant, but a choice made by looking at the table's 1F1B rows: GB of 10⁹ bytes and 16 bytes a parameter, of "
    "10⁹ or 2³⁰ and 16 or 18"
)


def _memory_note(schedule: str, schedules: Mapping[str, str]) -> str:
    """What a schedule is taken as; 1F1B's rows are those that the choice was made on."""
    if schedule == "1F1B":
        return "these are the rows that the choice was made on: they are no test of it"
    ours = schedules[schedule]
    return "" if ours == schedule.lower() else f"taken as {ours}"


def peak_gb(
    model: Model, positions: int, micro_batches: int, schedule: str, recipe: str = RECIPE, unit_bytes: float = GB
) -> float:
    """The fullest device's need in GB. It is none at the ends: those hold a layer fewer."""
    spec = model.full
    virtual = model.stage_layers(positions) if schedule == "interleaved" else 2 if schedule == "zb-v" else 1
    if positions < 3 or spec.layers % (positions * virtual):
        raise SpecError(f"{spec.layers} layers, the ends' missing ones counted, are not dealt to {positions} stages")
    tokens = model.sequence * model.micro_batch
    # unfused attention computes all pairs
    work = Work(tokens, tokens * model.sequence, whole_share(spec), fused=False, dropout=True)
    stages = positions * virtual
    each = spec.layers // stages
    cut = tuple((stage * each, (stage + 1) * each) for stage in range(stages))
    setup = TrainingSetup(Split(pp=positions), schedule, model.micro_batch, micro_batches, virtual=virtual)
    parameters = [rank_parameters(spec, cut[position::positions]) for position in range(positions)]
    layers = LayerBytes(spec, lambda _: work, "none")
    return max(position_bytes(setup, cut, layers, parameters, recipe_named(recipe))[1:-1]) / unit_bytes
