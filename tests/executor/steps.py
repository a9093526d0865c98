"""Training steps of stages made of integers: what each action gets and makes is known, so that nothing can be mixed up.

A stage's forward and backward fold its number, the micro-batch and what it got into a number. The gradient of its
weights is a vector, each micro-batch adding to it, and each part of a cut backward adding to its own run of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import pairwise

import torch

from plait.executor.reduction import Op, Reduction
from plait.executor.step_executor import StepExecutor
from plait.executor.virtual import TransferTime, VirtualMessages, VirtualWorld
from plait.plans.action import Action, Kind, Lane
from plait.plans.layout import Layout, Stage
from plait.plans.round import MicroBatch, Round
from plait.plans.rules import part_counts, waits
from plait.plans.split import Split, TrainingSetup
from plait.schedules.step import make_training_round, sequences
from plait.schedules.training import V_SHAPED, compute_order
from plait.timeline.timeline import Timeline
from plait.tracer.tracer import Tracer, merge

PRIME = 2**31 - 1


def fold(*numbers: int) -> int:
    total = 17
    for number in numbers:
        total = (total * 31 + number) % PRIME
    return total


@dataclass(frozen=True)
class Case:
    """A mesh and its step; ranks dp outermost, then pp, then tp."""

    schedule: str
    positions: int
    micro_batches: int
    virtual: int = 1
    dp: int = 1
    tp: int = 1
    capacity: int = 2
    buckets: int = 1
    zero: int = 0
    tied: bool = False
    norm: bool = False
    items: int = 7
    dtype: torch.dtype = torch.float64

    @cached_property
    def layout(self) -> Layout:
        placement = compute_order(self.schedule, self.positions, self.held, 1).placement
        position_of = {stage: position for position, held in enumerate(placement) for stage in held}
        stages = tuple(Stage((s, s + 1), self.ranks_of(position_of[s])) for s in range(len(position_of)))
        return Layout({"dp": self.dp, "pp": self.positions, "tp": self.tp}, stages, self.capacity)

    @property
    def held(self) -> int:
        return 2 if self.schedule in V_SHAPED else self.virtual

    def ranks_of(self, position: int) -> tuple[int, ...]:
        return tuple((d * self.positions + position) * self.tp + t for d in range(self.dp) for t in range(self.tp))

    @property
    def setup(self) -> TrainingSetup:
        split = Split(dp=self.dp, pp=self.positions, tp=self.tp)
        return TrainingSetup(split, self.schedule, 1, self.micro_batches, self.held, zero=self.zero)

    def round(self, number: int = 0) -> Round:
        work: tuple[MicroBatch, ...] = sequences(self.micro_batches, 1, 8)
        layout = self.layout
        return make_training_round(number, layout, self.setup, work, self.buckets, tied=self.tied, norm=self.norm)


class Expected:
    """What one replica's stages make of a micro-batch, computed in one go."""

    def __init__(self, stages: int, replica: int, step: int, micro_batch: int) -> None:
        value = fold(replica, step, micro_batch)
        self.inputs, self.gradients = [], [0] * stages
        for stage in range(stages):
            self.inputs.append(value)
            value = fold(stage, micro_batch, value)
        self.output = value
        gradient = fold(value)
        for stage in reversed(range(stages)):
            self.gradients[stage] = gradient
            gradient = fold(stage, micro_batch, gradient, self.inputs[stage])


@cache
def expected(stages: int, replica: int, step: int, micro_batch: int) -> Expected:
    return Expected(stages, replica, step, micro_batch)


def weight_gradient(stage: int, items: int, made: Expected) -> torch.Tensor:
    """Float64 [items] with all kinds of sizes, so that the order of adding shows."""
    seed = fold(stage, made.gradients[stage], made.inputs[stage])
    numbers = [fold(seed, item) for item in range(items)]
    return torch.tensor([(n / PRIME - 0.5) * 10.0 ** (n % 9 - 4) for n in numbers], dtype=torch.float64)


