"""The search for training on unequal machines: pipelines by the exact cut, their replicas, and equal devices alone.

Searched are, for every micro-batch size and with no recompute or full:

- pipelines of any devices, each a stage of its own, in any order over the directed links, slow ones left out: the exact
  optimum of `planner.exact` for a full pipeline (the slowest stage or link decides), for any number of stages and for
  each small number;
- `dp` replicas of such a pipeline, where every sort of device can be dealt out evenly: they reduce their gradients over
  the slowest link between two devices that hold the same stage;
- whatever `unequal_search` cannot rule out: every order, cut and micro-batch whose bound is below the best so far;
- sets of devices, each counted as so many of the weakest of them, by the whole search of equal clusters (tensor groups,
  experts and several stages a position too).

The exact cut takes layers as if every stage held as many micro-batches as the first one does; what is then needed is
counted position by position. Links that several pairs of devices share are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations

import numpy as np

from plait.costs.states import rank_parameters, state_bytes
from plait.costs.training import TrainingModel
from plait.costs.work import model_flops
from plait.errors import CapacityError, PlanError
from plait.planner.cut import Cut
from plait.planner.exact import Problem, best_throughput
from plait.planner.result import Choice, Rejected
from plait.planner.space import TrainingLimits, divisors, micro_batch_sizes
from plait.planner.training_break_even import KindAt, cluster_over
from plait.planner.unequal_answer import answer
from plait.planner.unequal_costs import Machines, Way, counted, sort_of
from plait.planner.unequal_improve import UNEQUAL_SCHEDULES, improved
from plait.planner.unequal_plans import Simulator
from plait.plans.split import Recompute, Split, TrainingSetup
from plait.spec.cluster import Cluster, Device, only_devices
from plait.spec.job import TrainingJob
from plait.spec.model import ModelSpec
from plait.spec.weakest import weakest_machine
from plait.units import format_bytes

_SMALL = 4
"""Every number of stages up to this is tried: with few micro-batches a short pipeline wins."""
_SIZES = (1, 2, 4, 8, 16, 32, 64)
_SCHEDULES = UNEQUAL_SCHEDULES
_ALL_SETS = 4
"""Of so many devices every set is also counted as equal ones."""
_FEW = 8
"""Break-evens are looked for, by planning again, on so many devices at most."""


def plan_unequal(
    spec: ModelSpec, cluster: Cluster, job: TrainingJob, *, top: int, limits: TrainingLimits, break_even: bool = True
) -> Choice:
    """The best of all that the module's docstring names. Errors: CapacityError where nothing fits."""

    @cache
    def kind_at(by: float) -> str:
        return _planned(spec, cluster_over(cluster, by), job, 1, limits, None).chosen.kind

    return _planned(spec, cluster, job, top, limits, kind_at if break_even and len(cluster.devices) <= _FEW else None)


def _planned(
    spec: ModelSpec, cluster: Cluster, job: TrainingJob, top: int, limits: TrainingLimits, kind_at: KindAt | None
) -> Choice:
    machines = Machines(spec, job, cluster)
    devices = list(cluster.devices)[: limits.devices]
    refused: dict[tuple[int, int], Rejected] = {}
    simulator = Simulator(machines)
    seeds = counted(machines, list(_ways(machines, devices, limits, refused)))
    found, bar_s = simulator.best(seeds, float("inf"))
    found += improved(machines, devices, limits, simulator, bar_s)
    bar_s = min((one.figures["step_s"] for one in found if one.over_bytes <= 0), default=float("inf"))
    alone = list(_as_equal(machines, devices, top, limits, bar_s))
    return answer(machines, devices, found, alone, list(refused.values()), top, kind_at)


# what is looked at


