"""A step's seconds, bytes and messages from the order of its computations, as the simulator would find them.

The simulator replays lanes action by action; here the order alone is replayed (`schedules.clock`), for hundreds of ways
at once. What follows a stage's last backward is then the simulator's own arithmetic: reductions bucket by bucket beside
what is still computed, the optimizer, ZeRO's gathering. Memory and bytes are the simulator's, to the byte; seconds lack
what messages wait for each other on a busy link.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plait.costs.protocol import Held
from plait.costs.reductions import StageTail
from plait.costs.topology import stage_link
from plait.costs.training import TrainingModel
from plait.planner.cut import Cut
from plait.plans.action import Kind
from plait.plans.split import TrainingSetup
from plait.schedules.clock import Run, Ticks
from plait.schedules.order import KINDS, B, F, I, Order, W
from plait.schedules.training import SPLIT_BACKWARD, compute_order
from plait.spec.tensors import has_experts

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Step:
    """`ends_s`: until all is done, without residue and what a step takes beside its actions. `computing_s`: of a
    position, the mean; `peak_bytes`: of each position; `sent_bytes`: of all ranks."""

    ends_s: float
    computing_s: float
    peak_bytes: tuple[int, ...]
    sent_bytes: float


class StageFigures:
    """What each stage of one setup and cut takes and keeps; equal stages are asked for once."""

    def __init__(self, model: TrainingModel, setup: TrainingSetup, cut: Cut) -> None:
        self.model, self.setup, self.cut = model, setup, cut
        known: dict[tuple[object, ...], tuple[StageTail, int, Held]] = {}
        layers_kept = model.layer_bytes(setup)
        self.tails: list[StageTail] = []
        self.static: list[int] = []
        self.held: list[Held] = []
        for stage, layers in enumerate(cut):
            key = self._key(layers)
            if key not in known:
                tail = model.stage_tail(setup, cut, stage)
                left = layers_kept.held(layers, split=setup.schedule in SPLIT_BACKWARD)
                known[key] = tail, model.stage_state_bytes(setup, cut, stage), left
            tail, static, held = known[key]
            self.tails.append(tail)
            self.static.append(static)
            self.held.append(held)
        self.back_working = layers_kept.working_bytes(Kind.BACKWARD)
        self.times = [model.times(setup).stage(layers) for layers in cut]

    def _key(self, layers: tuple[int, int]) -> tuple[object, ...]:
        spec = self.model.spec
        kinds: dict[tuple[bool, int | None], int] = {}
        for layer in range(*layers):
            kind = has_experts(spec, layer), spec.windows[layer]
            kinds[kind] = kinds.get(kind, 0) + 1
        return layers[0] == 0, layers[1] == spec.layers, tuple(sorted(kinds.items(), key=str))

    @property
    def run(self) -> Run:
        """The order with its seconds, every message over the link that it crosses."""
        setup, split = self.setup, self.setup.split
        order = compute_order(setup.schedule, split.pp, setup.virtual, setup.micro_batches)
        place = {stage: position for position, held in enumerate(order.placement) for stage in held}
        ways = [(place[stage], place[stage + 1]) for stage in range(len(self.cut) - 1)]
        known = {way: self._hop_s(*way) for way in {*ways, *((to, source) for source, to in ways)}}
        onward, back = [known[way] for way in ways], [known[to, source] for source, to in ways]
        forward, halves, weights = zip(*(one[:3] for one in self.times), strict=True)
        return Run(order, forward, halves, weights, onward, back)

    def _hop_s(self, source: int, to: int) -> float:
        """Seconds until a message is there, as `TrainingCosts.link` has it."""
        if source == to:
            return 0.0
        model, setup = self.model, self.setup
        link = stage_link(model.fabric, setup.split, source, to).link
        parts = setup.split.tp if model.profile.parted else 1
        sending_s = model.message_bytes(setup) / (link.bandwidth_bytes_per_s * parts)
        return link.latency_s + model.gathered_s(setup) + sending_s


def buckets(model: TrainingModel) -> int:
    """Parts of the last backward: of n all reductions but the last can be hidden, as the simulator has it."""
    return round(1 / (1 - min(model.profile.hidden_reduction, 0.9)))


def step_of(figures: StageFigures, order: Order, ticks: Ticks) -> Step:
    """The step whose computations begin as `ticks` says."""
    setup, stages = figures.setup, range(len(figures.cut))
    exchanges_s = sum(one.forward_exchange_s + one.input_exchange_s for one in figures.times)
    computed_s = float(ticks.seconds.sum()) - setup.micro_batches * exchanges_s
    computed_s += sum(figures.tails[stage].optimizer_s for stage in stages)
    return Step(
        _ends_s(figures, order, ticks),
        computed_s / order.positions,
        peak_bytes(figures, order),
        _sent_bytes(figures),
    )


def _ends_s(figures: StageFigures, order: Order, ticks: Ticks) -> float:
    """When the last lane of the last position is done."""
    columns, parts = order.columns, buckets(figures.model)
    rows = np.flatnonzero((columns.kinds == B) | (columns.kinds == W))
    last = np.zeros(order.stages, np.int64)
    np.maximum.at(last, columns.stages[rows], rows)
    ended = (ticks.begin_s + ticks.seconds)[last].tolist()
    took = ticks.seconds[last].tolist()
    split, latest_s = figures.setup.split, 0.0
    reduced = split.dp * split.ep * split.cp > 1
    for position, held in enumerate(order.placement):
        rest = slice(int(order.bounds[position]), int(order.bounds[position + 1]))
        computed_s = float((ticks.begin_s[rest] + ticks.seconds[rest]).max())
        done = sorted(held, key=lambda stage: int(last[stage]))
        reduce_s = 0.0
        ready = {}
        for stage in done:
            tail = figures.tails[stage]
            for part in range(parts if reduced else 0):
                there_s = ended[stage] - took[stage] * (parts - 1 - part) / parts
                reduce_s = max(reduce_s, there_s) + tail.reduce_s / parts
            ready[stage] = reduce_s
        for stage in done:
            tail = figures.tails[stage]
            computed_s = max(computed_s, ready[stage]) + tail.optimizer_s
            if reduced and figures.setup.zero:
                reduce_s = max(reduce_s, computed_s) + tail.gather_s
        latest_s = max(latest_s, computed_s, reduce_s)
    return latest_s


def peak_bytes(figures: StageFigures, order: Order) -> tuple[int, ...]:
    """The most that lies on a device of each position at any time: what each action takes and gives, in order."""
    begin = np.zeros((len(KINDS), order.stages), dtype=np.int64)
    net = np.zeros_like(begin)
    for stage, held in enumerate(figures.held):
        begin[F, stage] = held.total_bytes
        begin[[B, I], stage] = figures.back_working
        net[F, stage], net[B, stage] = held.total_bytes, -held.total_bytes
        net[I, stage], net[W, stage] = -held.until_input_bytes, -held.until_weight_bytes
    code = order.columns.kinds, order.columns.stages
    # every position gives back all it takes, so that the sum over all is the sum over its own
    before = np.cumsum(net[code]) - net[code]
    most = np.maximum.reduceat(before + begin[code], order.bounds[:-1])
    return tuple(
        int(peak) + sum(figures.static[stage] for stage in held)
        for peak, held in zip(np.maximum(most, 0), order.placement, strict=True)
    )


def _sent_bytes(figures: StageFigures) -> float:
    """What all ranks send: exchanges inside stages, reductions, gathering, and messages between positions."""
    model, setup = figures.model, figures.setup
    split, parts, count = setup.split, buckets(model), setup.micro_batches
    width = split.ranks // split.pp
    sent = 0
    for times, tail in zip(figures.times, figures.tails, strict=True):
        if width > 1:
            sent += count * (round(times.forward_sent_bytes) + round(times.input_sent_bytes))
        if split.dp * split.ep * split.cp > 1:
            sent += round(tail.reduced_bytes) // parts * parts
            sent += round(tail.gathered_bytes) if setup.zero else 0
    hops = len(figures.cut) - 1 if split.pp > 1 else 0
    if setup.schedule in ("zb-v", "dualpipe-v"):
        hops -= 1  # where the way turns both stages are on one position
    return width * (sent + 2 * hops * count * round(model.message_bytes(setup)))
