"""The search for training: every way to split a step over a cluster, ranked, explained, and what cannot be.

On equal hosts the closed forms look at all of dp × pp × tp × ep, virtual stages, micro-batches, schedules, recompute
and ZeRO (`space` says which, `grid` how); the ten best, and the best of every other kind of split, are replayed
(`simulator.waves`) and ranked by that. On unequal machines `unequal` searches pipelines and their replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from plait.costs.training import TrainingModel
from plait.errors import CapacityError, PlanError
from plait.planner.grid import Grid
from plait.planner.placement import devices_in_order, training_layout
from plait.planner.result import BreakEven, Candidate, Choice, DeviceMemory, Objective
from plait.planner.scoring import Scored, actions, simulated
from plait.planner.selection import Selection
from plait.planner.space import TrainingLimits
from plait.planner.training_break_even import KindAt, break_evens, cluster_over, over
from plait.planner.training_capacity import shortfall
from plait.planner.training_forecast import simulated_figures, simulated_until_best
from plait.planner.training_limits import require_limits
from plait.planner.training_words import Links, split_words, why_it_loses, why_it_wins
from plait.plans.training import TrainingPlan
from plait.spec.cluster import Cluster, equal_machine
from plait.spec.job import TrainingJob
from plait.spec.model import ModelSpec
from plait.units import format_seconds

_SIMULATED = 10
_MOST_ACTIONS = 400_000
"""The best of other kinds are replayed too, as long as all of them together have no more actions than that; and half as
many of those that may be better than the best."""
_MOST_CONTENDERS = 500


def plan_training(
    spec: ModelSpec,
    cluster: Cluster,
    job: TrainingJob,
    objective: Objective = "step",
    *,
    top: int = 10,
    limits: TrainingLimits | None = None,
    break_even: bool = True,
) -> Choice:
    """The best way to train on this cluster, the `top` best, and the best of every other kind with why it loses.

    `break_even`: also look for the links from which on another kind wins, which takes several searches.
    Errors: PlanError for an objective or a limit that cannot be, CapacityError where nothing fits in memory, with what
    is missing and the nearest that fits.
    """
    if objective != "step":
        raise PlanError(f"objective {objective!r} is of generation: training has --objective step")
    limits = limits or TrainingLimits()
    devices = _device_count(cluster, limits)
    require_limits(spec, job, devices, limits)
    machine = equal_machine(cluster)
    if machine is None:
        from plait.planner.unequal import plan_unequal

        return plan_unequal(spec, cluster, job, top=top, limits=limits, break_even=break_even)
    return plan_equal(TrainingModel(spec, job, machine), cluster, devices, top, limits, break_even=break_even)


def plan_equal(
    model: TrainingModel, cluster: Cluster, devices: int, top: int, limits: TrainingLimits, *, break_even: bool
) -> Choice:
    """The best on the first `devices` of a cluster whose devices count as the model's machine. Errors: as above."""
    require_limits(model.spec, model.job, devices, limits)
    selection = Selection(Grid(model, devices, limits))
    best = selection.best(max(_SIMULATED, top))
    if not best:
        raise CapacityError(shortfall(selection, devices))
    ranked, others = ranked_ways(model, selection, best)
    if not ranked:
        raise CapacityError(shortfall(selection, devices))
    names = devices_in_order(cluster)
    host_of = {device.name: device.host for device in cluster.devices}
    answer = _Answer(model, cluster, devices, names, tuple(host_of[name] for name in names))
    return _choice(answer, selection, (ranked, others), top, break_even)


def _device_count(cluster: Cluster, limits: TrainingLimits) -> int:
    there = len(cluster.devices)
    if limits.devices is None:
        return there
    if not 1 <= limits.devices <= there:
        raise PlanError(f"{limits.devices} devices were asked for, but the cluster has {there}")
    return limits.devices


