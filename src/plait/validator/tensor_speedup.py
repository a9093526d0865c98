"""Tensor parallelism inside a host against Megatron-LM's measurements of 2019 on a DGX-2H (V100).

Shoeybi et al., "Megatron-LM" (2019), arXiv 1909.08053: table 8 (a model of 1.2 billion parameters on 1 to 8 GPUs),
table 7 (8.3 billion on 8 GPUs by the number of heads) and figure 5 (weak scaling). Four figures make the machine,
solved from four named rows: FLOP/s of matrix products, memory bandwidth reached, bus bandwidth of an all-reduce, and
seconds of a step that no split shortens. The counts of FLOP and bytes are those of `costs`, with unfused attention,
dropout, and every layer computed again in the backward, as that software did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from plait.costs.collectives import sent_bytes
from plait.costs.operations import Operation, Work, backward_input, backward_weight, head_operations, layer_operations
from plait.costs.shares import largest_share
from plait.costs.work import model_flops
from plait.errors import SpecError
from plait.spec.model import ModelSpec
from plait.validator.cells import number, reading, text, where, whole
from plait.validator.devices import is_named, named_device
from plait.validator.table import Compared, Record, Validation

COLUMNS = frozenset({"table", "variable", "value", "result", "unit"})

BASELINE_FLOPS = 39e12
"""What 1.2 billion parameters reach on one GPU (arXiv 1909.08053, section 5.1); scaling is per cent of it."""

_BATCH, _SEQUENCE, _VOCAB = 8, 1024, 51200  # section 5.1
_RECOMPUTED = 2  # forwards of a layer: checkpoints after every layer, section 5
_EXCHANGES = 2 * (_RECOMPUTED + 1)  # all-reduces of a layer: two in each forward and in the backward, section 3


class Run(NamedTuple):
    """A measured configuration, of a batch of 8 sequences on `tp` GPUs. `step_s`: derived from what was published."""

    hidden: int
    heads: int
    layers: int
    tp: int
    step_s: float


class Counted(NamedTuple):
    """What one GPU does in a step: FLOP of products, bytes in its memory, bytes on the bus, and the step itself."""

    flops: float
    moved_bytes: float
    bus_bytes: float
    steps: float


@dataclass(frozen=True, slots=True)
class Machine:
    """Seconds a FLOP, a byte in memory and a byte on the bus, and seconds of a step beside them."""

    costs: tuple[float, ...]

    def step_s(self, counted: Counted) -> float:
        """A step's seconds: nothing overlaps, as nothing did in that software."""
        return sum(cost * count for cost, count in zip(self.costs, counted, strict=True))


def small(tp: int, speedup: float) -> Run:
    """Table 8's model, by its speed-up over one GPU."""
    one = model_flops(megatron_spec(1536, 16, 40), _BATCH, _SEQUENCE, "full") / BASELINE_FLOPS
    return Run(1536, 16, 40, tp, one / speedup)


def scaled(hidden: int, heads: int, layers: int, tp: int, percent: float) -> Run:
    """A model of table 7 or figure 5, by its per cent of the baseline on every GPU."""
    flops = model_flops(megatron_spec(hidden, heads, layers), _BATCH, _SEQUENCE, "full") / tp
    return Run(hidden, heads, layers, tp, flops / (BASELINE_FLOPS * percent / 100))


def calibrated_runs() -> tuple[Run, ...]:
    """The rows that the machine is solved from: table 8 at 1 and 2 GPUs, table 7 at 16 and 32 heads."""
    return small(1, 1.0), small(2, 1.64), scaled(3072, 16, 72, 8, 82), scaled(3072, 32, 72, 8, 77)


CALIBRATED_ON = "table 8 at 1 and 2 GPUs, table 7 at 16 and 32 heads: four figures from four rows"


def validate(name: str, records: Sequence[Record]) -> list[Validation]:
    """Speed-ups of table 8 and scaling of table 7, each a `Validation`. Errors: SpecError for another table."""
    machine = solved_machine()
    rows: dict[str, list[Compared]] = {}
    for record in records:
        quantity, compared = _compared(machine, record)
        rows.setdefault(quantity, []).append(compared)
    return [Validation(name, quantity, tuple(found), CALIBRATED_ON) for quantity, found in rows.items()]


