"""The simulator's rules once more, as plainly as they can be said: slow, and checked against the fast one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from plait.costs.protocol import SLEEPS_AFTER_S, Costs
from plait.plans.action import Action, Kind, Lane
from plait.plans.layout import Layout
from plait.plans.round import MicroBatch, Round
from plait.plans.rules import (
    Link,
    link,
    meetings,
    message_bytes,
    part_counts,
    partner,
    positions_by_stage,
    waits,
)
from plait.spec.model import ModelSpec

Times = dict[Action, tuple[float, float]]


def reference(layout: Layout, rounds: Sequence[Round], costs: Costs, spec: ModelSpec) -> Times | None:
    """Begin and end of every action, on hosts that nobody shares and with nothing carried in; None for a deadlock."""
    return _Reference(layout, rounds, costs, spec).run()


class _Reference:
    def __init__(self, layout: Layout, rounds: Sequence[Round], costs: Costs, spec: ModelSpec) -> None:
        self.layout, self.costs, self.spec = layout, costs, spec
        self.stages = len(layout.stages)
        self.position_of = positions_by_stage(layout.positions)
        self.work = {one.number: one.work for one in rounds}
        self.waited: dict[Action, list[Action]] = {}
        self.parts: dict[Action, int] = {}
        self.lanes: dict[tuple[int, Lane], list[Action]] = defaultdict(list)
        for one in rounds:
            for position, actions in enumerate(one.actions):
                counts = part_counts(actions)
                for action, indices, count in zip(actions, waits(actions), counts, strict=True):
                    self.waited[action] = [actions[index] for index in indices]
                    self.parts[action] = count
                    self.lanes[position, action.kind.lane].append(action)
        self.times: Times = {}
        self.arrived: dict[Action, float] = {}
        self.sent: dict[Link, int] = defaultdict(int)
        self.taken: dict[Link, list[float]] = defaultdict(list)
        self.free_s: dict[Link, float] = defaultdict(float)
        self.spans: Times = {}
        self.meetings = {action: met for one in rounds for action, met in meetings(one.actions).items()}
        self.ready: dict[Action, float] = {}

    def run(self) -> Times | None:
        heads = dict.fromkeys(self.lanes, 0)
        moved = True
        while moved:
            moved = False
            for name, lane in self.lanes.items():
                at = heads[name]
                if at < len(lane) and self.do(lane[at], self.times[lane[at - 1]][1] if at else 0.0):
                    heads[name] += 1
                    moved = True
        done = all(heads[name] == len(lane) for name, lane in self.lanes.items())
        return {**self.times, **self.spans} if done else None

    def do(self, action: Action, free_s: float) -> bool:
        if any(other not in self.times for other in self.waited[action]):
            return False
        ready_s = max([free_s, *(self.times[other][1] for other in self.waited[action])])
        start_s = ready_s
        if action in self.meetings:
            self.ready[action] = ready_s
            if any(other not in self.ready for other in self.meetings[action]):
                return False
            ready_s = max(self.ready[other] for other in self.meetings[action])
        is_message = action.kind.lane is Lane.P2P
        end_s = self.move(action, ready_s) if is_message else ready_s + self.seconds(action)
        if end_s is None:
            return False
        self.times[action] = start_s, end_s
        return True

    def seconds(self, action: Action) -> float:
        parts = self.parts[action]
        if action.kind.lane is Lane.REDUCE:
            return self.costs.reduce_s(self.layout, action.stage, action.kind, parts)
        stage_wide = action.kind in (Kind.OPTIMIZER, Kind.NORM)
        work = MicroBatch(()) if stage_wide else self.work[action.round][action.micro_batch]
        return self.costs.compute_s(self.layout, action.stage, work, action.kind) / parts

    def move(self, action: Action, ready_s: float) -> float | None:
        name = link(action, self.stages, self.position_of)
        other = partner(action, self.stages)
        cost = self.costs.link(self.layout, *sorted((action.stage, other.stage), reverse=action.stage > other.stage))
        if action.kind.sends:
            freed = self.sent[name] - self.layout.link_capacity
            if freed >= len(self.taken[name]):
                return None
            room_s = max(ready_s, self.taken[name][freed]) if freed >= 0 else ready_s
            work = self.work[action.round][action.micro_batch]
            begin_s = max(room_s, self.free_s[name]) if cost.buffered else room_s
            sent_s = begin_s + cost.occupied_s(message_bytes(action, work, self.layout, self.spec.hidden))
            self.sent[name] += 1
            self.arrived[action] = sent_s + cost.latency_s
            self.free_s[name] = sent_s
            self.spans[action] = ready_s, sent_s
            return room_s if cost.buffered else sent_s
        if other not in self.arrived:
            return None
        waited_s = self.arrived[other] - ready_s
        end_s = max(ready_s, self.arrived[other]) + (cost.wake_s if waited_s > SLEEPS_AFTER_S else 0.0)
        self.taken[name].append(end_s)
        return end_s
