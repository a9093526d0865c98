"""A generation on a virtual clock: the real executor, batcher and round source; compute is a wait of known length."""

from __future__ import annotations

from collections.abc import Callable
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
    stages: int, schedule: str, micro_batches: int, chunk: int = 64, capacity: int = 2, slots: int = 8
) -> Plan:
    layout = Layout({"pp": stages}, tuple(Stage((i, i + 1), (i,)) for i in range(stages)), capacity)
    return Plan("none", layout, schedule, micro_batches, chunk, 4096, slots)


@dataclass
class VirtualRun:
    """Runs `prompts` through `plan`; stage s computes `seconds(s, round, micro-batch)` virtual seconds."""

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
        stages = len(self.plan.layout.stages)
        plan = self.plan
        self.batcher = Batcher(plan.slots, plan.context, plan.chunk, plan.micro_batches)
        for request, length in enumerate(self.prompts):
            self.batcher.add(request, length, self.max_tokens)
        self.world = VirtualWorld(stages, plan.layout.link_capacity, lambda source, to, size: (0.0, self.latency_s))
        self.mail: list[list[Round | None]] = [[] for _ in range(stages)]
        self.tracers = [Tracer(stage) for stage in range(stages)]
        self.executors = [
            Executor(
                plan.layout,
                stage,
                VirtualMessages(self.world, stage),
                _Worker(self, stage),
                self.tracers[stage],
                lambda: self.world.now,
            )
            for stage in range(stages)
        ]

    def run(self) -> Timeline:
        bodies = [self._lead, *(lambda stage=stage: self._follow(stage) for stage in range(1, len(self.executors)))]
        self.world.run(bodies)
        self.recorded = {tracer.rank: [event[0] for event in tracer.events] for tracer in self.tracers}
        return merge(self.tracers)

    def _lead(self) -> None:
        source = RoundSource(self.plan, self.batcher)
        while (made := source.next(self.executors[0].receive)) is not None:
            one, front = made
            self.rounds.append(one)
            self._post(one)
            self.executors[0].run(one, front)
        self._post(None)
        self.executors[0].drain()

    def _post(self, one: Round | None) -> None:
        for stage in range(1, len(self.executors)):
            self.mail[stage].append(one)
            self.world.at(self.world.now, stage)

    def _follow(self, stage: int) -> None:
        executor, mail = self.executors[stage], self.mail[stage]
        while True:
            (one,) = executor.wait(lambda: (mail.pop(0),) if mail else None, "a round", 0)
            if one is None:
                break
            executor.run(one)
        executor.drain()

    def came(self, number: int, micro_batch: int) -> None:
        for row in self.rounds[number].work[micro_batch].rows:
            if row.samples and self.batcher.in_flight(row.request):
                count = self.tokens[row.request] = self.tokens.get(row.request, 0) + 1
                self.batcher.received(row.request, ends=self.ends_early(row.request, count))


class _Worker:
    def __init__(self, run: VirtualRun, stage: int) -> None:
        self.run, self.stage = run, stage

    def forward(self, one: Round, micro_batch: int, message: torch.Tensor | None) -> torch.Tensor:
        assert (message is None) == (self.stage == 0)
        self.run.world.sleep(self.stage, self.run.seconds(self.stage, one, micro_batch))
        stages = len(self.run.executors)
        if self.stage == stages - 1:
            if stages == 1:
                self.run.came(one.number, micro_batch)
            return torch.zeros(one.work[micro_batch].sampled, dtype=torch.int64)
        return torch.zeros(one.work[micro_batch].tokens, 1)

    def tokens(self, action: Action, tokens: torch.Tensor) -> None:
        self.run.came(action.round, action.micro_batch)
