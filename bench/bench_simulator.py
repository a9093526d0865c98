"""How fast a million actions are simulated: from the schedule to spans and memory, on one core."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from harness import table, verdict

from plait.costs.protocol import Exchange, FixedCosts, FixedMemory, Held, LinkCost
from plait.plans.action import Kind
from plait.plans.collection import no_collection
from plait.plans.layout import Layout, Stage
from plait.plans.round import Carried, MicroBatch, Round, Row
from plait.plans.split import Split, TrainingSetup
from plait.schedules.generation import make_round
from plait.schedules.step import make_training_round, sequences
from plait.schedules.training import compute_order
from plait.simulator.memory import memory_over_time
from plait.simulator.simulate import simulate
from plait.spec.model import ModelSpec

MILLION = 1_000_000
SPEC = ModelSpec("bench", "llama", 64, 64, 4, 2, 16, 128, 100, 512, 1e-5, None, (None,) * 64)


@dataclass(frozen=True)
class Case:
    """`make(rounds or micro-batches)` makes the rounds; `unit` of them are how many actions."""

    name: str
    layout: Layout
    make: Callable[[int], list[Round]]
    unit: float


def generation(name: str, stages: int, micro_batches: int, hosts: int) -> Case:
    """Pipelined decoding: rounds of one token for everyone in flight."""
    made = tuple(Stage((i, i + 1), (i,), host=f"box{i % hosts}") for i in range(stages))
    layout = Layout({"pp": stages}, made, 2 * micro_batches)

    def make(count: int) -> list[Round]:
        return list(decoding(count, stages, micro_batches))

    return Case(name, layout, make, sum(map(len, make(3)[1].actions)))


def decoding(count: int, stages: int, micro_batches: int) -> Iterator[Round]:
    carried: tuple[Carried, ...] = ()
    for number in range(count):
        work = tuple(MicroBatch((Row(i, i, 200 + number, 1, True),)) for i in range(micro_batches))
        one = make_round(number, stages, work, carried, "pipelined")
        carried = one.carried_out
        yield one


def training(schedule: str, positions: int, virtual: int) -> Case:
    """One step of as many micro-batches as it takes, of two replicas."""
    placement = compute_order(schedule, positions, virtual, 1).placement
    position_of = {stage: position for position, stages in enumerate(placement) for stage in stages}
    made = tuple(
        Stage((i, i + 1), (position_of[i], positions + position_of[i]), host=f"box{position_of[i]}")
        for i in range(len(position_of))
    )
    layout = Layout({"dp": 2, "pp": positions}, made, 8)

    def make(count: int) -> list[Round]:
        setup = TrainingSetup(Split(dp=2, pp=positions), schedule, 1, count, virtual, zero=1)
        return [make_training_round(0, layout, setup, sequences(count, 1, 64), buckets=2)]

    unit = (sum(map(len, make(64)[0].actions)) - sum(map(len, make(32)[0].actions))) / 32
    name = f"{schedule}, {positions} positions" + (f" of {virtual} stages" if virtual > 1 else "")
    return Case(name, layout, make, unit)


def costs(stages: int) -> FixedCosts:
    seconds = {Kind.FORWARD: 1.0, Kind.BACKWARD: 2.0, Kind.BACKWARD_INPUT: 1.0, Kind.BACKWARD_WEIGHT: 1.0}
    every = {(stage, kind): each for stage in range(stages) for kind, each in seconds.items()}
    return FixedCosts(
        kind_seconds=every, any_link=LinkCost(0.01, 1e6), cores=1, exchanges={(0, Kind.FORWARD): Exchange(0.1, 64)}
    )


def run(case: Case) -> list[object]:
    stages = len(case.layout.stages)
    memory = FixedMemory(dict.fromkeys(range(stages), 1000), dict.fromkeys(range(stages), Held(30, 10)))
    count = round(MILLION / case.unit)
    with no_collection():
        start = time.perf_counter()
        rounds = case.make(count)
        made = time.perf_counter()
        timeline = simulate(case.layout, rounds, costs(stages), SPEC, replicas=False)
        simulated = time.perf_counter()
        memory_over_time(timeline, rounds, case.layout, memory)
        end = time.perf_counter()
    actions = len(timeline.spans)
    return [case.name, actions, made - start, simulated - made, end - simulated, end - start, actions / (end - start)]


def main() -> None:
    cases = [
        generation("generation, 2 stages on two hosts", 2, 2, 2),
        generation("generation, 2 stages on one host", 2, 2, 1),
        training("1f1b", 16, 1),
        training("interleaved", 16, 4),
        training("zb-h1", 16, 1),
        training("zb-v", 16, 2),
    ]
    rows = [run(case) for case in cases]
    headings = ["", "actions", "schedule s", "spans s", "memory s", "together s", "actions a second"]
    worst = max(float(str(row[5])) / float(str(row[1])) * MILLION for row in rows)
    sections = [
        "## A million actions simulated",
        "From the schedule's rounds to spans of each position's first rank and their memory over time, in one thread,\n"
        "without cyclic garbage collection (it would look through millions of tuples, for nothing).\n"
        "Ranks that share a host have their speed changed whenever another begins or ends, so they take longer.",
        table(headings, rows),
        f"The slowest, a million actions: {verdict(worst, 5, ' s', at_most=True)}.",
    ]
    sys.stdout.write("\n\n".join(sections) + "\n")


if __name__ == "__main__":
    main()