def _ways(
    machines: Machines,
    devices: Sequence[Device],
    limits: TrainingLimits,
    refused: dict[tuple[int, int], Rejected],
) -> Iterator[Way]:
    """All ways; those for which no cut fits go to `refused`, by replicas and stages."""
    if limits.tp not in (None, 1) or limits.ep not in (None, 1):
        return
    recompute: list[Recompute] = [one for one in limits.recompute if one != "selective"] or ["none"]
    seen: set[tuple[object, ...]] = set()
    for replicas in _replicas(devices, machines.job.batch, limits):
        groups = _dealt(devices, replicas)
        share = machines.job.batch // replicas
        for size in micro_batch_sizes(machines.job.sequence, limits):
            if share % size or size not in (*_SIZES, limits.micro_batch):
                continue
            for again in recompute:
                none: list[tuple[Problem, int]] = []
                for schedule, order, cut in _pipelines(machines, groups, size, share // size, again, limits, none):
                    way = _way(machines, groups, replicas, size, schedule, order, cut, again, limits)
                    key = way.setup, way.cut, tuple(members[0].name for members in way.members)
                    if key not in seen:
                        seen.add(key)
                        yield way
                for problem, stages in none:
                    _refuse(refused, problem, replicas, stages)


def _replicas(devices: Sequence[Device], batch: int, limits: TrainingLimits) -> list[int]:
    """Numbers of replicas for which every sort of device can be dealt out evenly."""
    counts: dict[tuple[object, ...], int] = {}
    for device in devices:
        counts[sort_of(device)] = counts.get(sort_of(device), 0) + 1
    fitting = [dp for dp in divisors(batch) if all(count % dp == 0 for count in counts.values())]
    return [dp for dp in fitting if limits.dp in (None, dp)]


def _dealt(devices: Sequence[Device], replicas: int) -> list[tuple[Device, ...]]:
    """For each place in a replica the devices that take it: neighbours in the cluster, of one sort."""
    sorts: dict[tuple[object, ...], list[Device]] = {}
    for device in devices:
        sorts.setdefault(sort_of(device), []).append(device)
    groups = []
    for members in sorts.values():
        each = len(members) // replicas
        groups += [tuple(members[place + each * replica] for replica in range(replicas)) for place in range(each)]
    return groups


def _pipelines(
    machines: Machines,
    groups: Sequence[tuple[Device, ...]],
    size: int,
    count: int,
    recompute: Recompute,
    limits: TrainingLimits,
    none: list[tuple[Problem, int]],
) -> Iterator[tuple[str, tuple[int, ...], Cut]]:
    """Schedules with the machines of each stage in order and the cut, by the exact search.

    Numbers of stages for which there is none go to `none`.
    """
    most = min(len(groups), machines.spec.layers)
    numbers = [limits.pp] if limits.pp else [None, *range(1, min(most, _SMALL) + 1)]
    for flying in sorted({min(count, most), 1}, reverse=True):
        problem = _problem(machines, groups, size, recompute, flying)
        for stages in numbers:
            found = best_throughput(problem, stages)
            if found is None:
                none.append((problem, stages or most))
                continue
            for schedule in _SCHEDULES:
                alone = len(found.cut) == 1
                if alone and "1f1b" not in limits.schedules:
                    continue
                if schedule in limits.schedules and (schedule == "layerwise") == (flying == 1 and count > 1):
                    yield schedule, found.machines, found.cut


def _refuse(refused: dict[tuple[int, int], Rejected], problem: Problem, replicas: int, stages: int) -> None:
    """Count a way for which no cut fits; of all with so many stages the one that needs least is shown."""
    beside = problem.first_bytes + problem.last_bytes + stages * float(problem.fixed_bytes.max())
    need = float(problem.layer_bytes.sum() + beside)
    have = float(np.sort(problem.free_bytes)[-stages:].sum())
    known = refused.get((replicas, stages))
    count = 1 if known is None else known.count + 1
    if known is not None and known.need <= need:
        need = known.need
    where = "the largest device has" if stages == 1 else f"the {stages} largest devices have"
    reason = f"memory: it would need at least {format_bytes(need)}, {where} {format_bytes(have)}"
    if need <= have:
        reason += ", and no cut into whole layers fits each of them"
    refused[replicas, stages] = Rejected({"dp": replicas, "pp": stages}, count, reason, need, have)


def _problem(
    machines: Machines, groups: Sequence[tuple[Device, ...]], size: int, recompute: Recompute, flying: int
) -> Problem:
    """The devices as machines of the exact search; of each group its first replica's links stand for all."""
    setup = TrainingSetup(Split(), "1f1b", size, 1, 1, recompute, fused_attention=machines.job.attention == "fused")
    firsts = [group[0] for group in groups]
    models = [machines.model(device) for device in firsts]
    times = [model.times(setup) for model in models]
    kept = models[0].layer_bytes(setup)
    spec = machines.spec

    def total(row: Sequence[float]) -> float:
        return row[0] + row[1] + row[2]

    def states(first: int, end: int) -> float:
        return state_bytes(rank_parameters(spec, [(first, end)]), models[0].recipe).total_bytes

    held = [kept.before[layer + 1] - kept.before[layer] for layer in range(spec.layers)]
    whole, inner = states(0, spec.layers), _inner_states(spec, models[0])
    message = models[0].message_bytes(setup)
    occupied, latency = _links(machines, firsts, message)
    ends = (whole - sum(inner)) / 2
    return Problem(
        np.array([[total(b) - total(a) for a, b in zip(one.before, one.before[1:], strict=False)] for one in times]),
        np.array([2 * model.profile.micro_batch_s for model in models]),
        np.array([total(one.first) for one in times]),
        np.array([total(one.last) for one in times]),
        np.array([state + flying * one for state, one in zip(inner, held, strict=True)]),
        np.full(len(firsts), kept.recomputed),
        ends + flying * kept.first,
        ends + kept.last,
        np.array([float(device.memory_bytes) for device in firsts]),
        occupied,
        latency,
        np.zeros_like(occupied),
    )


def _inner_states(spec: ModelSpec, model: TrainingModel) -> list[float]:
    """Bytes of the states of each layer, without the model's ends."""
    layers = spec.layers
    whole = [state_bytes(rank_parameters(spec, [(layer, layer + 1)]), model.recipe) for layer in range(layers)]
    found = [one.total_bytes for one in whole]
    # the first and the last layer came with embedding and head: their neighbours' bytes are theirs
    if layers > 2:
        found[-1] = found[-2]
        found[0] = found[1] if not (spec.experts and spec.experts.dense_layers == 1) else found[0]
    return found


def _links(machines: Machines, devices: Sequence[Device], message: float) -> tuple[np.ndarray, np.ndarray]:
    """How long a message keeps the link, there or back (the slower), and how much later it is there [n, n]."""
    count = len(devices)
    occupied, latency = np.zeros((count, count)), np.zeros((count, count))
    for i, one in enumerate(devices):
        for j, other in enumerate(devices):
            if i != j:
                there, back = machines.link(one, other), machines.link(other, one)
                occupied[i, j] = max(there.occupied_s(message), back.occupied_s(message))
                latency[i, j] = max(there.latency_s, back.latency_s)
    return occupied, latency


def _way(
    machines: Machines,
    groups: Sequence[tuple[Device, ...]],
    replicas: int,
    size: int,
    schedule: str,
    order: Sequence[int],
    cut: Cut,
    recompute: Recompute,
    limits: TrainingLimits,
) -> Way:
    count = machines.job.batch // replicas // size
    zero = 1 if replicas > 1 and 1 in limits.zero else 0
    name = "1f1b" if len(cut) == 1 else schedule
    fused = machines.job.attention == "fused"
    setup = TrainingSetup(Split(replicas, len(cut)), name, size, count, 1, recompute, zero, fused_attention=fused)
    return Way(setup, tuple(groups[place] for place in order), cut)


def _as_equal(
    machines: Machines, devices: Sequence[Device], top: int, limits: TrainingLimits, bar_s: float
) -> Iterator[Choice]:
    """The search of equal clusters over sets of devices, each counted as the weakest of its set.

    Tensor groups, experts and several stages a position are looked at here alone. Left out are sets that could not be
    faster than `bar_s` if they computed all the time, and those that more devices like them are in.
    """
    from plait.planner.training import plan_equal

    spec, job = machines.spec, machines.job
    seen: set[tuple[object, ...]] = set()
    for few in _sets(devices):
        names = [device.name for device in few]
        machine = weakest_machine(machines.cluster, names)
        if machine is None:
            continue
        key = sort_of(machine.device), machine.devices_per_host, machine.hosts, machine.network
        wider = any((key[0], key[1], hosts, key[3]) in seen for hosts in range(machine.hosts, len(devices) + 1))
        seen.add(key)
        model = TrainingModel(spec, job, machine)
        least_s = model_flops(spec, job.batch, job.sequence) / (model.rates.flops * len(few))
        if wider or (least_s >= bar_s and len({sort_of(device) for device in few}) > 1):
            continue
        try:
            there = only_devices(machines.cluster, names)
            choice = plan_equal(model, there, len(few), top, limits, break_even=False)
        except (CapacityError, PlanError):  # too small, or a limit needs more devices than there are in this set
            continue
        bar_s = min(bar_s, choice.chosen.predicted["step_s"])
        yield choice


def _sets(devices: Sequence[Device]) -> Iterator[tuple[Device, ...]]:
    """Sets of a few devices, the largest first; of more devices those that are at least as good as one of each sort."""
    if len(devices) <= _ALL_SETS:
        for size in range(len(devices), 0, -1):
            yield from combinations(devices, size)
        return
    sorts = {sort_of(device): device for device in devices}.values()
    found = {tuple(one for one in devices if _as_good(one, least)) for least in sorts}
    found |= {tuple(one for one in devices if sort_of(one) == sort_of(least)) for least in sorts}
    yield from sorted(found, key=lambda few: (-len(few), [device.name for device in few]))


def _as_good(one: Device, least: Device) -> bool:
    """True where no figure of it is below the other's."""
    return (
        one.memory_bytes >= least.memory_bytes
        and one.memory_bandwidth >= least.memory_bandwidth
        and all(one.flops.get(dtype, 0.0) >= speed for dtype, speed in least.flops.items())
    )
