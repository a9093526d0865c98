"""A way over unequal machines as a plan, and the simulator's figures for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from plait.planner.placement import link_capacity
from plait.planner.training_forecast import MOST_ACTIONS, simulated_figures
from plait.planner.training_words import split_words
from plait.planner.unequal_costs import Counted, Machines, Way
from plait.plans.layout import Layout, Stage
from plait.plans.training import TrainingPlan


def plan_of(machines: Machines, way: Way) -> TrainingPlan:
    """The plan: every stage with its devices."""
    setup, job, stages = way.setup, machines.job, []
    for place, (members, layers) in enumerate(zip(way.members, way.cut, strict=True)):
        ranks = tuple(range(place * len(members), (place + 1) * len(members)))
        names = tuple(device.name for device in members)
        stages.append(Stage(layers, ranks, job.dtype, job.dtype, host=members[0].host, devices=names))
    axes = {"dp": setup.split.dp, "pp": setup.split.pp, "tp": 1}
    layout = Layout(axes, tuple(stages), link_capacity(setup))
    return TrainingPlan(machines.spec.name, layout, setup, job.batch, job.sequence, split_words(setup))


class Simulator:
    """Simulates ways, as many as there is time for."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._left = MOST_ACTIONS

    def best(self, found: Sequence[Counted], bar_s: float) -> tuple[list[Counted], float]:
        """The same; those that may be better than `bar_s` simulated, the best first; and the best seconds now.

        The replay never takes longer than the simulator, so the others cannot be better.
        """
        made = []
        for one in sorted(found, key=lambda one: one.figures["step_s"]):
            again = self._again(one) if one.over_bytes <= 0 and one.figures["step_s"] < bar_s else one
            if again.over_bytes <= 0:
                bar_s = min(bar_s, again.figures["step_s"])
            made.append(again)
        return made, bar_s

    def _again(self, one: Counted) -> Counted:
        setup = one.way.setup
        self._left -= 3 * setup.micro_batches * setup.split.pp
        if self._left < 0:
            return one
        machines = self._machines
        return replace(one, figures=simulated_figures(plan_of(machines, one.way), machines.spec, machines.cluster))
