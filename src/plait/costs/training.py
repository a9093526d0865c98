"""The time of a training step: layers through a profile, the schedule's closed form, messages, reductions, a residue.

`estimate` is what a search over tens of thousands of setups calls; `costs` gives the same seconds, action by action, to
the simulator. What depends only on the split within a stage is computed once (`layer_times`), and so is what depends on
the cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from plait.costs.collectives import all_gather_s
from plait.costs.layer_times import Groups, Inside, LayerTimes, Times
from plait.costs.profiles import Profile, profile_for, rates
from plait.costs.reductions import Reductions, Repeated, StageTail
from plait.costs.states import RankParameters, Recipe, rank_parameters, recipe_for, state_bytes
from plait.costs.topology import Fabric, group_on, lay, stage_link
from plait.costs.training_costs import TrainingCosts
from plait.costs.training_memory import LayerBytes, position_bytes
from plait.costs.work import model_flops
from plait.plans.split import Split, TrainingSetup
from plait.schedules.closed import step_s as closed_step_s
from plait.schedules.training import V_SHAPED
from plait.spec.cluster import EqualMachine, Network, Wire
from plait.spec.job import TrainingJob
from plait.spec.model import ModelSpec
from plait.spec.tensors import stage_tensors

Cut = tuple[tuple[int, int], ...]
"""Layers [first, end) of each stage, virtual ones counted singly."""

Machine = EqualMachine
"""Equal devices on equal hosts."""


class StageTimes(NamedTuple):
    """Seconds of one stage for one micro-batch, exchanges and recomputing included; B takes I and W together."""

    forward_s: float
    input_s: float
    weight_s: float

    @property
    def total_s(self) -> float:
        """All three."""
        return self.forward_s + self.input_s + self.weight_s


class StepEstimate(NamedTuple):
    """A step by the closed form. `compute_s`, `transfer_s`, `wait_s` are of the busiest position and add up, with
    `residue_s`, to `step_s`.

    `transfer_s`: what exchanges inside stages, messages between them and reductions take that nothing hides. `bubble`:
    wait ÷ step. `comm_bytes`: what a device sends. `peak_bytes`: of each position's devices.
    """

    step_s: float
    compute_s: float
    transfer_s: float
    wait_s: float
    residue_s: float
    bubble: float
    mfu: float
    comm_bytes: float
    peak_bytes: tuple[int, ...]


class _Body(NamedTuple):
    """What the cut decides: sums over all stages, and of the position that takes longest."""

    mean: StageTimes
    longest_s: float
    exchange_s: float
    sent_bytes: float


class TrainingModel:
    """Seconds and bytes of training one model with one job on equal devices. Pure: setups in, figures out.

    `profile`: by default the device's. Errors: SpecError where the device has no FLOP/s for the job's dtype.
    """

    def __init__(self, spec: ModelSpec, job: TrainingJob, machine: Machine, profile: Profile | None = None) -> None:
        self.spec, self.job, self.machine = spec, job, machine
        self.profile = profile or profile_for(machine.device)
        self.rates = rates(machine.device, self.profile, job.dtype)
        self.item_bytes = 4 if job.dtype == "float32" else 2
        self.recipe: Recipe = recipe_for(job.dtype)
        self.fabric = Fabric(machine.devices_per_host, _reached(machine.network, self.profile))
        self.reductions = Reductions(self.fabric, self.rates, self.item_bytes)
        self._model_flops = model_flops(spec, job.batch, job.sequence)
        self._times: dict[tuple[Inside, Split], LayerTimes] = {}
        self._bytes: dict[Inside, LayerBytes] = {}
        self._bodies: dict[tuple[int, int, Cut], _Body] = {}
        self._tails: dict[tuple[Split, int, bool, Cut], StageTail] = {}
        self._parameters: dict[tuple[int, int, int, Cut, bool], tuple[RankParameters, ...]] = {}
        self._tensors: dict[tuple[tuple[int, int], ...], int] = {}
        self._hand_overs: dict[tuple[Split, int, bool], float] = {}

    @property
    def note(self) -> str:
        """How far the figures are calibrated."""
        devices = self.machine.devices_per_host * self.machine.hosts
        return self.profile.note(self.spec.hidden, devices, _beyond(self.spec, self.job))

    # one stage

    def times(self, setup: TrainingSetup) -> LayerTimes:
        """The seconds of all layers for a setup."""
        key = Inside.of(setup), _exchanging(setup.split)
        found = self._times.get(key)
        if found is None:
            groups = self._groups(setup.split)
            found = LayerTimes(self.spec, self.job.sequence, self.rates, groups, key[0], self.item_bytes)
            self._times[key] = found
        return found

    def layer_bytes(self, setup: TrainingSetup) -> LayerBytes:
        """The bytes that all layers keep for a setup."""
        inside = Inside.of(setup)
        found = self._bytes.get(inside)
        if found is None:
            found = self._bytes[inside] = LayerBytes(self.spec, self.times(setup).work, inside.recompute)
        return found

    def stage_times(self, setup: TrainingSetup, cut: Cut) -> tuple[StageTimes, ...]:
        """Seconds of every stage for one micro-batch."""
        times = self.times(setup)
        return tuple(StageTimes(*times.stage(layers)[:3]) for layers in cut)

    # between and after stages

    def hand_over_s(self, setup: TrainingSetup) -> float:
        """Seconds until a micro-batch's activations are at the next position, over the link that they really cross.

        Where messages go in parts each rank of a tensor group sends its part, and the group gathers them (Narayanan et
        al. 2021, section 4.1); with sequence split nothing needs to be gathered.
        """
        split = setup.split
        key = split, setup.micro_batch, setup.sequence_split
        found = self._hand_overs.get(key)
        if found is None:
            found = self._hand_overs[key] = self._hand_over_s(setup) if split.pp > 1 else 0.0
        return found

    def _hand_over_s(self, setup: TrainingSetup) -> float:
        split, channel = setup.split, stage_link(self.fabric, setup.split, 0, 1)
        if split.pp > 2:  # the slowest of all hops
            hops = [stage_link(self.fabric, split, source, source + 1) for source in range(min(split.pp, 64) - 1)]
            channel = max(hops, key=lambda hop: hop.message_s(1e6))
        parts = split.tp if self.profile.parted else 1
        return channel.message_s(self.message_bytes(setup) / parts) + self.gathered_s(setup)

    def gathered_s(self, setup: TrainingSetup) -> float:
        """Seconds in which a tensor group gathers a message that came in parts."""
        if not self.profile.parted or setup.split.tp == 1 or setup.sequence_split:
            return 0.0
        return all_gather_s(self.message_bytes(setup), self._groups(setup.split).tensor)

    def message_bytes(self, setup: TrainingSetup) -> float:
        """Bytes of a micro-batch's activations between two stages."""
        tokens = setup.micro_batch * self.job.sequence / setup.split.cp
        return tokens * self.spec.hidden * self.item_bytes

    def tail_s(self, setup: TrainingSetup, cut: Cut) -> float:
        """Seconds after the last backward: what is left of the reductions, the optimizer, ZeRO's gathering."""
        return self._tail(setup, cut).total_s

    def stage_tail(self, setup: TrainingSetup, cut: Cut, stage: int) -> StageTail:
        """What follows the last backward of one stage, with its whole reduction and a tied embedding's exchange.

        Without replicas there is no reduction in a round: the exchange then counts with the optimizer.
        """
        split, layers = setup.split, cut[stage]
        tail = self.reductions.tail(setup, self.own_parameters(setup, cut, stage), self.count((layers,)))
        tied_s = tied_bytes = 0.0
        if layers[0] == 0 or layers[1] == self.spec.layers:
            tied_s, tied_bytes = self._tied(setup, 0 if layers[0] == 0 else split.pp - 1)
        if split.dp * split.ep * split.cp == 1:
            return tail._replace(optimizer_s=tail.optimizer_s + tied_s)
        return tail._replace(reduce_s=tail.reduce_s + tied_s, reduced_bytes=tail.reduced_bytes + tied_bytes)

    def stage_state_bytes(self, setup: TrainingSetup, cut: Cut, stage: int) -> int:
        """Weights, gradients and optimizer states of one stage on a device."""
        parameters = self.own_parameters(setup, cut, stage)
        return round(state_bytes(parameters, self.recipe, setup.zero, setup.split).total_bytes)

    def own_parameters(self, setup: TrainingSetup, cut: Cut, stage: int) -> RankParameters:
        """What a stage adds to those before it on its position, where a tied embedding may lie already."""
        held = next((stages for stages in positions(setup) if stage in stages), (stage,))
        before = [cut[each] for each in held[: held.index(stage)]]
        split = setup.split
        own = rank_parameters(self.spec, [*before, cut[stage]], split.tp, split.ep)
        if not before:
            return own
        less = rank_parameters(self.spec, before, split.tp, split.ep)
        return RankParameters(*(one - two for one, two in zip(own, less, strict=True)))

    # whole steps

    def memory(self, setup: TrainingSetup, cut: Cut) -> tuple[int, ...]:
        """Bytes that a device of each position needs: states, and activations in flight by schedule."""
        parameters = self._rank_parameters(setup, cut)
        return position_bytes(setup, cut, self.layer_bytes(setup), parameters, self.recipe)

    def estimate(self, setup: TrainingSetup, cut: Cut) -> StepEstimate:
        """The closed form. Stages that take unequally long: the longest position's time for every micro-batch."""
        split, count = setup.split, setup.micro_batches
        body, tail = self._body(setup, cut), self._tail(setup, cut)
        mean = body.mean
        equal_s = closed_step_s(setup.schedule, split.pp, setup.virtual, count, *mean)
        exposed = exposed_messages(setup.schedule, split.pp, setup.virtual, count)
        messages_s = self.hand_over_s(setup) * exposed
        busy_s = count * body.longest_s
        running_s = _running_s(setup, equal_s, busy_s, count * setup.virtual * mean.total_s)
        residue_s = self.profile.residue.get(setup.schedule, 0.0) * (running_s + messages_s) if split.pp > 1 else 0.0
        repeated = self._repeated(setup, cut)
        step_s = running_s + messages_s + residue_s + repeated.seconds + tail.total_s + self.profile.step_s
        inside_s = count * body.exchange_s
        flops = self._model_flops / (self.rates.flops * split.ranks)
        wait_s = running_s - busy_s
        return StepEstimate(
            step_s,
            busy_s - inside_s + tail.optimizer_s + self.profile.step_s,
            inside_s + messages_s + repeated.seconds + tail.reduce_s + tail.gather_s,
            wait_s,
            residue_s,
            wait_s / step_s,
            flops / step_s,
            count * body.sent_bytes + tail.sent_bytes + repeated.sent_bytes + self._message_sent(setup),
            self.memory(setup, cut),
        )

    def costs(self, setup: TrainingSetup, cut: Cut) -> TrainingCosts:
        """The same seconds and bytes, action by action, for the simulator. The residue is not in them."""
        return TrainingCosts(self, setup, cut)

    # helpers

    def _body(self, setup: TrainingSetup, cut: Cut) -> _Body:
        times = self.times(setup)
        key = id(times), setup.split.pp if setup.schedule not in V_SHAPED else -setup.split.pp, cut
        found = self._bodies.get(key)
        if found is None:
            found = self._bodies[key] = _body(times, setup, cut)
        return found

    def _tail(self, setup: TrainingSetup, cut: Cut) -> StageTail:
        key = setup.split, setup.zero, setup.schedule in V_SHAPED, cut
        found = self._tails.get(key)
        if found is None:
            parts = self._rank_parameters(setup, cut)
            tails = [self._position_tail(setup, cut, position, parameters) for position, parameters in _distinct(parts)]
            found = self._tails[key] = max(tails, key=lambda tail: tail.total_s)
        return found

    def _repeated(self, setup: TrainingSetup, cut: Cut) -> Repeated:
        """What ZeRO-2 and 3 add to every micro-batch on the fullest position."""
        if setup.zero < 2:
            return Repeated()
        return max(self.reductions.repeated(setup, parameters) for parameters in self._rank_parameters(setup, cut))

    def _position_tail(self, setup: TrainingSetup, cut: Cut, position: int, parameters: RankParameters) -> StageTail:
        """A position's, with the part of its reduction alone that nothing hides."""
        tail = self.reductions.tail(setup, parameters, self.count(_ranges(setup, cut)[position]))
        tied_s, tied_bytes = self._tied(setup, position)
        exposed_s = (1 - self.profile.hidden_reduction) * tail.reduce_s
        return tail._replace(reduce_s=exposed_s + tied_s, reduced_bytes=tail.reduced_bytes + tied_bytes)

    def _tied(self, setup: TrainingSetup, position: int) -> tuple[float, float]:
        """A tied embedding's gradient is summed over the first and the last position."""
        split = setup.split
        if not self.spec.tied or split.pp == 1 or setup.schedule in V_SHAPED or position not in (0, split.pp - 1):
            return 0.0, 0.0
        gradient = self.spec.vocab * self.spec.hidden / split.tp * self.profile.reduced_bytes
        channel = stage_link(self.fabric, split, 0, split.pp - 1)
        return channel.message_s(gradient), gradient

    def count(self, ranges: tuple[tuple[int, int], ...]) -> int:
        """Tensors of these ranges of layers."""
        found = self._tensors.get(ranges)
        if found is None:
            found = self._tensors[ranges] = sum(len(stage_tensors(self.spec, *layers)) for layers in ranges)
        return found

    def _groups(self, split: Split) -> Groups:
        places, ranks = lay(split, self.machine.devices_per_host), split.ranks
        return Groups(*(group_on(self.fabric, places[axis], ranks) for axis in ("tp", "ep", "cp")))

    def _rank_parameters(self, setup: TrainingSetup, cut: Cut) -> tuple[RankParameters, ...]:
        split = setup.split
        key = split.tp, split.ep, split.pp, cut, setup.schedule in V_SHAPED
        found = self._parameters.get(key)
        if found is None:
            known: dict[tuple[tuple[int, int], ...], RankParameters] = {}
            counted = []
            for ranges in _ranges(setup, cut):
                if ranges not in known:
                    known[ranges] = rank_parameters(self.spec, ranges, split.tp, split.ep)
                counted.append(known[ranges])
            found = self._parameters[key] = tuple(counted)
        return found

    def _message_sent(self, setup: TrainingSetup) -> float:
        if setup.split.pp == 1:
            return 0.0
        parts = setup.split.tp if self.profile.parted else 1
        return 2 * setup.micro_batches * setup.virtual * self.message_bytes(setup) / parts


