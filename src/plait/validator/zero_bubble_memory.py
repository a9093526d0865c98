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
from plait.costs.shares import whole
from plait.costs.states import rank_parameters, recipe_named
from plait.costs.training_memory import LayerBytes, position_bytes
from plait.plans.split import Split, TrainingSetup
from plait.spec.model import ModelSpec
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


def validate_memory(name: str, records: Sequence[Record], schedules: Mapping[str, str]) -> list[Validation]:
    """Peak bytes of the fullest device, a validation for each of the paper's schedules."""
    models = read_models()
    groups: dict[str, list[Compared]] = {}
    for record in records:
        model, positions = models[record["model"]], int(record["pp"])
        predicted = peak_gb(model, positions, int(record["num_microbatches"]), schedules[record["schedule"]])
        title = f"{model.name}, {positions} stages, {record['num_microbatches']} micro-batches, {record['schedule']}"
        groups.setdefault(record["schedule"], []).append(Compared(title, float(record["memory_gb"]), predicted, "GB"))
    return [
        Validation(
            name,
            f"peak memory of {schedule}",
            tuple(rows),
            "whether GB are 10⁹ or 2³⁰ bytes, and 16 or 18 bytes a parameter: the pair that fits the 1F1B rows best",
            note="" if schedule == "1F1B" else f"taken as {schedules[schedule]}",
        )
        for schedule, rows in groups.items()
    ]


def peak_gb(
    model: Model, positions: int, micro_batches: int, schedule: str, recipe: str = RECIPE, unit_bytes: float = GB
) -> float:
    """The fullest device's need in GB. It is none at the ends: those hold a layer fewer."""
    spec = model.full
    virtual = model.stage_layers(positions) if schedule == "interleaved" else 1
    tokens = model.sequence * model.micro_batch
    # unfused attention computes all pairs
    work = Work(tokens, tokens * model.sequence, whole(spec), fused=False, dropout=True)
    stages = positions * virtual
    each = spec.layers // stages
    cut = tuple((stage * each, (stage + 1) * each) for stage in range(stages))
    setup = TrainingSetup(Split(pp=positions), schedule, model.micro_batch, micro_batches, virtual=virtual)
    parameters = [rank_parameters(spec, cut[position::positions]) for position in range(positions)]
    layers = LayerBytes(spec, lambda _: work, "none")
    return max(position_bytes(setup, cut, layers, parameters, recipe_named(recipe))[1:-1]) / unit_bytes