@dataclass
class FoldingWorker:
    """The stages of one rank's position. `pause(action)` is called inside every computation."""

    case: Case
    rank: int
    pause: Callable[[Action], None] = lambda action: None
    log: list[Action] = field(default_factory=list)

    def __post_init__(self) -> None:
        layout = self.case.layout
        self.layout, self.stages = layout, len(layout.stages)
        self.held = [index for index, stage in enumerate(layout.stages) if self.rank in stage.ranks]
        self.place = layout.stages[self.held[0]].ranks.index(self.rank)
        self.replica = self.place // self.case.tp
        self.inputs: dict[tuple[int, int], int] = {}
        self.to_weigh: dict[tuple[int, int], tuple[int, int]] = {}
        self.parts: dict[tuple[int, int, str], int] = {}
        self.flat = {s: torch.zeros(self.case.items, dtype=self.case.dtype) for s in self.held}
        self.tied = {s: torch.zeros(3, dtype=self.case.dtype) for s in self.held if s in (0, self.stages - 1)}
        self.weights = {s: torch.zeros(self.case.items, dtype=self.case.dtype) for s in self.held}
        self.updated = {s: torch.zeros(self.case.items, dtype=self.case.dtype) for s in self.held}
        self.outputs: dict[int, int] = {}
        self.first_gradients: dict[int, int] = {}
        self.step = -1
        self.normed = False
        self.reductions: list[Action] = []
        self.counts: dict[Action, int] = {}

    def begin(self, one: Round) -> None:
        if one.number == self.step:
            return
        self.step, self.normed = one.number, False
        for tensor in (*self.flat.values(), *self.tied.values()):
            tensor.zero_()
        position = self.layout.positions.index(tuple(self.held))
        self.counts = dict(zip(one.actions[position], part_counts(one.actions[position]), strict=True))

    def forward(self, one: Round, action: Action, message: torch.Tensor | None) -> torch.Tensor | None:
        self.begin(one)
        self.log.append(action)
        _, stage, _, micro_batch, _ = action
        assert (message is None) == (stage == 0)
        value = fold(self.replica, one.number, micro_batch) if message is None else int(message)
        assert (stage, micro_batch) not in self.inputs
        self.inputs[stage, micro_batch] = value
        self.pause(action)
        output = fold(stage, micro_batch, value)
        if stage == self.stages - 1:
            self.outputs[micro_batch] = output
            return None
        return torch.tensor(output)

    def backward(self, one: Round, action: Action, message: torch.Tensor | None) -> torch.Tensor | None:
        self.log.append(action)
        _, stage, kind, micro_batch, part = action
        is_last_stage = stage == self.stages - 1
        assert (message is None) == (is_last_stage or bool(part))
        key = (stage, micro_batch)
        if not part:
            gradient = fold(self.outputs[micro_batch]) if message is None else int(message)
            self.to_weigh[key] = (gradient, self.inputs.pop(key))
        self.pause(action)
        gradient, value = self.to_weigh[key]
        if kind is Kind.BACKWARD:
            self.accumulate(action)
        count = self.counts[action]
        if part is not None and part < count - 1:
            return None
        made = fold(stage, micro_batch, gradient, value)
        if stage == 0:
            self.first_gradients[micro_batch] = made
            return None
        return torch.tensor(made)

    def weigh(self, one: Round, action: Action) -> None:
        self.log.append(action)
        self.pause(action)
        self.accumulate(action)

    def accumulate(self, action: Action) -> None:
        """Add to the gradients of the weights: all, or the part's run of them."""
        _, stage, kind, micro_batch, part = action
        count = self.counts[action]
        seen = self.parts.setdefault((stage, micro_batch, kind.value), 0)
        assert seen == (part or 0)
        self.parts[stage, micro_batch, kind.value] += 1
        gradient, value = self.to_weigh[stage, micro_batch]
        made = expected(self.stages, self.replica, self.step, micro_batch)
        assert (gradient, value) == (made.gradients[stage], made.inputs[stage])
        first, end = bounds_of(self.case.items, count)[(part or 0) : (part or 0) + 2]
        self.flat[stage][first:end] += weight_gradient(stage, self.case.items, made)[first:end]
        if stage in self.tied and (part or 0) == count - 1:
            self.tied[stage] += weight_gradient(stage, 3, made)
        if (part or 0) == count - 1:
            del self.to_weigh[stage, micro_batch], self.parts[stage, micro_batch, kind.value]

    def reduction(self, one: Round, action: Action) -> Reduction | None:
        self.reductions.append(action)
        stage, part = action.stage, action.part
        ranks = tuple(sorted(self.layout.stages[stage].ranks[self.place % self.case.tp :: self.case.tp]))
        if action.kind is Kind.REDUCE_TIED:
            both = [
                self.layout.stages[s].ranks[self.place % self.case.tp :: self.case.tp] for s in (0, self.stages - 1)
            ]
            ranks = tuple(sorted({*both[0], *both[1]}))
            if len(self.tied) == 2:
                if not self.is_second_tied(action):
                    return None
                self.tied[0] += self.tied[self.stages - 1]
                return Reduction(Op.ALL_REDUCE, ranks, self.tied[0], uneven(3, len(ranks)))
            return Reduction(Op.ALL_REDUCE, ranks, self.tied[stage], uneven(3, len(ranks)))
        if action.kind is Kind.GATHER_PARAMETERS:
            return Reduction(Op.ALL_GATHER, ranks, self.weights[stage], uneven(self.case.items, len(ranks)))
        first, end = 0, self.case.items
        if part is not None:
            first, end = bounds_of(self.case.items, self.counts[action])[part : part + 2]
        bounds = uneven(self.case.items, len(ranks))
        op = Op.REDUCE_SCATTER if self.case.zero else Op.ALL_REDUCE
        clipped = tuple(min(max(at, first), end) - first for at in bounds)
        return Reduction(op, ranks, self.flat[stage][first:end], clipped)

    def is_second_tied(self, action: Action) -> bool:
        """Whether both ends of the model stand here, and this is the one of their two T that does the sum."""
        begun = sum(a.kind is Kind.REDUCE_TIED and a.round == action.round for a in self.reductions)
        return len(self.tied) == 2 and begun == 2

    def reduced(self, one: Round, action: Action) -> None:
        self.log.append(action)
        if action.kind is Kind.REDUCE_TIED and self.is_second_tied(action):
            self.tied[self.stages - 1].copy_(self.tied[0])

    def norm(self, one: Round, action: Action) -> None:
        self.log.append(action)
        assert not self.to_weigh
        assert not self.inputs
        self.pause(action)
        self.normed = True

    def update(self, one: Round, action: Action) -> None:
        self.log.append(action)
        assert self.normed == self.case.norm
        bounds = uneven(self.case.items, self.case.dp)
        own = slice(*bounds[self.replica : self.replica + 2]) if self.case.zero else slice(None)
        self.weights[action.stage][own] += self.flat[action.stage][own]
        self.pause(action)

    def exchanged(self) -> tuple[int, Sequence[tuple[float, float]]]:
        return 0, ()

    def require_right(self) -> None:
        """After a step: all that was made is what one process makes."""
        case = self.case
        made = [expected(self.stages, self.replica, self.step, m) for m in range(case.micro_batches)]
        if self.stages - 1 in self.held:
            assert self.outputs == {m: one.output for m, one in enumerate(made)}
        if 0 in self.held:
            wanted = {m: fold(0, m, one.gradients[0], one.inputs[0]) for m, one in enumerate(made)}
            assert self.first_gradients == wanted
        assert not self.inputs
        assert not self.to_weigh
        assert not self.parts
        for stage in self.held:
            own = slice(None)
            if case.zero and case.dp > 1:
                own = slice(*uneven(case.items, case.dp)[self.replica : self.replica + 2])
            total = summed(case, stage, self.step)
            assert torch.equal(self.flat[stage][own], total[own])
            self.updated[stage] += total
            assert torch.equal(self.weights[stage], self.updated[stage])
            if case.tied and stage in self.tied:
                assert torch.equal(self.tied[stage], tied_sum(case, self.step))


