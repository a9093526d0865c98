"""Fits find constants that are known, and stay where nothing says otherwise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.costs.profiles import Profile, profile_named
from plait.validator.fitting import Errors, fitted

PLAIN = profile_named("plain")
WORK = np.array([[1e12, 1e9, 1], [4e12, 1e9, 2], [1e12, 8e9, 1], [2e12, 2e9, 9], [1e11, 1e8, 5]])


def seconds(profile: Profile) -> Errors:
    """FLOP, bytes and operations, each by one figure of the profile."""
    cost = [1 / (profile.matrix_share * 1e14), 1 / (profile.memory_share * 1e12), profile.launch_s * 100]
    return WORK @ np.array(cost)


@settings(deadline=None, max_examples=25)
@given(st.floats(0.2, 0.9), st.floats(0.2, 0.9), st.floats(1e-6, 1e-4))
def test_known_constants_are_found(matrix: float, memory: float, launch: float) -> None:
    true = seconds(PLAIN.changed(matrix_share=matrix, memory_share=memory, launch_s=launch))
    spread = {"matrix_share": 2.0, "memory_share": 2.0, "launch_s": 2.0}
    found = fitted(PLAIN, spread, lambda profile: (seconds(profile) / true - 1) / 1e-5, rounds=200)
    assert found.matrix_share == pytest.approx(matrix, rel=1e-3)
    assert found.memory_share == pytest.approx(memory, rel=1e-3)
    assert found.launch_s == pytest.approx(launch, rel=1e-3)


def test_what_nothing_depends_on_stays() -> None:
    spread = {"operation_s": 1.0, "launch_s": 1.0}
    found = fitted(PLAIN, spread, lambda profile: seconds(profile) / seconds(PLAIN.changed(launch_s=2e-5)) - 1)
    assert found.operation_s == pytest.approx(PLAIN.operation_s)
    assert found.launch_s > PLAIN.launch_s


def test_the_spread_holds_a_figure_back() -> None:
    """One figure, one row that asks for twice of it: the narrower the spread, the less it moves."""

    def errors(profile: Profile) -> Errors:
        return np.array([(np.log(profile.launch_s) - np.log(2 * PLAIN.launch_s)) / 0.1])

    moved = [fitted(PLAIN, {"launch_s": spread}, errors).launch_s / PLAIN.launch_s for spread in (0.01, 0.1, 10.0)]
    assert moved[0] < 1.02
    assert moved[1] == pytest.approx(2**0.5, rel=1e-3)  # as far from the row as from where it began
    assert moved[2] == pytest.approx(2, rel=1e-3)
