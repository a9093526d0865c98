"""What a pipeline over unequal devices takes: seconds by the replay of its order, bytes position by position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from plait.costs.collectives import Channel, Group, all_reduce_s, sent_bytes
from plait.costs.protocol import LinkCost
from plait.costs.states import rank_parameters, state_bytes
from plait.costs.training import TrainingModel
from plait.costs.work import model_flops
from plait.planner.cut import Cut
from plait.plans.split import Split, TrainingSetup
from plait.schedules.closed import heads_in_flight, in_flight
from plait.schedules.training import compute_order
from plait.simulator.waves import Replayed, Run, replay
from plait.spec.cluster import Cluster, Device, EqualMachine, Network, Wire
from plait.spec.job import TrainingJob
from plait.spec.model import ModelSpec

_INFINITE = float("inf")

Unit = tuple[Device, ...]
"""The devices that hold one stage, one for each replica."""


@dataclass(frozen=True, slots=True)
class Way:
    """A pipeline over `members` (for each stage the device of every replica), and how a step goes through it."""

    setup: TrainingSetup
    members: tuple[Unit, ...]
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
        self._optimizers: dict[tuple[object, ...], float] = {}
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

    def hop_s(self, sources: Unit, targets: Unit, message_bytes: float) -> float:
        """Seconds until a message is there, of the slowest replica."""
        return max(self.link(a, b).transfer_s(message_bytes) for a, b in zip(sources, targets, strict=True))

    def occupied_s(self, one: Unit, other: Unit, message_bytes: float) -> float:
        """How long a message keeps a link, there or back, of the slowest replica."""
        pairs = list(zip(one, other, strict=True))
        return max(self.link(*ends).occupied_s(message_bytes) for a, b in pairs for ends in ((a, b), (b, a)))

    def stage_s(self, unit: Unit, setup: TrainingSetup, layers: tuple[int, int]) -> tuple[float, float, float]:
        """Forward and both halves of the backward of one micro-batch, each of the slowest replica."""
        each = [
            self.model(device).times(alone(setup)).stage(layers)[:3]
            for device in {sort_of(d): d for d in unit}.values()
        ]
        forward, back, weight = (max(column) for column in zip(*each, strict=True))
        return forward, back, weight

    def optimizer_s(self, device: Device, layers: tuple[int, int]) -> float:
        """Seconds of a stage's whole optimizer step."""
        key = sort_of(device), layers
        if key not in self._optimizers:
            setup = TrainingSetup(Split(), "1f1b", 1, 1)
            cut = tuple(dict.fromkeys(((0, layers[0]), layers, (layers[1], self.spec.layers))))
            cut = tuple(one for one in cut if one[0] < one[1])
            self._optimizers[key] = self.model(device).stage_tail(setup, cut, cut.index(layers)).optimizer_s
        return self._optimizers[key]

    def message_bytes(self, way: Way) -> float:
        """Bytes of a micro-batch's activations between two stages."""
        return self.model(way.members[0][0]).message_bytes(alone(way.setup))

    def faster(self, by: float) -> Machines:
        """The same machines over links of `by` times the bandwidth."""
        found = Machines(self.spec, self.job, self.cluster)
        found._models, found._optimizers, found._faster = self._models, self._optimizers, self._faster * by
        return found


def counted(machines: Machines, ways: Sequence[Way]) -> list[Counted]:
    """Seconds by the replay of each order, all together, with the slowest replica's links; bytes by position."""
    runs = [_run(machines, way) for way in ways]
    return [_counted(machines, way, run, done) for way, run, done in zip(ways, runs, replay(runs), strict=True)]


def _run(machines: Machines, way: Way) -> Run:
    setup, cut = way.setup, way.cut
    stages = [machines.stage_s(members, setup, layers) for members, layers in zip(way.members, cut, strict=True)]
    message = machines.message_bytes(way)
    pairs = list(zip(way.members, way.members[1:], strict=False))
    onward = [machines.hop_s(one, two, message) for one, two in pairs]
    back = [machines.hop_s(two, one, message) for one, two in pairs]
    order = compute_order(setup.schedule, len(cut), 1, setup.micro_batches)
    forward, halves, weights = zip(*stages, strict=True)
    return Run(order, forward, halves, weights, onward, back)