def summed(case: Case, stage: int, step: int) -> torch.Tensor:
    """A stage's gradient over all replicas, each added up in the order of its micro-batches, then in rank order."""
    return in_order([accumulated(case, stage, replica, step, case.items) for replica in range(case.dp)])


def tied_sum(case: Case, step: int) -> torch.Tensor:
    """The gradient of what the first and the last stage share, over both and all replicas, in rank order."""
    layout = case.layout
    last = len(layout.stages) - 1
    of_rank: dict[int, torch.Tensor] = {}
    for stage in (0, last):
        for replica, rank in enumerate(layout.stages[stage].ranks[:: case.tp]):
            one = accumulated(case, stage, replica, step, 3)
            of_rank[rank] = of_rank[rank] + one if rank in of_rank else one
    return in_order([of_rank[rank] for rank in sorted(of_rank)])


def accumulated(case: Case, stage: int, replica: int, step: int, items: int) -> torch.Tensor:
    """What one replica's stage adds up over its micro-batches."""
    total = torch.zeros(items, dtype=case.dtype)
    for micro_batch in weighed_order(case, stage):
        total += weight_gradient(stage, items, expected(len(case.layout.stages), replica, step, micro_batch))
    return total


def in_order(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def weighed_order(case: Case, stage: int) -> Iterator[int]:
    """The micro-batches in the order in which a stage adds their gradients."""
    for actions in compute_order(case.schedule, case.positions, case.held, case.micro_batches).actions():
        for action in actions:
            if action.stage == stage and action.kind in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT):
                yield action.micro_batch


