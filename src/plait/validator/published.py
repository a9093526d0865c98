"""What the published training runs have in common: a GPT, hosts of eight A100, a step's prediction for one row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from plait.costs.profiles import Profile
from plait.costs.training import Cut, Machine, StepEstimate, TrainingModel
from plait.errors import SpecError
from plait.plans.split import Recompute, Split, TrainingSetup
from plait.spec.cluster import Network
from plait.spec.job import TrainingJob
from plait.spec.model import ModelSpec
from plait.spec.presets import cluster_preset, device_preset
from plait.validator.cells import Record, has, where, whole

DEVICES_PER_HOST = 8


class Shape(NamedTuple):
    """A GPT as the tables give it: its MLP is 4 × hidden, its embedding tied to the LM head."""

    hidden: int
    heads: int
    layers: int
    sequence: int
    vocab: int


class Run(NamedTuple):
    """One row: degrees, batch, how the step was computed. `virtual`, `micro_batch` None: the table does not say."""

    shape: Shape
    tp: int
    pp: int
    dp: int
    batch: int
    micro_batch: int | None
    virtual: int | None
    recompute: Recompute
    sequence_split: bool = False


class Predicted(NamedTuple):
    """The estimate, and the setup that it is of."""

    estimate: StepEstimate
    setup: TrainingSetup


def gpt(shape: Shape) -> ModelSpec:
    """The model: LayerNorm, GELU, biases, learned positions (Radford et al., "GPT-2" (2019))."""
    return ModelSpec(
        name=f"gpt-{shape.layers}-{shape.hidden}",
        family="gpt2",
        layers=shape.layers,
        hidden=shape.hidden,
        heads=shape.heads,
        kv_heads=shape.heads,
        head_dim=shape.hidden // shape.heads,
        intermediate=4 * shape.hidden,
        vocab=shape.vocab,
        max_positions=shape.sequence,
        norm_eps=1e-5,
        rope=None,
        windows=(None,) * shape.layers,
        norm="layer",
        mlp="plain",
        activation="gelu",
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        tied=True,
    )


@lru_cache(maxsize=1)
def _network() -> Network:
    network = cluster_preset("a100", 2 * DEVICES_PER_HOST).network
    assert network is not None
    return network


def a100_hosts(devices: int, adapters: int = DEVICES_PER_HOST) -> Machine:
    """Hosts of 8 A100 80 GB on NVSwitch with so many 200 Gb/s InfiniBand adapters: by default DGX A100 (Selene)."""
    network = _network()
    way_out = network.between_hosts.bandwidth * adapters
    wires = Network(network.within_host, replace(network.between_hosts, host_bandwidth=way_out))
    return Machine(device_preset("a100-80gb"), DEVICES_PER_HOST, -(-devices // DEVICES_PER_HOST), wires)


def even_cut(layers: int, stages: int) -> Cut:
    """As even as it goes, the larger stages first."""
    size, more = divmod(layers, stages)
    ends = [0]
    for stage in range(stages):
        ends.append(ends[-1] + size + (stage < more))
    return tuple(pairwise(ends))


def predict(run: Run, profile: Profile, adapters: int = DEVICES_PER_HOST, machine: Machine | None = None) -> Predicted:
    """The step's prediction. What the table does not say is what the model itself would choose. Errors: SpecError.

    `machine`: by default A100 hosts with so many adapters.

    Micro-batch: the fastest power of two that fits the memory. Virtual stages: the smallest number above 1 that divides
    a position's layers, if micro-batches divide by the positions.
    """
    _require(run)
    job = TrainingJob(run.batch, run.shape.sequence, "float16", "unfused")
    hosts = a100_hosts(run.tp * run.pp * run.dp, adapters) if machine is None else machine
    model = TrainingModel(gpt(run.shape), job, hosts, profile)
    best: Predicted | None = None
    for micro_batch in _micro_batches(run):
        setup = _setup(run, micro_batch)
        estimate = model.estimate(setup, even_cut(run.shape.layers, run.pp * setup.virtual))
        fits = run.micro_batch is not None or max(estimate.peak_bytes) <= model.machine.device.memory_bytes
        if fits and (best is None or estimate.step_s < best.estimate.step_s):
            best = Predicted(estimate, setup)
    if best is None:  # nothing fits: the smallest, as somebody did run it
        setup = _setup(run, next(iter(_micro_batches(run))))
        best = Predicted(model.estimate(setup, even_cut(run.shape.layers, run.pp * setup.virtual)), setup)
    return best


def _require(run: Run) -> None:
    """Degrees and sizes that can be. Errors: SpecError."""
    words = f"a run with tp {run.tp}, pp {run.pp}, dp {run.dp}, batch {run.batch}"
    if run.shape.hidden % run.shape.heads:
        raise SpecError(f"{words} has hidden {run.shape.hidden}, which {run.shape.heads} heads do not divide")
    if run.tp > run.shape.heads:
        raise SpecError(f"{words} has fewer heads ({run.shape.heads}) than tp")
    stages = run.pp * (run.virtual or 1)
    if stages > run.shape.layers:
        raise SpecError(f"{words} has {stages} stages, but the model only {run.shape.layers} layers")
    if (run.micro_batch or 1) * run.dp > run.batch:
        raise SpecError(f"{words} has too small a batch: a micro-batch of {run.micro_batch or 1} for every replica")


def _micro_batches(run: Run) -> Iterable[int]:
    if run.micro_batch is not None:
        return (run.micro_batch,)
    share = run.batch // run.dp
    return [size for size in (1, 2, 4, 8, 16, 32) if share % size == 0] or [1]


def _setup(run: Run, micro_batch: int) -> TrainingSetup:
    count = max(1, run.batch // run.dp // micro_batch)
    virtual = _virtual(run, count) if run.virtual is None else run.virtual
    return TrainingSetup(
        split=Split(dp=run.dp, pp=run.pp, tp=run.tp),
        schedule="interleaved" if virtual > 1 else "1f1b",
        micro_batch=micro_batch,
        micro_batches=count,
        virtual=virtual,
        recompute=run.recompute,
        sequence_split=run.sequence_split,
        fused_attention=False,
    )


def _virtual(run: Run, count: int) -> int:
    held = run.shape.layers // run.pp
    if run.pp == 1 or count % run.pp:
        return 1
    return next((number for number in range(2, held + 1) if held % number == 0), 1)


def read_shape(record: Record, columns: Sequence[str], vocab: int) -> Shape:
    """The model of a line: `columns` of hidden size, heads, layers and sequence. Errors: SpecError.

    `vocab`: where the line does not say.
    """
    hidden, heads, layers, sequence = columns
    return Shape(
        whole(record, hidden, most=10**6),
        whole(record, heads, most=10**4),
        whole(record, layers, most=10**4),
        whole(record, sequence, most=10**7),
        optional(record, "vocab", most=10**7) or vocab,
    )


def read_degrees(record: Record, tp: str = "tp", pp: str = "pp", dp: str = "dp") -> tuple[int, int, int]:
    """tp, pp and dp of a line with `gpus`; dp is what is left of them. Errors: SpecError where they do not agree."""
    degrees = whole(record, tp, most=10**4), whole(record, pp, most=10**4)
    gpus, ranks = whole(record, "gpus", most=10**7), degrees[0] * degrees[1]
    if gpus % ranks:
        raise SpecError(f"{where(record)}: gpus is {gpus}, but must be a multiple of {tp} × {pp}, {ranks}")
    replicas = optional(record, dp, most=10**7)
    if replicas is not None and replicas * ranks != gpus:
        raise SpecError(f"{where(record)}: gpus is {gpus}, but {tp} × {pp} × {dp} is {replicas * ranks}")
    return (*degrees, gpus // ranks)


def optional(record: Record, column: str, *, most: int = 10**6) -> int | None:
    """The whole number in a column, None where the line does not have it. Errors: SpecError."""
    return whole(record, column, most=most) if has(record, column) else None
