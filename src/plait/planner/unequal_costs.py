"""What a pipeline over unequal devices takes: seconds by the replay of its order, bytes position by position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from plait.costs.collectives import Channel, Group, all_reduce_s
from plait.costs.protocol import LinkCost
from plait.costs.states import rank_parameters, state_bytes
from plait.costs.training import TrainingModel
from plait.costs.work import model_flops
from plait.planner.cut import Cut
from plait.plans.split import Split, TrainingSetup
from plait.schedules.closed import in_flight
from plait.schedules.training import compute_order
from plait.simulator.waves import Run, replay
from plait.spec.cluster import Cluster, Device, EqualMachine, Network, Wire
from plait.spec.job import TrainingJob
from plait.spec.model import ModelSpec

_INFINITE = float("inf")


@dataclass(frozen=True, slots=True)
class Way:
    """A pipeline over `members` (for each stage the device of every replica), and how a step goes through it."""

    setup: TrainingSetup
    members: tuple[tuple[Device, ...], ...]
    cut: Cut


@dataclass(frozen=True, slots=True)
class Counted:
    """A way with its figures and bytes."""

    way: Way
    figures: dict[str, float]
    need_bytes: tuple[int, ...]
    over_bytes: int


class Machines:
    """Seconds and bytes of each device alone, computed once."""

    def __init__(self, spec: ModelSpec, job: TrainingJob, cluster: Cluster) -> None:
        self.spec, self.job, self.cluster = spec, job, cluster
        self._models: dict[tuple[object, ...], TrainingModel] = {}
        self._faster = 1.0

    def model(self, device: Device) -> TrainingModel:
        """The cost model of one device."""
        key = sort_of(device)
        if key not in self._models:
            free = Wire(0.0, _INFINITE)
            machine = EqualMachine(device, 1, 1, Network(free, free))
            self._models[key] = TrainingModel(self.spec, self.job, machine)
        return self._models[key]

    def link(self, source: Device, to: Device) -> LinkCost:
        """The directed link between two devices."""
        link = self.cluster.link(source.name, to.name)
        return LinkCost(link.latency_s, link.bandwidth * self._faster)

    def faster(self, by: float) -> Machines:
        """The same machines over links of `by` times the bandwidth."""
        found = Machines(self.spec, self.job, self.cluster)
        found._models, found._faster = self._models, self._faster * by
        return found


def counted(machines: Machines, way: Way) -> Counted:
    """Seconds by the replay of the order, with the slowest replica's links; bytes position by position."""
    setup, cut = way.setup, way.cut
    alone = replace(setup, split=Split(), schedule="1f1b")
    firsts = [members[0] for members in way.members]
    stages = [machines.model(device).times(alone).stage(layers)[:3] for device, layers in zip(firsts, cut, strict=True)]
    message = machines.model(firsts[0]).message_bytes(setup)
    onward = [_slowest_hop(machines, one, two, message) for one, two in zip(way.members, way.members[1:], strict=False)]
    back = [_slowest_hop(machines, two, one, message) for one, two in zip(way.members, way.members[1:], strict=False)]
    order = compute_order(setup.schedule, len(cut), 1, setup.micro_batches)
    forward, halves, weights = zip(*stages, strict=True)
    replayed = replay([Run(order, forward, halves, weights, onward, back)])[0]
    link_s = setup.micro_batches * max([*onward, *back], default=0.0)
    running_s = max(replayed.makespan_s, link_s)
    residue = machines.model(firsts[0]).profile.residue.get(setup.schedule, 0.0) if len(cut) > 1 else 0.0
    after = [_after_s(machines, way, stage) for stage in range(len(cut))]
    reduce_s, optimizer_s = max(after, key=sum)
    beside_s = max(machines.model(device).profile.step_s for device in firsts)
    step_s = running_s * (1 + residue) + reduce_s + optimizer_s + beside_s
    compute_s = float(replayed.busy_s.mean()) + optimizer_s + beside_s
    hops_s = sum(onward) + sum(back)
    transfer_s = reduce_s + min(hops_s, running_s - float(replayed.busy_s.mean()))
    need = _need_bytes(machines, way)
    free = [min(device.memory_bytes for device in members) for members in way.members]
    used = sum(_flops(machines, device) for members in way.members for device in members)
    figures = {
        "step_s": step_s,
        "mfu": model_flops(machines.spec, machines.job.batch, machines.job.sequence) / (used * step_s),
        "bubble": 1 - compute_s / step_s,
        "comm_bytes": 2.0 * message * setup.micro_batches * (len(cut) > 1),
        "compute_s": compute_s,
        "transfer_s": transfer_s,
        "wait_s": max(0.0, step_s - compute_s - transfer_s),
        "peak_bytes": float(max(need)),
        "tokens_per_s": machines.job.batch * machines.job.sequence / step_s,
    }
    return Counted(way, figures, need, max(a - b for a, b in zip(need, free, strict=True)))


def _flops(machines: Machines, device: Device) -> float:
    return machines.model(device).rates.flops


def _slowest_hop(machines: Machines, sources: Sequence[Device], targets: Sequence[Device], message: float) -> float:
    return max(machines.link(a, b).transfer_s(message) for a, b in zip(sources, targets, strict=True))


def _after_s(machines: Machines, way: Way, stage: int) -> tuple[float, float]:
    """Reduction over the replicas and the optimizer of one stage."""
    members, model = way.members[stage], machines.model(way.members[stage][0])
    parameters = rank_parameters(machines.spec, [way.cut[stage]]).total
    sharded = len(members) if way.setup.zero else 1
    optimizer_s = model.rates.moved_s(parameters * model.profile.stepped_bytes / sharded)
    if len(members) == 1:
        return 0.0, optimizer_s
    links = [machines.link(a, b) for a in members for b in members if a is not b]
    slowest = LinkCost(max(one.latency_s for one in links), min(one.bandwidth_bytes_per_s for one in links))
    return all_reduce_s(parameters * model.profile.reduced_bytes, Group(len(members), Channel(slowest))), optimizer_s


def _need_bytes(machines: Machines, way: Way) -> tuple[int, ...]:
    setup = way.setup
    model = machines.model(way.members[0][0])
    kept = model.layer_bytes(replace(setup, split=Split(), schedule="1f1b"))
    flying = in_flight(setup.schedule, setup.split.pp, 1, setup.micro_batches)
    found = []
    for layers, held in zip(way.cut, flying, strict=True):
        states = state_bytes(rank_parameters(machines.spec, [layers]), model.recipe, setup.zero, setup.split)
        last = kept.last if layers[1] == machines.spec.layers else 0.0
        found.append(round(states.total_bytes + held * kept.stage(layers) + kept.recomputed + last))
    return tuple(found)


def sort_of(device: Device) -> tuple[object, ...]:
    """What makes devices equal: all their figures."""
    return device.memory_bytes, tuple(sorted(device.flops.items())), device.memory_bandwidth, device.profile
