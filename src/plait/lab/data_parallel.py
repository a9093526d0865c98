"""Data parallelism: it talks only at the end of a step, and then pays; unless it talks while it still computes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from plait.costs.protocol import Exchange, FixedCosts
from plait.executor.virtual import TransferTime, VirtualMessages, VirtualWorld
from plait.lab.experiment import Chart, Check, Outcome, Say, Series, Size, Table
from plait.lab.talking import Talks
from plait.lab.trained import Computing, read_computing, trained_steps
from plait.lab.waiting import Pause, on_virtual_clock
from plait.planner.training_local import local_training_plan
from plait.plans.action import Kind
from plait.plans.layout import Layout
from plait.plans.split import Split, TrainingSetup
from plait.plans.training import TrainingPlan
from plait.schedules.step import executed_round
from plait.simulator.simulate import simulate
from plait.spec.cluster import Wire
from plait.spec.emulation import EmulatedLinks
from plait.spec.inline import inline_spec
from plait.spec.model import ModelSpec
from plait.spec.tensors import stage_tensors
from plait.timeline.timeline import Timeline
from plait.timeline.training_metrics import training_metrics
from plait.trainer.train_options import TrainOptions
from plait.units import format_seconds

MODEL = "llama:layers=4,hidden=256,heads=4"
REPLICAS, MICRO_BATCHES, BATCH, SEQUENCE = 2, 2, 8, 128
WIRE = Wire(500e-6, 500e6 / 8)
"""500 Mb/s and 500 µs: half of an ordinary network, over which so small a model talks about as long as it computes."""

BUCKETS = (1, 4)
FORWARD_S = 60e-3
"""Of a micro-batch, in the short form; its backward takes twice as long."""

STEP_BOUND, SYNC_BOUND = 0.25, 0.3
"""Two ranks, the threads that carry the link's bytes and all others on this host share its cores, and a rank sends and
adds only when it has computed a part. What this host itself takes to carry bytes is taken off an emulated link as it
was once measured, which is too much or too little where others use the host."""


class Step(NamedTuple):
    """What one step was, of its timeline: the mean over the ranks.

    `sync_s`: from the begin of the first reduction to the end of the last. `exposed_s`: what of it lies after the last
    backward. `sent_bytes`: of gradients, by all ranks. `early_bytes`: what was sent before the last backward, or the
    first part of it, had ended.
    """

    step_s: float
    compute_s: float
    sync_s: float
    exposed_s: float
    sent_bytes: int
    early_bytes: int


class Pair(NamedTuple):
    """Of as many buckets: predicted and measured."""

    predicted: Step
    measured: Step


def read_step(timeline: Timeline, layout: Layout) -> Step:
    """One step's figures."""
    figures = training_metrics(timeline, layout)
    sync_s = exposed_s = 0.0
    sent = early = 0
    for rank in timeline.ranks:
        spans = [span for span in timeline.spans if span.rank == rank]
        backwards = [span for span in spans if span.action.kind is Kind.BACKWARD]
        reductions = [span for span in spans if span.action.kind is Kind.REDUCE_GRADIENTS]
        last = max(span.action.micro_batch for span in backwards)
        begin_s = min(span.end_s for span in backwards if span.action.micro_batch == last)
        end_s = max(span.end_s for span in reductions)
        sync_s += end_s - min(span.start_s for span in reductions)
        exposed_s += max(0.0, end_s - max(span.end_s for span in backwards))
        sent += sum(span.payload_bytes for span in reductions)
        early += sum(span.payload_bytes for span in spans if span.start_s < begin_s)
    count = len(timeline.ranks)
    return Step(figures["step_s"], figures["compute_s"] / count, sync_s / count, exposed_s / count, sent, early)


# --- formulas -----------------------------------------------------------------------------------------------


def parameters(spec: ModelSpec) -> int:
    """Numbers that a model learns."""
    return sum(math.prod(shape) for shape in stage_tensors(spec, 0, spec.layers).values())


def ring_bytes(spec: ModelSpec, replicas: int) -> int:
    """What all replicas send of float32 gradients: each 2 (n − 1) ÷ n of them, with a ring as with any best all-reduce.

    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009).
    """
    return 2 * (replicas - 1) * parameters(spec) * 4


def sync_s(spec: ModelSpec, replicas: int, wire: Wire) -> float:
    """Seconds in which each replica's link carries what it sends, and a latency."""
    return ring_bytes(spec, replicas) / replicas / wire.bandwidth + wire.latency_s


# --- predicted ----------------------------------------------------------------------------------------------


def made_plan(spec: ModelSpec) -> TrainingPlan:
    """Two replicas of one stage."""
    setup = TrainingSetup(Split(dp=REPLICAS), "1f1b", 0, MICRO_BATCHES)
    return local_training_plan(spec, setup, BATCH, SEQUENCE, "float32")


def simulated(buckets: int, computing: Computing) -> Step:
    """The step by the simulator, of what computing takes and of what the link carries."""
    spec = inline_spec(MODEL)
    plan = made_plan(spec)
    sent_bytes = ring_bytes(spec, REPLICAS) // REPLICAS
    costs = FixedCosts(
        kind_seconds={
            **computing,
            (0, Kind.REDUCE_GRADIENTS): sync_s(spec, REPLICAS, WIRE),
        },
        exchanges={(0, Kind.REDUCE_GRADIENTS): Exchange(0.0, sent_bytes)},
    )
    return read_step(simulate(plan.layout, [executed_round(0, plan, spec, buckets)], costs, spec), plan.layout)


