"""The replay: every lane goes on as far as it can, until all are done.

Every time is the maximum of the times that it waits for, plus a duration, so lanes go on in any order and reach the
same times. Only computations that share a host need one clock (module `sharing`).
"""

from __future__ import annotations

from collections.abc import Callable

from plait.costs.protocol import SLEEPS_AFTER_S, Costs, Running
from plait.errors import PlanError
from plait.plans.layout import Layout
from plait.plans.notation import format_action
from plait.plans.rules import partner
from plait.simulator.lanes import Channel, LaneState
from plait.simulator.lowering import Lowering
from plait.simulator.sharing import Host, SharedHosts


class Replay:
    """The state of one simulation. After `run` the lanes know when each of their steps began and ended."""

    def __init__(self, layout: Layout, costs: Costs, lowering: Lowering) -> None:
        self._layout, self._costs, self._lowering = layout, costs, lowering
        self._capacity = layout.link_capacity
        self._speeds: dict[tuple[Running, ...], tuple[float, ...]] = {}
        self._hosts = self._shared_hosts()
        self._shared = SharedHosts()
        self._woken: list[LaneState] = []

    def run(self) -> None:
        """Replay all lanes to their ends. Errors: PlanError where they get stuck."""
        woken = self._woken = [lane for lanes in self._lowering.lanes for lane in lanes]
        advance = {id(lane): self._advance(lane) for lane in woken}
        while True:
            while woken:
                lane = woken.pop()
                advance[id(lane)](lane)
            ended = self._shared.next_end()
            if ended is None:
                break
            stage, start_s, end_s = ended
            lane = self._lowering.compute_lane(stage)
            lane.shares = False
            met = lane.meets.get(len(lane.ends_s))
            lane.starts_s.append(start_s if met is None else met.ready_s[lane.actions[len(lane.ends_s)]])
            lane.ends_s.append(end_s)
            woken.append(lane)
            if lane.waiting:
                self._wake(lane)
        self._require_done()

    def _advance(self, lane: LaneState) -> Callable[[LaneState], None]:
        """How the lane goes on."""
        if lane.moves:
            return self._move
        computes = lane is self._lowering.lanes[lane.position][0]
        return self._share if computes and self._hosts[lane.position] is not None else self._work

    def _shared_hosts(self) -> list[Host | None]:
        """Per position its host, where other positions compute on it too."""
        hosts = {name: Host(self._speeds_of) for name in self._lowering.shared}
        return [hosts.get(self._layout.stages[stages[0]].host) for stages in self._layout.positions]

    def _speeds_of(self, running: tuple[Running, ...]) -> tuple[float, ...]:
        known = self._speeds.get(running)
        if known is None:
            known = self._speeds[running] = tuple(self._costs.speeds(self._layout, running))
        return known

    def _met(self, lane: LaneState, at: int, ready_s: float) -> float | None:
        """When all are there that step `at` meets; until then the lane waits for the last of them."""
        meeting = lane.meets[at]
        met_s = meeting.arrive(lane.actions[at], ready_s)
        if met_s is None:
            meeting.waiting.append(lane)
            return None
        self._woken += meeting.waiting
        meeting.waiting.clear()
        lane.met_s[at] = met_s
        return met_s

    def _wake(self, lane: LaneState) -> None:
        """Let those go on that wait for a step that is now done."""
        done = len(lane.ends_s)
        left = []
        for needed, waiter in lane.waiting:
            if needed < done:
                self._woken.append(waiter)
            else:
                left.append((needed, waiter))
        lane.waiting = left

    def _work(self, lane: LaneState) -> None:
        """Do the steps of a compute or reduce lane until one must wait."""
        starts_s, ends_s, works = lane.starts_s, lane.ends_s, lane.works
        first, second = lane.others
        first_s, second_s = first.ends_s, second.ends_s
        first_done, second_done = len(first_s), len(second_s)
        of_first, of_second = lane.needs
        meets = lane.meets
        begun = at = len(ends_s)
        now_s = ends_s[-1] if at else 0.0
        for at in range(begun, len(works)):
            if of_first and (needed := of_first[at]) >= 0:
                if needed >= first_done:
                    first.waiting.append((needed, lane))
                    break
                if first_s[needed] > now_s:
                    now_s = first_s[needed]
            if of_second and (needed := of_second[at]) >= 0:
                if needed >= second_done:
                    second.waiting.append((needed, lane))
                    break
                if second_s[needed] > now_s:
                    now_s = second_s[needed]
            if meets and at in meets:
                met_s = self._met(lane, at, now_s)
                if met_s is None:
                    break
                starts_s.append(now_s)
                now_s = met_s
            else:
                starts_s.append(now_s)
            now_s += works[at][0]
            ends_s.append(now_s)
        if lane.waiting and len(ends_s) > begun:
            self._wake(lane)

    def _share(self, lane: LaneState) -> None:
        """Begin the next step on a shared host, if it waits for nothing."""
        at = len(lane.ends_s)
        if lane.shares or at == len(lane.works):
            return
        ready_s = lane.ends_s[-1] if at else 0.0
        for other, needs in zip(lane.others, lane.needs, strict=True):
            if needs and (needed := needs[at]) >= 0:
                if needed >= len(other.ends_s):
                    other.waiting.append((needed, lane))
                    return
                if other.ends_s[needed] > ready_s:
                    ready_s = other.ends_s[needed]
        if at in lane.meets:
            met_s = self._met(lane, at, ready_s)
            if met_s is None:
                return
            ready_s = met_s
        lane.shares = True
        work = lane.works[at]
        host = self._hosts[lane.position]
        assert host is not None
        self._shared.arrive(host, ready_s, Running(lane.actions[at].stage, work.load), work.seconds)

    def _move(self, lane: LaneState) -> None:
        """Do the steps of a p2p lane until one must wait for a step, a message or room."""
        starts_s, moved_s, ends_s = lane.starts_s, lane.moved_s, lane.ends_s
        moves, numbers, capacity = lane.moves, lane.numbers, self._capacity
        first, second = lane.others
        first_s, second_s = first.ends_s, second.ends_s
        of_first, of_second = lane.needs
        begun = len(ends_s)
        end_s = ends_s[-1] if begun else 0.0
        for at in range(begun, len(moves)):
            ready_s = end_s
            if of_first and (needed := of_first[at]) >= 0:
                if needed >= len(first_s):
                    first.waiting.append((needed, lane))
                    break
                if first_s[needed] > ready_s:
                    ready_s = first_s[needed]
            if of_second and (needed := of_second[at]) >= 0:
                if needed >= len(second_s):
                    second.waiting.append((needed, lane))
                    break
                if second_s[needed] > ready_s:
                    ready_s = second_s[needed]
            channel, sends, seconds, _, _ = moves[at]
            number = numbers[at]
            if sends:
                moment_s = ready_s
                if number >= capacity:
                    taken_s = channel.taken_s
                    if number - capacity >= len(taken_s):
                        channel.sender = lane
                        break
                    if taken_s[number - capacity] > ready_s:
                        moment_s = taken_s[number - capacity]
                if channel.cost.buffered:
                    end_s = moment_s
                    if channel.free_s > moment_s:
                        moment_s = channel.free_s
                    sent_s = channel.free_s = lane.sent_s[at] = moment_s + seconds
                else:
                    sent_s = end_s = moment_s + seconds
                channel.arrives_s.append(sent_s + channel.cost.latency_s)
                if channel.receiver is not None and channel.wanted <= number:
                    self._woken.append(channel.receiver)
                    channel.receiver = None
            else:
                arrivals_s = channel.arrives_s
                if number >= len(arrivals_s):
                    channel.receiver, channel.wanted = lane, number
                    break
                moment_s = arrivals_s[number]
                end_s = moment_s if moment_s > ready_s else ready_s
                if moment_s - ready_s > SLEEPS_AFTER_S:
                    end_s += channel.cost.wake_s
                channel.taken_s.append(end_s)
                if channel.sender is not None:
                    self._woken.append(channel.sender)
                    channel.sender = None
            starts_s.append(ready_s)
            moved_s.append(moment_s)
            ends_s.append(end_s)
        if lane.waiting and len(ends_s) > begun:
            self._wake(lane)

    def _require_done(self) -> None:
        stuck = [lane for lanes in self._lowering.lanes for lane in lanes if not lane.is_done]
        if stuck:
            raise PlanError("deadlock: " + "; ".join(map(self._why, stuck)))

    def _why(self, lane: LaneState) -> str:
        at = len(lane.ends_s)
        name = format_action(lane.actions[at])
        for other, needs in zip(lane.others, lane.needs, strict=True):
            if needs and needs[at] >= len(other.ends_s):
                return f"{name} waits for {format_action(other.actions[needs[at]])}"
        if at in lane.meets and (missing := lane.meets[at].missing) is not None:
            return f"{name} waits for {format_action(missing)}"
        move = lane.moves[at]
        if move.sends:
            return f"{name} waits for {_room(move.channel, self._capacity)}"
        return f"{name} waits for {format_action(partner(lane.actions[at], len(self._layout.stages)))}"


def _room(channel: Channel, capacity: int) -> str:
    return f"room on link {channel.name.source}→{channel.name.to}, which holds {capacity} unreceived"