def solved_machine() -> Machine:
    """The machine whose four figures give the four calibrated rows."""
    runs = calibrated_runs()
    counts = np.array([counted(run) for run in runs])
    return Machine(tuple(np.linalg.solve(counts, [run.step_s for run in runs]).tolist()))


def counted(run: Run) -> Counted:
    """FLOP and bytes of one GPU in a step."""
    spec = megatron_spec(run.hidden, run.heads, run.layers)
    tokens = _BATCH * _SEQUENCE
    work = Work(tokens, tokens * _SEQUENCE, largest_share(spec, run.tp), fused=False, dropout=True)
    flops = moved = 0.0
    for operations, layers, forwards in (
        (layer_operations(spec, 0, work), run.layers, _RECOMPUTED),
        (head_operations(spec, work), 1, 1),
    ):
        for one, times in _passes(operations, forwards):
            flops += layers * times * one.flops
            moved += layers * times * (0.0 if one.kind == "matmul" else one.moved_bytes)
    vector = tokens * run.hidden * 2
    bus = run.layers * _EXCHANGES * sent_bytes("all_reduce", vector, run.tp)
    return Counted(flops, moved, bus, 1.0)


def scaling_pct(machine: Machine, run: Run) -> float:
    """Predicted per cent of the baseline on every GPU."""
    flops = model_flops(megatron_spec(run.hidden, run.heads, run.layers), _BATCH, _SEQUENCE, "full") / run.tp
    return 100 * flops / machine.step_s(counted(run)) / BASELINE_FLOPS


def _passes(operations: Sequence[Operation], forwards: int) -> list[tuple[Operation, int]]:
    backward = [(back, 1) for one in operations for back in (*backward_input(one), *backward_weight(one))]
    return [*((one, forwards) for one in operations), *backward]


def _compared(machine: Machine, record: Record) -> tuple[str, Compared]:
    variable, published = text(record, "variable", VARIABLES), number(record, "result")
    note = other_device(record)
    if variable == "heads":
        value = whole(record, "value", most=10**4)
        if _SCALED_HIDDEN % value or value < _SCALED_TP:
            raise SpecError(
                f"{where(record)}: value is {value}, but heads must divide hidden {_SCALED_HIDDEN} and be at least "
                f"the {_SCALED_TP} GPUs"
            )
        run = scaled(_SCALED_HIDDEN, value, 72, _SCALED_TP, published)
        predicted = scaling_pct(machine, run)
        quantity, unit, name = "scaling of 8.3B on 8 GPUs by heads", "%", f"{value} heads"
    else:
        value = whole(record, "value", most=16)
        run = small(value, published)
        with reading(record):
            predicted = small(1, 1.0).step_s / machine.step_s(counted(run))
        quantity, unit, name = "speed-up of 1.2B over tp", "×", f"tp {value}"
    return quantity, Compared(name, published, predicted, unit, run in calibrated_runs() and not note, note)


VARIABLES = ("gpus(tp)", "heads")
"""What the rows of tables 7 and 8 vary."""

_SCALED_HIDDEN, _SCALED_TP = 3072, 8  # table 7's model


def other_device(record: Record) -> str:
    """A note where a line names another device than the V100 that the four figures were solved on."""
    if is_named(record, "v100"):
        return ""
    return f"not calibrated: the figures are of V100, the line is of {named_device(record)!r}"


def megatron_spec(hidden: int, heads: int, layers: int) -> ModelSpec:
    """A GPT-2 of these sizes with the paper's vocabulary and 1024 positions."""
    return ModelSpec(
        name="megatron2019",
        family="gpt2",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        intermediate=4 * hidden,
        vocab=_VOCAB,
        max_positions=_SEQUENCE,
        norm_eps=1e-5,
        rope=None,
        windows=(None,) * layers,
        norm="layer",
        mlp="plain",
        activation="gelu",
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        tied=True,
    )