def _counted(machines: Machines, way: Way, run: Run, done: Replayed) -> Counted:
    setup, cut, job = way.setup, way.cut, machines.job
    firsts = [members[0] for members in way.members]
    after = [_after_s(machines, way, stage) for stage in range(len(cut))]
    beside_s = max(machines.model(device).profile.step_s for members in way.members for device in members)
    # each position reduces and steps when its own last backward is done; a link is busy with all of its messages
    ends_s = [float(end_s) + sum(tail) for end_s, tail in zip(done.end_s, after, strict=True)]
    message = machines.message_bytes(way)
    link_s = setup.micro_batches * max(
        (machines.occupied_s(one, two, message) for one, two in zip(way.members, way.members[1:], strict=False)),
        default=0.0,
    )
    running_s = max(*ends_s, link_s)
    residue = machines.model(firsts[0]).profile.residue.get(setup.schedule, 0.0) if len(cut) > 1 else 0.0
    step_s = running_s + residue * max(0.0, running_s - max(tail[0] for tail in after)) + beside_s
    computing_s = float(done.busy_s.mean()) + sum(tail[1] for tail in after) / len(cut)
    compute_s = min(computing_s + beside_s, step_s)
    reduced_s = sum(tail[0] for tail in after) / len(cut)
    hops_s = sum(run.onward_s) + sum(run.back_s)
    transfer_s = min(reduced_s + hops_s, step_s - compute_s)
    need = _need_bytes(machines, way)
    free = [min(device.memory_bytes for device in members) for members in way.members]
    used = sum(machines.model(device).rates.flops for members in way.members for device in members)
    figures = {
        "step_s": step_s,
        "mfu": model_flops(machines.spec, job.batch, job.sequence) / (used * step_s),
        "bubble": max(0.0, 1 - compute_s / step_s),
        "comm_bytes": _sent_bytes(machines, way),
        "compute_s": compute_s,
        "transfer_s": transfer_s,
        "wait_s": max(0.0, step_s - compute_s - transfer_s),
        "peak_bytes": float(max(need)),
        "tokens_per_s": job.batch * job.sequence / step_s,
    }
    return Counted(way, figures, need, max(a - b for a, b in zip(need, free, strict=True)))


def _sent_bytes(machines: Machines, way: Way) -> float:
    """What all ranks send: messages onward and back, and the replicas' gradients (with ZeRO also the new weights)."""
    setup, replicas = way.setup, way.setup.split.dp
    messages = 2 * setup.micro_batches * (len(way.cut) - 1) * round(machines.message_bytes(way))
    reduced = 0
    if replicas > 1:
        model = machines.model(way.members[0][0])
        for layers in way.cut:
            gradients = rank_parameters(machines.spec, [layers]).total * model.profile.reduced_bytes
            sent = sent_bytes("all_reduce", gradients, replicas)
            reduced += 2 * round(sent / 2) if setup.zero else round(sent)
    return float(replicas * (messages + reduced))


def _after_s(machines: Machines, way: Way, stage: int) -> tuple[float, float]:
    """Reduction over the replicas and the optimizer of one stage."""
    members, layers = way.members[stage], way.cut[stage]
    sharded = len(members) if way.setup.zero else 1
    optimizer_s = max(machines.optimizer_s(device, layers) for device in members) / sharded
    if len(members) == 1:
        return 0.0, optimizer_s
    model = machines.model(members[0])
    parameters = rank_parameters(machines.spec, [layers]).total
    links = [machines.link(a, b) for a in members for b in members if a is not b]
    slowest = LinkCost(max(one.latency_s for one in links), min(one.bandwidth_bytes_per_s for one in links))
    return all_reduce_s(parameters * model.profile.reduced_bytes, Group(len(members), Channel(slowest))), optimizer_s


def _need_bytes(machines: Machines, way: Way) -> tuple[int, ...]:
    setup = way.setup
    model = machines.model(way.members[0][0])
    kept = model.layer_bytes(alone(setup))
    flying = in_flight(setup.schedule, setup.split.pp, 1, setup.micro_batches)
    found = []
    for layers, held in zip(way.cut, flying, strict=True):
        states = state_bytes(rank_parameters(machines.spec, [layers]), model.recipe, setup.zero, setup.split)
        heads = heads_in_flight(setup.schedule, 1, held, float(setup.micro_batches))
        last = kept.last * heads if layers[1] == machines.spec.layers else 0.0
        found.append(round(states.total_bytes + held * kept.stage(layers) + kept.recomputed + last))
    return tuple(found)


def alone(setup: TrainingSetup) -> TrainingSetup:
    """The setup as one device alone has it: what a layer costs does not depend on the rest."""
    return replace(setup, split=Split(), schedule="1f1b", zero=0)


def sort_of(device: Device) -> tuple[object, ...]:
    """What makes devices equal: all their figures."""
    return device.memory_bytes, tuple(sorted(device.flops.items())), device.memory_bandwidth, device.profile
