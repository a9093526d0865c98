"""Measured and predicted steps are the same: executor and simulator read the same rounds, and time is waited away."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.costs.protocol import FixedCosts, LinkCost
from plait.plans.action import Action, Kind, Lane
from plait.schedules.closed import exact, step_s
from plait.schedules.training import TRAINING_SCHEDULES
from plait.simulator.simulate import simulate
from plait.timeline.timeline import Timeline
from plait.timeline.training_metrics import training_metrics
from tests.executor.steps import Case, VirtualSteps
from tests.simulator.training_rounds import TINY, seconds_of

VIRTUAL = {"interleaved": 2}
Seconds = dict[tuple[int, Kind], float]


def both(case: Case, seconds: Seconds, latency_s: float = 0.0) -> tuple[Timeline, Timeline]:
    """The step as it ran on the virtual clock, and as the simulator predicts it."""

    def take(rank: int, action: Action) -> float:
        return seconds.get((action.stage, action.kind), 0.0)

    run = VirtualSteps(case, take, lambda source, to, size: (0.0, latency_s))
    measured = run.run()
    costs = FixedCosts(kind_seconds=seconds, any_link=LinkCost(latency_s, float("inf")))
    return measured, simulate(case.layout, run.rounds, costs, TINY)


def compute_spans(timeline: Timeline) -> dict[object, tuple[float, float]]:
    return {
        (span.rank, span.action): (round(span.start_s - timeline.start_s, 9), round(span.end_s - timeline.start_s, 9))
        for span in timeline.spans
        if span.action.kind.lane is Lane.COMPUTE
    }


@pytest.mark.parametrize("schedule", TRAINING_SCHEDULES)
@pytest.mark.parametrize("micro_batches", [3, 4, 8, 16])
def test_t25_the_bubble_is_the_simulators_and_the_closed_forms(schedule: str, micro_batches: int) -> None:
    """p = 4, computations of timed waits: within two points, and here the same to the nanosecond."""
    case = Case(schedule, 4, micro_batches, VIRTUAL.get(schedule, 1))
    stages = len(case.layout.stages)
    measured, predicted = both(case, seconds_of(stages))
    bubble = training_metrics(measured, case.layout)["bubble"]
    assert bubble == pytest.approx(training_metrics(predicted, case.layout)["bubble"], abs=0.02)
    assert compute_spans(measured) == compute_spans(predicted)
    closed_s = step_s(schedule, 4, case.held, micro_batches, 1.0, 1.0, 1.0)
    if exact(schedule, 4, case.held, micro_batches):
        assert measured.makespan_s == pytest.approx(closed_s, abs=1e-9)
        assert bubble == pytest.approx(1 - 3 * micro_batches * case.held / closed_s, abs=1e-9)
    else:
        assert measured.makespan_s >= closed_s - 1e-9


@pytest.mark.parametrize(
    ("schedule", "positions", "micro_batches", "percent"),
    [
        ("gpipe", 2, 4, 20.00),
        ("1f1b", 2, 4, 20.00),
        ("interleaved", 2, 4, 11.11),
        ("1f1b", 4, 8, 27.27),
        ("interleaved", 4, 8, 15.79),
        ("gpipe", 4, 16, 15.79),
        ("interleaved", 4, 16, 8.57),
        ("1f1b", 8, 32, 17.95),
        pytest.param("interleaved", 8, 32, 9.86, marks=pytest.mark.soak),
    ],
)
def test_the_known_bubbles(schedule: str, positions: int, micro_batches: int, percent: float) -> None:
    """F = 1, B = 2, no communication."""
    case = Case(schedule, positions, micro_batches, VIRTUAL.get(schedule, 1))
    measured, _ = both(case, seconds_of(len(case.layout.stages)))
    assert round(100 * training_metrics(measured, case.layout)["bubble"], 2) == percent


@pytest.mark.parametrize(("schedule", "positions"), list(itertools.product(TRAINING_SCHEDULES, (1, 2, 3, 4))))
def test_computations_run_when_the_simulator_says(schedule: str, positions: int) -> None:
    for latency_s, capacity, micro_batches in ((0.125, 1, 1), (0.0, 1, 5), (0.125, 2, 3), (0.125, 16, 7)):
        case = Case(schedule, positions, micro_batches, VIRTUAL.get(schedule, 1), capacity=capacity)
        measured, predicted = both(case, seconds_of(len(case.layout.stages)), latency_s)
        assert compute_spans(measured) == compute_spans(predicted)


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(TRAINING_SCHEDULES),
    st.integers(1, 4),
    st.integers(1, 8),
    st.integers(1, 3),
    st.lists(st.sampled_from((0.0, 0.5, 1.0, 3.0)), min_size=24, max_size=24),
)
def test_unequal_stages_only_run_later(
    schedule: str, positions: int, micro_batches: int, capacity: int, seconds: list[float]
) -> None:
    """The executor's lane moves between two computations, the simulator's at any time: never earlier, and mostly equal.

    What the rank does in which order is the same.
    """
    case = Case(schedule, positions, micro_batches, VIRTUAL.get(schedule, 1), capacity=capacity)
    kinds = (Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)
    by_kind: Seconds = {}
    for stage in range(len(case.layout.stages)):
        forward_s, input_s, weight_s = seconds[3 * stage : 3 * stage + 3]
        by_kind |= dict(zip([(stage, kind) for kind in kinds], (forward_s, input_s, weight_s), strict=True))
        by_kind[stage, Kind.BACKWARD] = input_s + weight_s
    measured, predicted = both(case, by_kind)
    ran, said = compute_spans(measured), compute_spans(predicted)
    assert ran.keys() == said.keys()
    assert all(ran[action][1] >= said[action][1] - 1e-9 for action in said)
