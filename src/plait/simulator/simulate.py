"""Reader 1: a plan's rounds and costs become the predicted timeline.

Every time is the maximum of the times that it waits for, plus a duration, so lanes go on in any order and reach the
same times. Only computations that share a host need one clock (module `sharing`).

Links: a send begins when it is first in its lane and its message exists, waits while k messages lie unreceived on its
link, then keeps lane and link for bytes ÷ bandwidth; the message is there `latency_s` later. A receive ends when it is
first in its lane and its message is there.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter

from plait.costs.protocol import SLEEPS_AFTER_S, Costs, Running
from plait.errors import PlanError
from plait.plans.action import Action, Kind
from plait.plans.layout import Layout
from plait.plans.notation import format_action
from plait.plans.round import Round
from plait.plans.rules import link, partner
from plait.simulator.lanes import Channel, Key, LaneState, Lowering, Step, message_key
from plait.simulator.sharing import Host, SharedHosts
from plait.spec.model import ModelSpec
from plait.timeline.compare import TRANSFER, WAIT
from plait.timeline.span import Part, Span
from plait.timeline.timeline import Timeline


def simulate(layout: Layout, rounds: Sequence[Round], costs: Costs, spec: ModelSpec) -> Timeline:
    """The predicted timeline of consecutive rounds, from second 0. Errors: PlanError where they get stuck.

    Ranks of one stage do the same at the same time.
    """
    hosts = {rank: stage.host for stage in layout.stages for rank in stage.ranks}
    with _no_collection():
        lowering = Lowering(layout, costs, spec.hidden)
        for one in rounds:
            lowering.add(one)
        replay = _Replay(layout, costs, lowering)
        if rounds:
            replay.begin_with(rounds[0])
        replay.run()
        return Timeline("predicted", tuple(sorted(replay.spans, key=attrgetter("start_s"))), hosts)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Millions of tuples that live on make the cyclic garbage collector take half of the time, for nothing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Replay:
    """The state of one simulation."""

    def __init__(self, layout: Layout, costs: Costs, lowering: Lowering) -> None:
        self._layout, self._costs, self._lowering = layout, costs, lowering
        self._capacity, self._epoch = layout.link_capacity, layout.epoch
        self._ranks = [stage.ranks for stage in layout.stages]
        self._arrives_s: dict[Key, float] = {}
        self._awaited: dict[Key, LaneState] = {}
        self._speeds: dict[tuple[Running, ...], tuple[float, ...]] = {}
        self._hosts = self._shared_hosts()
        self._shared = SharedHosts()
        self._woken: list[LaneState] = []
        self.spans: list[Span] = []

    def begin_with(self, first: Round) -> None:
        """Messages that were sent before these rounds began are there from the start."""
        stages = len(self._layout.stages)
        for carried in first.carried_in:
            send = Action(carried.round, stages - 1, Kind.SEND_TOKENS, carried.micro_batch)
            self._arrives_s[message_key(send)] = 0.0
            self._lowering.channel(link(send, stages)).sent += 1

    def run(self) -> None:
        """Replay all lanes to their ends."""
        self._woken = [lane for lanes in self._lowering.lanes for lane in lanes]
        ended: tuple[int, float, float] | None = None
        while True:
            while self._woken:
                self._advance(self._woken.pop())
            ended = self._shared.next_end()
            if ended is None:
                break
            lane = self._lowering.compute_lane(ended[0])
            lane.shares = False
            self._end(lane, lane.steps[lane.at], ended[1], ended[2])
            self._woken.append(lane)
        self._require_done()

    def _shared_hosts(self) -> list[Host | None]:
        """Per stage its host, where other stages compute on it too."""
        counts = Counter(stage.host for stage in self._layout.stages)
        hosts = {name: Host(self._speeds_of) for name, count in counts.items() if count > 1}
        return [hosts.get(stage.host) for stage in self._layout.stages]

    def _speeds_of(self, running: tuple[Running, ...]) -> tuple[float, ...]:
        known = self._speeds.get(running)
        if known is None:
            known = self._speeds[running] = tuple(self._costs.speeds(self._layout, running))
        return known

    def _advance(self, lane: LaneState) -> None:
        """Do the lane's steps until one cannot begin yet, or shares its host."""
        steps = lane.steps
        while lane.at < len(steps) and not lane.shares:
            step = steps[lane.at]
            ready_s = lane.free_s
            for other, index in step.needs:
                if len(other.ends_s) <= index:
                    return
                ready_s = max(ready_s, other.ends_s[index])
            begun = (self._compute, self._send, self._receive)[step.role](lane, step, ready_s)
            if not begun:
                return

    def _compute(self, lane: LaneState, step: Step, ready_s: float) -> bool:
        host = self._hosts[lane.position]
        if host is None:
            self._end(lane, step, ready_s, ready_s + step.seconds)
            return True
        lane.shares = True
        self._shared.arrive(host, ready_s, Running(lane.position, step.load), step.seconds)
        return False

    def _send(self, lane: LaneState, step: Step, ready_s: float) -> bool:
        channel = step.channel
        assert channel is not None
        assert step.key is not None
        freed = channel.sent - self._capacity
        if freed >= len(channel.taken_s):
            channel.sender = lane
            return False
        room_s = ready_s if freed < 0 else max(ready_s, channel.taken_s[freed])
        channel.sent += 1
        end_s = room_s + step.seconds
        self._arrives_s[step.key] = end_s + channel.cost.latency_s
        parts = (Part(WAIT, ready_s, room_s), Part(TRANSFER, room_s, end_s)) if room_s > ready_s else ()
        self._end(lane, step, ready_s, end_s, parts)
        receiver = self._awaited.pop(step.key, None)
        if receiver is not None:
            self._woken.append(receiver)
        return True

    def _receive(self, lane: LaneState, step: Step, ready_s: float) -> bool:
        channel = step.channel
        assert channel is not None
        assert step.key is not None
        arrives_s = self._arrives_s.pop(step.key, None)
        if arrives_s is None:
            self._awaited[step.key] = lane
            return False
        end_s = max(ready_s, arrives_s)
        if arrives_s - ready_s > SLEEPS_AFTER_S:
            end_s += channel.cost.wake_s
        channel.taken_s.append(end_s)
        self._end(lane, step, ready_s, end_s, (Part(WAIT, ready_s, end_s),))
        if channel.sender is not None:
            self._woken.append(channel.sender)
            channel.sender = None
        return True

    def _end(self, lane: LaneState, step: Step, start_s: float, end_s: float, parts: tuple[Part, ...] = ()) -> None:
        lane.at += 1
        lane.free_s = end_s
        lane.ends_s.append(end_s)
        for rank in self._ranks[lane.position]:
            self.spans.append(Span(self._epoch, step.action, rank, start_s, end_s, step.payload_bytes, parts))
        self._woken.extend(lane.others)

    def _require_done(self) -> None:
        stuck = [lane for lanes in self._lowering.lanes for lane in lanes if lane.at < len(lane.steps)]
        if stuck:
            raise PlanError("deadlock: " + "; ".join(self._why(lane.steps[lane.at]) for lane in stuck))

    def _why(self, step: Step) -> str:
        name = format_action(step.action)
        for other, index in step.needs:
            if len(other.ends_s) <= index:
                return f"{name} waits for {format_action(other.steps[index].action)}"
        if step.role == 2:
            return f"{name} waits for {format_action(partner(step.action, len(self._layout.stages)))}"
        assert step.channel is not None
        return f"{name} waits for {_room(step.channel, self._capacity)}"


def _room(channel: Channel, capacity: int) -> str:
    return f"room on link {channel.name.source}→{channel.name.to}, which holds {capacity} unreceived"