def positions(setup: TrainingSetup) -> tuple[tuple[int, ...], ...]:
    """The stages of each position: round by round, or down and up again for the V schedules."""
    count, virtual = setup.split.pp, setup.virtual
    if setup.schedule in V_SHAPED:
        return tuple((position, 2 * count - 1 - position) for position in range(count))
    return tuple(tuple(range(position, count * virtual, count)) for position in range(count))


def _ranges(setup: TrainingSetup, cut: Cut) -> tuple[tuple[tuple[int, int], ...], ...]:
    return tuple(tuple(cut[stage] for stage in stages) for stages in positions(setup))


def _distinct(parts: Sequence[RankParameters]) -> list[tuple[int, RankParameters]]:
    """The first position of each size, and the last position, whose embedding may be tied to the first's."""
    first: dict[RankParameters, int] = {}
    for position, parameters in enumerate(parts):
        first.setdefault(parameters, position)
    return [*((position, parameters) for parameters, position in first.items()), (len(parts) - 1, parts[-1])]


def _body(times: LayerTimes, setup: TrainingSetup, cut: Cut) -> _Body:
    each = [times.stage(layers) for layers in cut]
    total = Times()
    for one in each:
        total = total.plus(one)
    count = len(cut)
    mean = StageTimes(total.forward_s / count, total.input_s / count, total.weight_s / count)
    sums = [[each[stage] for stage in stages] for stages in positions(setup)]
    longest = max(sums, key=lambda held: sum(one.forward_s + one.input_s + one.weight_s for one in held))
    return _Body(
        mean,
        sum(one.forward_s + one.input_s + one.weight_s for one in longest),
        sum(one.forward_exchange_s + one.input_exchange_s for one in longest),
        sum(one.forward_sent_bytes + one.input_sent_bytes for one in longest),
    )


