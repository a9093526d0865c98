"""The simulator's own figures for the plans that an answer shows: `plait simulate` then says what `plait plan` said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from plait.plans.training import TrainingPlan
from plait.simulator.step import forecast_step
from plait.spec.cluster import Cluster
from plait.spec.model import ModelSpec

KEYS = ("step_s", "mfu", "bubble", "comm_bytes", "compute_s", "transfer_s", "wait_s", "peak_bytes", "tokens_per_s")
"""The design's keys that a candidate of training has."""

MOST_ACTIONS = 10_000
"""Computations that are simulated for one list of candidates: about 0.3 s. Larger rounds keep the replay's figures,
which are the same but for what messages wait for each other on a busy link."""

T = TypeVar("T")


def simulated_figures(plan: TrainingPlan, spec: ModelSpec, cluster: Cluster) -> dict[str, float]:
    """The plan's figures by `forecast_step`. Errors: PlanError."""
    found = forecast_step(plan, spec, cluster).predicted
    figures = {key: float(found[key]) for key in KEYS}
    # what rounding leaves below nothing is nothing
    return {key: max(0.0, value) for key, value in figures.items()}


def simulated_until_best(
    ranked: Sequence[T],
    least: int,
    seconds: Callable[[T], float],
    actions: Callable[[T], int],
    simulate: Callable[[T], T],
) -> list[T]:
    """Simulate the first `least`, and all others that may still be the best: the replay is never above the simulator.

    `ranked`: best first by the replay. The order is the given one; those for which there is no time are as given.
    """
    found: list[T] = []
    left, best_s = MOST_ACTIONS, float("inf")
    for place, one in enumerate(ranked):
        if place >= least and seconds(one) >= best_s:
            found += ranked[place:]
            break
        left -= actions(one)
        if left < 0:
            found += ranked[place:]
            break
        again = simulate(one)
        best_s = min(best_s, seconds(again))
        found.append(again)
    return found
