"""A generation on a virtual clock: the real executor, batcher and round source; compute is a wait of known length.

Ranks of a tensor group meet at the end of every forward: none goes on before the last has come. While one waits for the
others its queued messages move, as `comm.Endpoint.idle` promises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from plait.executor.executor import Executor
from plait.executor.virtual import VirtualMessages, VirtualWorld
from plait.plans.action import Action
from plait.plans.layout import Layout, Stage
from plait.plans.plan import Plan
from plait.plans.round import Round
from plait.schedules.batching import Batcher
from plait.schedules.rounds import RoundSource
from plait.timeline.timeline import Timeline
from plait.tracer.tracer import Tracer, merge


def make_plan(
    stages: int, schedule: str, micro_batches: int, chunk: int = 64, capacity: int = 2, slots: int = 8, tp: int = 1
) -> Plan:
    groups = [tuple(range(stage * tp, stage * tp + tp)) for stage in range(stages)]
    axes = {"pp": stages} if tp == 1 else {"pp": stages, "tp": tp}
    layout = Layout(axes, tuple(Stage((i, i + 1), ranks) for i, ranks in enumerate(groups)), capacity)
    return Plan("none", layout, schedule, micro_batches, chunk, 4096, slots)


@dataclass
class VirtualRun:
    """Runs `prompts` through `plan`; each rank of stage s computes `seconds(s, round, micro-batch)` virtual seconds."""

    plan: Plan
    prompts: list[int]
    max_tokens: int
    seconds: Callable[[int, Round, int], float] = lambda stage, one, micro_batch: 1.0
    latency_s: float = 0.0
    ends_early: Callable[[int, int], bool] = lambda request, count: False
    rounds: list[Round] = field(default_factory=list)
    tokens: dict[int, int] = field(default_factory=dict)
    recorded: dict[int, list[Action]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        plan, layout, size = self.plan, self.plan.layout, self.plan.layout.ranks
        self.batcher = Batcher(plan.slots, plan.context, plan.chunk, plan.micro_batches)
        for request, length in enumerate(self.prompts):
            self.batcher.add(request, length, self.max_tokens)
        self.world = VirtualWorld(size, layout.link_capacity, lambda source, to, size: (0.0, self.latency_s))
        self.mail: list[list[tuple[Round, int] | Action | None]] = [[] for _ in range(size)]
        self.tracers = [Tracer(rank) for rank in range(size)]
        self.messages = [VirtualMessages(self.world, rank) for rank in range(size)]
        meetings = [_Meeting(self, stage.ranks) for stage in layout.stages]
        self.executors = [
            Executor(
                layout,
                rank,
                self.messages[rank],
                _Worker(self, layout.stage_of(rank), rank, meetings[layout.stage_of(rank)]),
                self.tracers[rank],
                lambda: self.world.now,
            )
            for rank in range(size)
        ]

    def run(self) -> Timeline:
        bodies = [self._lead, *(lambda rank=rank: self._follow(rank) for rank in range(1, len(self.executors)))]
        self.world.run(bodies)
        self.recorded = {tracer.rank: [event[0] for event in tracer.events] for tracer in self.tracers}
        return merge(self.tracers)

    def _lead(self) -> None:
        source = RoundSource(self.plan, self.batcher)
        while (made := source.next(self._receive)) is not None:
            one, front = made
            self.rounds.append(one)
            self._post(made, range(1, len(self.executors)))
            self.executors[0].run(one, front)
        self._post(None, range(1, len(self.executors)))
        self.executors[0].drain()

    def _receive(self, action: Action) -> None:
        self._post(action, self.plan.layout.tensor_group(0, 0)[1:])
        self.executors[0].receive(action)

    def _post(self, one: tuple[Round, int] | Action | None, ranks: Sequence[int]) -> None:
        for rank in ranks:
            self.mail[rank].append(one)
            self.world.at(self.world.now, rank)

    def _follow(self, rank: int) -> None:
        executor, mail = self.executors[rank], self.mail[rank]
        while True:
            (one,) = executor.wait(lambda: (mail.pop(0),) if mail else None, "a round", 0)
            if one is None:
                break
            if isinstance(one, Action):
                executor.receive(one)
            else:
                executor.run(one[0], one[1] if rank in self.plan.layout.stages[0].ranks else 0)
        executor.drain()

    def came(self, number: int, micro_batch: int) -> None:
        for row in self.rounds[number].work[micro_batch].rows:
            if row.samples and self.batcher.in_flight(row.request):
                count = self.tokens[row.request] = self.tokens.get(row.request, 0) + 1
                self.batcher.received(row.request, ends=self.ends_early(row.request, count))


class _Meeting:
    """Where the ranks of a tensor group wait for each other."""

    def __init__(self, run: VirtualRun, ranks: tuple[int, ...]) -> None:
        self.run, self.ranks = run, ranks
        self.came = dict.fromkeys(ranks, 0)

    def exchange(self, rank: int) -> tuple[float, float]:
        """Return when all have called it as often: when this one did, and when the last one did."""
        world, messages = self.run.world, self.run.messages[rank]
        self.came[rank] += 1
        number, began = self.came[rank], world.now
        for other in self.ranks:
            world.at(world.now, other)

        def all_came() -> bool | None:
            assert messages.idle is not None
            messages.idle()
            return min(self.came.values()) >= number or None

        messages.wait(all_came, "the others of the group")
        return began, world.now


class _Worker:
    def __init__(self, run: VirtualRun, stage: int, rank: int, meeting: _Meeting) -> None:
        self.run, self.stage, self.rank, self.meeting = run, stage, rank, meeting
        self.exchanges: list[tuple[float, float]] = []

    def forward(self, one: Round, micro_batch: int, message: torch.Tensor | None) -> torch.Tensor:
        assert (message is None) == (self.stage == 0)
        self.run.world.sleep(self.rank, self.run.seconds(self.stage, one, micro_batch))
        if len(self.meeting.ranks) > 1:
            self.exchanges.append(self.meeting.exchange(self.rank))
        stages = len(self.run.plan.layout.stages)
        if self.stage == stages - 1:
            if stages == 1 and self.rank == 0:
                self.run.came(one.number, micro_batch)
            return torch.zeros(one.work[micro_batch].sampled, dtype=torch.int64)
        return torch.zeros(one.work[micro_batch].tokens, 1)

    def tokens(self, action: Action, tokens: torch.Tensor) -> None:
        if self.rank == 0:
            self.run.came(action.round, action.micro_batch)

    def exchanged(self) -> tuple[int, list[tuple[float, float]]]:
        taken, self.exchanges = self.exchanges, []
        return 8 * len(taken), taken