def _running_s(setup: TrainingSetup, equal_s: float, busy_s: float, mean_s: float) -> float:
    """The schedule's seconds where positions are unequal: the longest one's beyond the mean for every micro-batch.

    In DualPipe-V the position with embedding and head is the longest, and has no bubble of its own.
    """
    if setup.schedule == "layerwise":
        return equal_s
    return max(equal_s, busy_s) if setup.schedule == "dualpipe-v" else equal_s + busy_s - mean_s


def exposed_messages(schedule: str, positions: int, virtual: int, micro_batches: int) -> float:
    """Messages that a step of equal stages waits for one after another, where a message takes little beside a stage.

    Counted from the simulator's replays. In 1F1B a forward, its message, the next stage's forward and backward and the
    message back take as long as the stage's own forward and backward, and two messages: so nearly two for every
    micro-batch; elsewhere the ends of the step alone.
    """
    others = positions - 1
    if not others:
        return 0.0
    match schedule:
        case "layerwise":
            return 2.0 * (positions * virtual - 1) * micro_batches
        case "1f1b":
            return 2.0 * others * max(micro_batches, positions) / positions + 2.0 * (positions - 2)
        case "interleaved":
            return 2.0 * (positions * virtual - 1)
        case "zb-h1" | "dualpipe-v":
            return 4.0 * others
        case "zb-h2":
            return float(others)
        case "zb-v":
            return 5.0 * positions - 7
        case _:
            return 2.0 * others


def _exchanging(split: Split) -> Split:
    """What of a split decides where exchanges inside a stage go: dp and pp only where a mesh is less than a host."""
    return split if split.ranks < 8 else Split(tp=split.tp, ep=split.ep, cp=split.cp, dp=8)


def _beyond(spec: ModelSpec, job: TrainingJob) -> tuple[str, ...]:
    """What no profile has been compared with a run of: all published ones are of GPTs with unfused attention."""
    beyond = (
        ("fused attention", job.attention == "fused"),
        ("experts", spec.experts is not None),
        ("latent attention", spec.latent is not None),
        ("gated MLPs", spec.mlp == "gated"),
        (f"computing in {job.dtype}", job.dtype not in ("float16", "bfloat16")),
    )
    return tuple(words for words, there in beyond if there)


def _reached(network: Network, profile: Profile) -> Network:
    """The network at the bandwidths that real exchanges reach."""
    return Network(
        _scaled(network.within_host, profile.within_share), _scaled(network.between_hosts, profile.between_share)
    )


def _scaled(wire: Wire, share: float) -> Wire:
    host = None if wire.host_bandwidth is None else wire.host_bandwidth * share
    return Wire(wire.latency_s, wire.bandwidth * share, host)
