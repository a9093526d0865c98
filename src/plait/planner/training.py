"""The search for training: every way to split a step over a cluster, ranked, explained, and what cannot be.

On equal hosts the closed forms look at all of dp × pp × tp × ep, virtual stages, micro-batches, schedules, recompute
and ZeRO (`space` says which, `grid` how); the ten best, and the best of every other kind of split, are replayed
(`simulator.waves`) and ranked by that. On unequal machines `unequal` searches pipelines and their replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plait.costs.training import TrainingModel
from plait.errors import CapacityError, PlanError
from plait.planner.grid import Grid
from plait.planner.placement import devices_in_order, training_layout
from plait.planner.result import Candidate, Choice, DeviceMemory, Objective
from plait.planner.scoring import Scored, actions, simulated
from plait.planner.selection import Selection
from plait.planner.space import TrainingLimits
from plait.planner.training_break_even import break_evens
from plait.planner.training_capacity import shortfall
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
) -> Choice:
    """The best way to train on this cluster, the `top` best, and the best of every other kind with why it loses.

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

        return plan_unequal(spec, cluster, job, top=top, limits=limits)
    model = TrainingModel(spec, job, machine)
    selection = Selection(Grid(model, devices, limits))
    best = selection.best(max(_SIMULATED, top))
    if not best:
        raise CapacityError(shortfall(selection, devices))
    ranked, others = ranked_ways(model, selection, best)
    return _choice(_Answer(model, cluster, devices), selection, ranked[:top], others)


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
    """The best by the replay, and the best of every kind, schedule and recompute that is not among them.

    Replayed are the best by the closed form, the best of every family, and then all others whose slowest position alone
    does not keep them from being the best: as many as there is time for, so that in small searches none is missed.
    """
    families = sorted(_families(selection, best), key=lambda one: one.rank)
    few = _affordable(families, _MOST_ACTIONS)
    replayed = simulated(model, [*best, *few])
    bar_s = min(one.step_s for one in replayed)
    known = {one.setup for one in replayed}
    replayed += simulated(model, selection.contenders(bar_s, known, _MOST_CONTENDERS, _MOST_ACTIONS // 2))
    ranked = sorted(replayed, key=lambda one: one.rank)
    most = len(best)
    others = [one for one in ranked[most:] if (one.setup, one.cut) in {(two.setup, two.cut) for two in few}]
    return ranked[:most], sorted([*others, *families[len(few) :]], key=lambda one: one.rank)


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


def _choice(answer: _Answer, selection: Selection, ranked: Sequence[Scored], others: Sequence[Scored]) -> Choice:
    links, winner = answer.links, ranked[0]
    shown = [*ranked, *others]
    other_kinds = [one for one in shown if one.kind != winner.kind]
    reason = why_it_wins(winner.setup, winner.figures, links)
    if other_kinds:
        second = min(other_kinds, key=lambda one: one.rank)
        reason += f"; the best of another kind, {second.kind}, takes {format_seconds(second.step_s)}"
    names = devices_in_order(answer.cluster)
    hosts = [answer.cluster.device(name).host for name in names]
    made = []
    for one in shown:
        loses = "" if one is winner else why_it_loses(winner.setup, winner.figures, one.setup, one.figures, links)
        made.append(_candidate(answer, one, names, hosts, loses, reason if one is winner else ""))
    return Choice(
        "step",
        made[0],
        tuple(made),
        selection.rejected(),
        break_evens(selection, answer.devices, winner, _best_of_kinds(other_kinds)),
        reason,
    )


def _best_of_kinds(found: Sequence[Scored]) -> list[Scored]:
    best: dict[str, Scored] = {}
    for one in sorted(found, key=lambda one: one.rank):
        best.setdefault(one.kind, one)
    return list(best.values())


def _candidate(
    answer: _Answer, one: Scored, names: Sequence[str], hosts: Sequence[str], loses: str, reason: str
) -> Candidate:
    model, setup = answer.model, one.setup
    layout = training_layout(setup, one.cut, names, model.job.dtype, hosts)
    free, width = model.machine.device.memory_bytes, setup.split.ranks // setup.split.pp
    memory = tuple(DeviceMemory(names[position * width], need, free) for position, need in enumerate(one.need_bytes))
    plan = TrainingPlan(
        model.spec.name, layout, setup, model.job.batch, model.job.sequence, reason or split_words(setup)
    )
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
