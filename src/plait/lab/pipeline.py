"""Pipeline parallelism: the bubble against stages and micro-batches, for every schedule."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from plait.comm.threads import thread_mesh
from plait.costs.protocol import FixedCosts
from plait.lab.experiment import Chart, Check, Outcome, Say, Series, Size, Table
from plait.lab.trained import read_computing, trained_steps
from plait.lab.waiting import SPEC, Waits, on_threads, on_virtual_clock, undisturbed, waiting_layout
from plait.planner.training_local import local_training_plan
from plait.plans.action import Kind
from plait.plans.layout import Layout
from plait.plans.round import Round
from plait.plans.split import Split, TrainingSetup
from plait.schedules.closed import exact, step_s
from plait.schedules.step import executed_round, make_training_round, sequences
from plait.simulator.simulate import simulate
from plait.spec.inline import inline_spec
from plait.timeline.timeline import Timeline
from plait.timeline.training_metrics import training_metrics
from plait.trainer.train_options import TrainOptions

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v")
STAGES, MICRO_BATCHES = (2, 4), (2, 4, 8, 16)
SHORT_MICRO_BATCHES = (2, 4)
UNIT_S, MOST_STEPS = 30e-3, 6

BOUND_POINTS = 2.5
"""What waking a thread, the interpreter and one message take beside waits of 15 and 30 ms: below 1 point, and up to 2
on a host whose cores others use as well."""

MODEL, TRAINED, SEQUENCES, TOKENS = "llama:layers=4,hidden=256,heads=4", (2, 8), 8, 128
"""A small model that two processes train, with so many micro-batches."""

TRAINED_POINTS = 6.0
"""Passes do not all take the same time, as the simulator has it, and two ranks share the cores with all others."""

AGREE_POINTS = 0.01
"""Formula and simulator say the same, but for rounding."""


class Case(NamedTuple):
    """A schedule on `positions` pipeline positions."""

    schedule: str
    positions: int
    micro_batches: int

    @property
    def words(self) -> str:
        """``1f1b, 4 stages, 8 micro-batches``."""
        return f"{self.schedule}, {self.positions} stages, {self.micro_batches} micro-batches"


class Bubbles(NamedTuple):
    """In percent of wall time. `formula`: None where the closed form does not hold."""

    formula: float | None
    simulated: float
    measured: float

    @property
    def predicted(self) -> float:
        """By the formula, and by the simulator where there is none."""
        return self.simulated if self.formula is None else self.formula


class Waiting(NamedTuple):
    """A case as a round, and what its stages take."""

    layout: Layout
    one: Round
    costs: FixedCosts
    virtual: int


def waiting(case: Case) -> Waiting:
    """F, I and W of a position take `UNIT_S` each, of its one or two stages together; a B is I and W."""
    layout, setup = waiting_layout(case.schedule, case.positions, case.micro_batches)
    each = UNIT_S / setup.virtual
    kinds = {Kind.FORWARD: each, Kind.BACKWARD: 2 * each, Kind.BACKWARD_INPUT: each, Kind.BACKWARD_WEIGHT: each}
    seconds = {(stage, kind): taken for stage in range(len(layout.stages)) for kind, taken in kinds.items()}
    one = make_training_round(0, layout, setup, sequences(case.micro_batches, 1, 1))
    return Waiting(layout, one, FixedCosts(kind_seconds=seconds), setup.virtual)


def formula(case: Case, virtual: int) -> float | None:
    """The bubble by the closed form, in percent; None where that is only a bound."""
    if not exact(case.schedule, case.positions, virtual, case.micro_batches):
        return None
    each = UNIT_S / virtual
    step = step_s(case.schedule, case.positions, virtual, case.micro_batches, each, each, each)
    return 100 * (1 - case.micro_batches * 3 * UNIT_S / step)


def bubbles(case: Case, size: Size) -> Bubbles:
    """Predicted and measured; the short size is measured on the virtual clock."""
    made = waiting(case)
    simulated = _bubble(simulate(made.layout, [made.one], made.costs, SPEC), made.layout)
    if size == "short":
        step = on_virtual_clock(made.layout, made.one, lambda _, rank, pause: Waits(made.costs, made.layout, pause))
    else:
        step = undisturbed(partial(_asleep, made), MOST_STEPS)
    return Bubbles(formula(case, made.virtual), simulated, _bubble(step, made.layout))


def _asleep(made: Waiting) -> Timeline:
    endpoints = thread_mesh(made.layout.ranks, made.layout.link_capacity)
    return on_threads(made.layout, made.one, endpoints, lambda _: Waits(made.costs, made.layout, time.sleep))


def _bubble(timeline: Timeline, layout: Layout) -> float:
    return 100 * training_metrics(timeline, layout)["bubble"]


def cases(size: Size) -> Iterator[Case]:
    """What is measured."""
    for positions in STAGES:
        for schedule in SCHEDULES:
            for micro_batches in MICRO_BATCHES if size == "full" else SHORT_MICRO_BATCHES:
                yield Case(schedule, positions, micro_batches)


def trained(micro_batches: int, say: Say) -> Bubbles:
    """Of a real model on two stages, simulated from what its passes took; the fastest of its steps."""
    spec, setup = inline_spec(MODEL), TrainingSetup(Split(pp=2), "1f1b", 0, micro_batches)
    plan = local_training_plan(spec, setup, SEQUENCES, TOKENS, "float32")
    options = TrainOptions(pp=2, micro_batches=micro_batches, batch=SEQUENCES, sequence_length=TOKENS)
    fastest = min(trained_steps(MODEL, options, say), key=lambda step: step.makespan_s)
    costs = FixedCosts(kind_seconds=read_computing(fastest, micro_batches))
    simulated = simulate(plan.layout, [executed_round(0, plan, spec)], costs, spec)
    return Bubbles(None, _bubble(simulated, plan.layout), _bubble(fastest, plan.layout))


def measure(size: Size, say: Say) -> Outcome:
    """Measure every case."""
    found, real = {}, {}
    for case in cases(size):
        say(case.words)
        found[case] = bubbles(case, size)
    for micro_batches in TRAINED if size == "full" else ():
        say(f"{MODEL} trained on 2 stages, {micro_batches} micro-batches")
        real[micro_batches] = trained(micro_batches, say)
    said, drawn = (sentence(found, real), table(found, real)), charts(found)
    return Outcome("pipeline", checks(found, real), *said, drawn, notes(size))


def notes(size: Size) -> tuple[str, ...]:
    """What must be known of the figures."""
    if size == "short":
        return (_VIRTUAL, *NOTES)
    return (_ASLEEP, *NOTES[:1], _TRAINED, *NOTES[1:])


_ASLEEP = (
    "The stages sleep instead of computing, so that two cores show the bubble of four stages; schedule, executor, "
    "messages and clocks are those of a real run."
)
_VIRTUAL = (
    "Short form: the executor ran on a virtual clock, on which stages take exactly their time and messages none; what "
    "a real clock would add is not seen."
)
_TRAINED = (
    f"The trained model is {MODEL}, {SEQUENCES} sequences of {TOKENS} tokens a step; its bubble is simulated from what "
    "its own passes took on average, so that unequal stages and the update count."
)
NOTES = (
    "F, I (the gradient of the input) and W (that of the weights) take 30 ms of a position each. interleaved and zb-v "
    "have two stages on each position, of half the time.",
    "Where the formula only holds for more micro-batches, the simulator's bubble is the prediction.",
)


def checks(found: dict[Case, Bubbles], real: dict[int, Bubbles]) -> tuple[Check, ...]:
    """Every bubble, and that the simulator says what the formula says."""
    apart = max(abs(one.simulated - one.formula) for one in found.values() if one.formula is not None)
    return (
        Check("simulator from formula, furthest apart", 0.0, apart, "points", AGREE_POINTS, relative=False),
        *(
            Check(f"bubble of {case.words}", one.predicted, one.measured, "points", BOUND_POINTS, relative=False)
            for case, one in found.items()
        ),
        *(
            Check(
                f"bubble of a trained model, 1f1b, 2 stages, {count} micro-batches",
                one.predicted,
                one.measured,
                "points",
                TRAINED_POINTS,
                relative=False,
            )
            for count, one in real.items()
        ),
    )


def sentence(found: dict[Case, Bubbles], real: dict[int, Bubbles]) -> str:
    """What was measured, in words."""
    positions, most = max(case.positions for case in found), max(case.micro_batches for case in found)
    least = min(case.micro_batches for case in found)
    few, many = (found[Case("1f1b", positions, count)].measured for count in (least, most))
    fullest = [case for case in found if (case.positions, case.micro_batches) == (positions, most)]
    best = min(fullest, key=lambda case: found[case].measured)
    furthest = max(abs(one.measured - one.predicted) for one in found.values())
    said = " and ".join(f"{one.measured:.1f} % with {count}" for count, one in real.items())
    trained = f" A real model, trained on 2 stages, left {said} micro-batches idle." if real else ""
    return (
        f"Of {positions} stages with 1F1B, {few:.1f} % of the time was idle with {least} micro-batches and "
        f"{many:.1f} % with {most}; with {most}, {best.schedule} left least idle, {found[best].measured:.1f} %. "
        f"No bubble of {len(found)} was further than {furthest:.1f} points from its prediction.{trained}"
    )


def table(found: dict[Case, Bubbles], real: dict[int, Bubbles]) -> Table:
    """A row for every schedule and number of stages; measured, and what was predicted beside it."""

    def cell(one: Bubbles | None) -> str:
        return "-" if one is None else f"{one.measured:.1f} % (predicted {one.predicted:.1f} %)"

    counts = sorted({case.micro_batches for case in found})
    rows = []
    for schedule, positions in dict.fromkeys(case[:2] for case in found):
        cells = [cell(found[Case(schedule, positions, count)]) for count in counts]
        rows.append((schedule, str(positions), *cells))
    if real:
        rows.append(("1f1b, a trained model", "2", *(cell(real.get(count)) for count in counts)))
    return Table(("schedule", "stages", *(f"{count} micro-batches" for count in counts)), tuple(rows))


def charts(found: dict[Case, Bubbles]) -> tuple[Chart, ...]:
    """The bubble over micro-batches, one chart a number of stages."""
    return tuple(
        Chart(
            f"The bubble of {positions} stages",
            "micro-batches",
            "idle share of the time, %",
            tuple(_lines(found, positions)),
            x_log=True,
        )
        for positions in sorted({case.positions for case in found})
    )


def _lines(found: dict[Case, Bubbles], positions: int) -> Iterator[Series]:
    for schedule in SCHEDULES:
        held = {case.micro_batches: one for case, one in found.items() if case[:2] == (schedule, positions)}
        counts = tuple(map(float, held))
        yield Series(schedule, counts, tuple(one.predicted for one in held.values()), measured=False)
        yield Series(schedule, counts, tuple(one.measured for one in held.values()))
