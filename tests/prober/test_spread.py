"""The median of repetitions, and by how much they vary."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.prober.spread import LEAST_SPREAD, Figure, figure


def test_known() -> None:
    """0 to 100 in steps of 1, from 100 on: the 10th of a hundred is 110, the 90th 190, the median 150."""
    assert figure([100.0 + step for step in range(101)]) == Figure(150.0, round(40 / 150, 3))
    assert figure([5.0]) == Figure(5.0, LEAST_SPREAD)
    assert figure([2.0, 2.0, 2.0]) == Figure(2.0, LEAST_SPREAD)


def test_a_bell_curve_spreads_by_1_28_deviations() -> None:
    draw = random.Random(1)
    found = figure([draw.gauss(100, 10) for _ in range(20_000)])
    assert found.value == pytest.approx(100, rel=0.005)
    assert found.spread == pytest.approx(0.1 * statistics.NormalDist().inv_cdf(0.9), rel=0.03)


def test_measurements_of_the_same_agree() -> None:
    draw = random.Random(2)
    found = [figure([draw.gauss(100, 10) for _ in range(11)]) for _ in range(400)]
    agreeing = sum(one.agrees(other) for one, other in zip(found[::2], found[1::2], strict=True))
    assert agreeing >= 198
    assert not Figure(100.0, 0.01).agrees(Figure(103.0, 0.01))


@given(st.lists(st.floats(1e-9, 1e18), min_size=1, max_size=30))
def test_bounds(samples: list[float]) -> None:
    found = figure(samples)
    assert min(samples) * 0.999 <= found.value <= max(samples) * 1.001
    assert found.spread >= LEAST_SPREAD
    assert found == figure(samples[::-1])