def bounds_of(items: int, parts: int) -> list[int]:
    """As even as it divides."""
    return [items * index // parts for index in range(parts + 1)]


def uneven(items: int, ranks: int) -> tuple[int, ...]:
    """Pieces of very different sizes, the first empty."""
    if ranks == 1:
        return (0, items)
    return (0, *(items * (index**2) // (ranks - 1) ** 2 for index in range(ranks)))


def piece_sizes(bounds: Sequence[int]) -> list[int]:
    return [end - first for first, end in pairwise(bounds)]


@dataclass
class VirtualSteps:
    """Steps of a case on a virtual clock: the real executor, and computations that take `seconds(rank, action)`."""

    case: Case
    seconds: Callable[[int, Action], float] = lambda rank, action: 0.0
    transfer: TransferTime = lambda source, to, size: (0.0, 0.0)
    rounds: list[Round] = field(default_factory=list)

    def __post_init__(self) -> None:
        layout = self.layout = self.case.layout
        self.world = VirtualWorld(layout.ranks, layout.link_capacity, self.transfer)
        self.messages = [VirtualMessages(self.world, rank) for rank in range(layout.ranks)]
        self.tracers = [Tracer(rank) for rank in range(layout.ranks)]
        self.workers = [FoldingWorker(self.case, rank, self.pause(rank)) for rank in range(layout.ranks)]
        self.executors = [
            StepExecutor(layout, rank, self.messages[rank], self.workers[rank], self.tracers[rank], self.clock)
            for rank in range(layout.ranks)
        ]

    def clock(self) -> float:
        return self.world.now

    def pause(self, rank: int) -> Callable[[Action], None]:
        return lambda action: self.world.sleep(rank, self.seconds(rank, action))

    def run(self, *rounds: Round) -> Timeline:
        """Run the rounds, one step of the case where there are none, and require that all is right after each."""
        self.rounds = list(rounds or (self.case.round(),))

        def body(rank: int) -> None:
            for one in self.rounds:
                self.executors[rank].run(one)
                self.workers[rank].require_right()

        self.world.run([lambda rank=rank: body(rank) for rank in range(self.layout.ranks)])  # type: ignore[misc]
        return merge(self.tracers)

    def require_planned(self, timeline: Timeline) -> None:
        """Every rank did all actions of its position, in the order of each lane, none before what it waits for."""
        ends = {(span.rank, span.action): span.end_s for span in timeline.spans}
        starts = {(span.rank, span.action): span.start_s for span in timeline.spans}
        for one in self.rounds:
            for actions, held in zip(one.actions, self.layout.positions, strict=True):
                for rank in self.layout.stages[held[0]].ranks:
                    did = [event[0] for event in self.tracers[rank].events if event[0].round == one.number]
                    for lane in Lane:
                        of_lane = [action for action in actions if action.kind.lane is lane]
                        assert [action for action in did if action.kind.lane is lane] == of_lane
                    for action, waited in zip(actions, waits(actions), strict=True):
                        assert all(ends[rank, actions[i]] <= starts[rank, action] + 1e-9 for i in waited), action
