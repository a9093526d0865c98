"""Figures of ways to split, made by hand."""

from __future__ import annotations

from plait.lab.answers import Figures
from plait.lab.experiment import Outcome


def figures(
    round_s: float, sent_bytes: float = 0.0, *computed_s: float, users: int = 1, forwards: float = 1
) -> Figures:
    """A round of that length; each stage computes all of it, unless it is said how long."""
    stages = computed_s or (round_s,)
    return Figures(users, round_s, 1 - sum(stages) / len(stages) / round_s, sent_bytes, stages, forwards)


def broken(outcome: Outcome) -> list[str]:
    """The checks that do not hold."""
    return [check.what for check in outcome.checks if not check.holds]
