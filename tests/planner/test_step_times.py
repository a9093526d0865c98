from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.costs.training import exposed_messages
from plait.planner.step_times import Phases, held, hops, step_seconds
from plait.schedules import closed

WAYS = [
    ("layerwise", 1), ("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 3), ("zb-h1", 1), ("zb-h2", 1),
    ("zb-v", 2), ("dualpipe-v", 2),
]  # fmt: skip
seconds = st.floats(0.1, 3.0)


def phases(*values: float) -> Phases:
    return Phases(*map(np.float64, values))


@given(st.sampled_from(WAYS), st.integers(1, 9), st.integers(1, 40), seconds, seconds, seconds)
def test_the_same_as_the_closed_forms_of_the_schedules(
    way: tuple[str, int], positions: int, micro_batches: int, f: float, i: float, w: float
) -> None:
    schedule, virtual = way
    expected = closed.step_s(schedule, positions, virtual, micro_batches, f, i, w)
    one = phases(f, i, w).times(virtual)
    p, m = np.float64(positions), np.float64(micro_batches)
    found = float(step_seconds(schedule, p, virtual, m, one.total, one, np.float64(0)))
    if closed.exact(schedule, positions, virtual, micro_batches) or schedule == "interleaved":
        assert found == pytest.approx(expected)
    else:
        # there `schedules.closed` gives a lower bound, and so does not rank
        assert found >= expected * (1 - 1e-9)
    in_flight = held(schedule, p, virtual, np.arange(positions) * 1.0, m)
    in_flight = np.broadcast_to(in_flight, positions)
    assert tuple(in_flight) == closed.in_flight(schedule, positions, virtual, micro_batches)


@pytest.mark.parametrize(("schedule", "virtual"), WAYS[1:])
def test_arrays_and_numbers_agree(schedule: str, virtual: int) -> None:
    p, m = np.array([1.0, 2.0, 4.0, 8.0]), np.array([5.0, 7.0, 16.0, 64.0])
    one = phases(1.0, 1.5, 0.5)
    together = step_seconds(schedule, p, virtual, m, one.total, one, np.float64(0.125))
    alone = [
        step_seconds(schedule, np.float64(a), virtual, np.float64(b), one.total, one, np.float64(0.125))
        for a, b in zip(p, m, strict=True)
    ]
    assert together.tolist() == pytest.approx(alone)


@given(st.sampled_from(WAYS[1:]), st.integers(1, 9), st.integers(1, 40))
def test_the_same_messages_as_the_cost_model(way: tuple[str, int], positions: int, micro_batches: int) -> None:
    schedule, virtual = way
    expected = exposed_messages(schedule, positions, virtual, micro_batches)
    assert float(hops(schedule, np.float64(positions), virtual, np.float64(micro_batches))) == pytest.approx(expected)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1", "zb-h2"])
def test_one_position_sends_nothing(schedule: str) -> None:
    assert float(hops(schedule, np.float64(1), 1, np.float64(9))) == 0