def ranked_ways(
    model: TrainingModel, selection: Selection, best: Sequence[Scored]
) -> tuple[list[Scored], list[Scored]]:
    """All that were replayed, the best first, and the best of every kind, schedule and recompute behind the first few.

    Replayed are the best by the closed form, the best of every family, and then all others whose slowest position alone
    does not keep them from being the best: as many as there is time for, so that in small searches none is missed.
    """
    families = sorted(_families(selection, best), key=lambda one: one.rank)
    few = _affordable(families, _MOST_ACTIONS)
    replayed = _fitting(model, simulated(model, [*best, *few]))
    bar_s = min((one.step_s for one in replayed), default=float("inf"))
    known = {one.setup for one in (*best, *few)}
    contenders = selection.contenders(bar_s, known, _MOST_CONTENDERS, _MOST_ACTIONS // 2)
    replayed += _fitting(model, simulated(model, contenders))
    ranked = sorted(replayed, key=lambda one: one.rank)
    most = len(best)
    others = [one for one in ranked[most:] if (one.setup, one.cut) in {(two.setup, two.cut) for two in few}]
    return ranked, sorted([*others, *families[len(few) :]], key=lambda one: one.rank)


def _fitting(model: TrainingModel, found: Sequence[Scored]) -> list[Scored]:
    """Those that fit by what the order really holds; the closed form takes a position's stages for equal."""
    return [one for one in found if max(one.need_bytes) <= model.machine.device.memory_bytes]


def _affordable(found: Sequence[Scored], most: int) -> list[Scored]:
    """The first of them, as long as all together have no more than so many actions."""
    few: list[Scored] = []
    for one in found:
        most -= actions(one.setup)
        if most < 0:
            break
        few.append(one)
    return few


def _families(selection: Selection, best: Sequence[Scored]) -> list[Scored]:
    """The best of every kind of split; of the kind of the very best one also of every schedule and recompute."""
    kind = best[0].kind
    found: dict[tuple[str, ...], Scored] = {}
    for family, scored in selection.families():
        names = [("kind", family.kind)]
        if family.kind == kind:
            names += [("schedule", family.schedule), ("recompute", family.recompute)]
        for name in names:
            if name not in found or scored.rank < found[name].rank:
                found[name] = scored
    there = {(one.setup, one.cut) for one in best}
    different = {(one.setup, one.cut): one for one in found.values()}
    return [one for key, one in different.items() if key not in there]


@dataclass(frozen=True, slots=True)
class _Answer:
    """What an answer is made from."""

    model: TrainingModel
    cluster: Cluster
    devices: int
    names: tuple[str, ...]
    hosts: tuple[str, ...]

    def plan(self, one: Scored) -> TrainingPlan:
        """The plan of a way to split."""
        job = self.model.job
        layout = training_layout(one.setup, one.cut, self.names, job.dtype, self.hosts)
        return TrainingPlan(self.model.spec.name, layout, one.setup, job.batch, job.sequence)

    @property
    def links(self) -> Links:
        """The machine as explanations see it: what a device reaches."""
        machine, fabric = self.model.machine, self.model.fabric
        wire = machine.network.between_hosts
        shared = wire.bandwidth if wire.host_bandwidth is None else wire.host_bandwidth / machine.devices_per_host
        return Links(
            min(machine.devices_per_host, self.devices),
            -(-self.devices // machine.devices_per_host),
            machine.network.within_host.bandwidth,
            min(wire.bandwidth, shared) if fabric.devices_per_host > 1 else wire.bandwidth,
            self.devices,
        )


def _choice(
    answer: _Answer, selection: Selection, ways: tuple[list[Scored], list[Scored]], top: int, break_even: bool
) -> Choice:
    links = answer.links
    shown = _simulated(answer, ways, max(_SIMULATED, top), top)
    winner = shown[0]
    other_kinds = [one for one in shown if one.kind != winner.kind]
    reason = why_it_wins(winner.setup, winner.figures, links)
    if other_kinds:
        second = min(other_kinds, key=lambda one: one.rank)
        reason += f"; the best of another kind, {second.kind}, takes {format_seconds(second.step_s)}"
    made = []
    for one in shown:
        loses = "" if one is winner else why_it_loses(winner.setup, winner.figures, one.setup, one.figures, links)
        made.append(_candidate(answer, one, loses, reason if one is winner else ""))
    found: tuple[BreakEven, ...] = ()
    if break_even:
        kind_at = _kinds_over(answer, selection)
        found = break_evens(selection, answer.devices, winner, _best_of_kinds(other_kinds), kind_at)
    return Choice(
        "step",
        made[0],
        tuple(made),
        selection.rejected(),
        found,
        reason,
    )


def _kinds_over(answer: _Answer, selection: Selection) -> KindAt:
    """The kind that is chosen over links of so many times the bandwidth: between hosts, or within the only one."""
    model, limits = answer.model, selection.grid.limits
    between = model.machine.hosts > 1

    @cache
    def kind_at(by: float) -> str:
        machine = model.machine._replace(network=over(model.machine.network, between, by))
        there = TrainingModel(model.spec, model.job, machine, model.profile)
        again = Selection(Grid(there, answer.devices, limits))
        ranked, _ = ranked_ways(there, again, again.best(_SIMULATED))
        changed = replace(answer, model=there, cluster=cluster_over(answer.cluster, by, between))
        return _simulated(changed, (ranked, []), 1, 1)[0].kind

    return kind_at


def _simulated(answer: _Answer, ways: tuple[list[Scored], list[Scored]], least: int, top: int) -> list[Scored]:
    """The `top` best and then the best of every other kind, with the simulator's figures as far as there is time."""

    def again(one: Scored) -> Scored:
        return replace(one, figures=simulated_figures(answer.plan(one), answer.model.spec, answer.cluster))

    def all_again(some: Sequence[Scored], first: int) -> list[Scored]:
        found = simulated_until_best(some, first, lambda one: one.step_s, lambda one: actions(one.setup), again)
        return sorted(found, key=lambda one: one.rank)

    ranked, others = ways
    best = all_again(ranked, least)
    shown = best[:top]
    there = {(one.setup, one.cut) for one in shown}
    behind = [one for one in others if (one.setup, one.cut) not in there and one.rank > ranked[0].rank]
    behind = [one for one in all_again(behind, len(behind)) if one.rank > shown[0].rank]
    return sorted([*shown, *behind], key=lambda one: one.rank)


def _best_of_kinds(found: Sequence[Scored]) -> list[Scored]:
    best: dict[str, Scored] = {}
    for one in sorted(found, key=lambda one: one.rank):
        best.setdefault(one.kind, one)
    return list(best.values())


def _candidate(answer: _Answer, one: Scored, loses: str, reason: str) -> Candidate:
    model, setup = answer.model, one.setup
    plan = replace(answer.plan(one), reason=reason or split_words(setup))
    layout = plan.layout
    free = model.machine.device.memory_bytes
    firsts = [layout.stages[held[0]].devices[0] for held in layout.positions]
    memory = tuple(DeviceMemory(name, need, free) for name, need in zip(firsts, one.need_bytes, strict=True))
    return Candidate(
        kind=one.kind,
        split=setup.split,
        cut=one.cut,
        devices=tuple(stage.devices for stage in layout.stages),
        schedule=setup.schedule,
        micro_batches=setup.micro_batches,
        recompute=setup.recompute,
        zero=setup.zero,
        predicted=one.figures,
        memory=memory,
        plan=plan,
        simulated=one.simulated,
        loses=loses,
        note=model.note,
    )
