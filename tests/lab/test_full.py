"""Every experiment as a person runs it: every figure within the bound that it states."""

from __future__ import annotations

import pytest

from plait.lab.experiments import EXPERIMENTS
from plait.lab.run import run_experiments

from .figures import broken


@pytest.mark.soak
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_full_form_holds(name: str) -> None:
    """A figure of time may be measured a second time, where something else took a core; what is exact may not."""
    off: list[str] = []
    for _ in range(2):
        found = run_experiments([name])
        assert not found.broken
        (outcome,) = found.outcomes
        assert [check.what for check in outcome.checks if not check.holds and not check.bound] == []
        off = broken(outcome)
        if not off:
            break
    assert off == []