# --- trained ------------------------------------------------------------------------------------------------


def trained(buckets: int, say: Say) -> Pair:
    """Two processes that train over the emulated link; the fastest of their steps."""
    options = TrainOptions(
        dp=REPLICAS,
        micro_batches=MICRO_BATCHES,
        batch=BATCH,
        sequence_length=SEQUENCE,
        buckets=buckets,
        emulate=EmulatedLinks(WIRE),
    )
    layout = made_plan(inline_spec(MODEL)).layout
    steps = trained_steps(MODEL, options, say)
    fastest = min(steps, key=lambda step: read_step(step, layout).step_s)
    return Pair(simulated(buckets, read_computing(fastest, MICRO_BATCHES)), read_step(fastest, layout))


# --- on the virtual clock -----------------------------------------------------------------------------------


def waited(buckets: int) -> Pair:
    """The same round by the executor on a virtual clock, where stages wait instead of computing."""
    spec, computing = inline_spec(MODEL), {(0, Kind.FORWARD): FORWARD_S, (0, Kind.BACKWARD): 2 * FORWARD_S}
    plan = made_plan(spec)
    costs = FixedCosts(kind_seconds=computing)

    def worker(messages: VirtualMessages, rank: int, pause: Pause) -> Talks:
        return Talks(costs, plan, spec, rank, buckets=buckets, pause=pause)

    measured = on_virtual_clock(plan.layout, executed_round(0, plan, spec, buckets), worker, _over_wire)
    return Pair(simulated(buckets, computing), read_step(measured, plan.layout))


def _over_wire(world: VirtualWorld) -> TransferTime:
    return lambda source, to, size_bytes: (size_bytes / WIRE.bandwidth, WIRE.latency_s)


# --- said ---------------------------------------------------------------------------------------------------


def measure(size: Size, say: Say) -> Outcome:
    """Measure with one bucket, which hides nothing, and with several."""
    found: dict[int, Pair] = {}
    for buckets in BUCKETS:
        say(f"{MODEL} on {REPLICAS} replicas, gradients in {_buckets(buckets)}")
        found[buckets] = waited(buckets) if size == "short" else trained(buckets, say)
    return Outcome("data-parallel", checks(found), sentence(found), table(found), charts(found), NOTES)


def _buckets(count: int) -> str:
    return "1 bucket" if count == 1 else f"{count} buckets"


def checks(found: Mapping[int, Pair]) -> tuple[Check, ...]:
    """Bytes to the byte, nothing early, and the seconds of the sum and of the step."""
    spec = inline_spec(MODEL)
    made = []
    for buckets, (predicted, measured) in found.items():
        what = _buckets(buckets)
        made += [
            Check(f"gradients sent, {what}", ring_bytes(spec, REPLICAS), measured.sent_bytes, "bytes", 0.0),
            Check(f"sent before the last backward, {what}", 0, measured.early_bytes, "bytes", 0.0, relative=False),
            Check(f"step, {what}", predicted.step_s, measured.step_s, "s", STEP_BOUND),
        ]
    alone = found[1].measured.sync_s
    return (*made, Check("sum of the gradients, 1 bucket", sync_s(spec, REPLICAS, WIRE), alone, "s", SYNC_BOUND))


def sentence(found: Mapping[int, Pair]) -> str:
    """What was measured, in words."""
    whole, cut = found[1].measured, found[max(found)].measured
    hidden = max(0.0, 1 - cut.exposed_s / whole.exposed_s)
    return (
        f"Two replicas send {whole.sent_bytes / 1e6:.1f} MB of gradients a step, and not a byte before the last "
        f"backward. Behind it the sum takes {format_seconds(whole.sync_s)}, beside {format_seconds(whole.compute_s)} "
        f"of computing, and a step {format_seconds(whole.step_s)}; in {max(found)} buckets, sent while that backward "
        f"still runs, a step takes {format_seconds(cut.step_s)}: {100 * hidden:.0f} % of the sum was hidden."
    )


def table(found: Mapping[int, Pair]) -> Table:
    """Two rows for each number of buckets."""
    headings = ("gradients in", "", "step", "computing", "sum", "of it after the last backward", "sent")
    rows = []
    for buckets, pair in found.items():
        for source, one in zip(("predicted", "measured"), pair, strict=True):
            times = map(format_seconds, (one.step_s, one.compute_s, one.sync_s, one.exposed_s))
            rows.append((_buckets(buckets), source, *times, f"{one.sent_bytes:,} bytes"))
    return Table(headings, tuple(rows))


def charts(found: Mapping[int, Pair]) -> tuple[Chart, ...]:
    """What a step is made of."""
    words = tuple(map(_buckets, found))

    def bars(name: str, which: int, seconds: Callable[[Step], float]) -> Series:
        times = tuple(1e3 * seconds(pair[which]) for pair in found.values())
        return Series(name, words, times, measured=which == 1)

    series = [
        bars(name, which, seconds)
        for name, seconds in (("step", lambda step: step.step_s), ("sum not hidden", lambda step: step.exposed_s))
        for which in (0, 1)
    ]
    title = "A step of two replicas over 500 Mb/s"
    return (Chart(title, "gradients are summed in", "ms", tuple(series), bars=True),)


NOTES = (
    f"{MODEL}, {BATCH} sequences of {SEQUENCE} tokens a step, {MICRO_BATCHES} micro-batches in each replica; a link of "
    "500 Mb/s and 500 µs each way, emulated between two processes. The larger the batch, the smaller the share of the "
    "sum, which does not grow with it.",
)
