"""What rounds ask of each lane, in the order of the plan: rules and costs, looked up once per action.

A lane does its actions in order, so that its ends never decrease: to wait for several actions of a lane is to wait
for the last of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from plait.costs.protocol import Costs, LinkCost, Load
from plait.errors import PlanError
from plait.plans.action import Action, Lane
from plait.plans.layout import Layout
from plait.plans.notation import format_action
from plait.plans.round import MicroBatch, Round
from plait.plans.rules import Link, link, message_bytes, partner, waits

_LANES = tuple(Lane)

Key = tuple[int, str, int, int, int | None]
"""A message: its sender's stage, kind, micro-batch, round and part."""


@dataclass(slots=True)
class Channel:
    """A directed link while it is simulated. `taken_s[i]` is when its i-th receive ended."""

    name: Link
    cost: LinkCost
    sent: int = 0
    taken_s: list[float] = field(default_factory=list)
    sender: LaneState | None = None


@dataclass(slots=True)
class LaneState:
    """A lane of one position: its steps, and when those that are done ended. `at` is the first that is not done.

    `shares`: that step runs on a shared host, its end is not known yet.
    """

    position: int
    steps: list[Step] = field(default_factory=list)
    ends_s: list[float] = field(default_factory=list)
    at: int = 0
    free_s: float = 0.0
    shares: bool = False
    others: list[LaneState] = field(default_factory=list)


class Step(NamedTuple):
    """One action of a lane. `role`: 0 computes, 1 sends, 2 receives. `needs`: (lane, index) of the other lanes' steps.

    `seconds`: of a computation alone, of a send on its link; 0 for a receive.
    """

    action: Action
    role: int
    needs: tuple[tuple[LaneState, int], ...]
    seconds: float
    key: Key | None
    channel: Channel | None
    payload_bytes: int
    load: Load


class _Form(NamedTuple):
    """What an action of a position is, but for its round: made once for all rounds of the same shape."""

    lane: int
    role: int
    needs: tuple[tuple[int, int], ...]
    link: Link | None
    sender: Action | None


def message_key(sender: Action) -> Key:
    """The key of the message that `sender` sends."""
    return (sender.stage, sender.kind.value, sender.micro_batch, sender.round, sender.part)


class Lowering:
    """Turns rounds into steps of lanes. `lanes[position]` and `channels` are what a replay runs."""

    def __init__(self, layout: Layout, costs: Costs, hidden: int) -> None:
        self._layout, self._costs, self._hidden = layout, costs, hidden
        self._stages = len(layout.stages)
        self.lanes = [[LaneState(stage) for _ in _LANES] for stage in range(self._stages)]
        for own in self.lanes:
            for lane in own:
                lane.others = [other for other in own if other is not lane]
        self.channels: dict[Link, Channel] = {}
        self._forms: dict[tuple[object, ...], tuple[_Form, ...]] = {}
        self._computes: dict[tuple[int, MicroBatch], tuple[float, Load]] = {}
        self._sizes: dict[tuple[int, str, MicroBatch], int] = {}

    def compute_lane(self, position: int) -> LaneState:
        """The lane in which the position computes."""
        return self.lanes[position][_LANES.index(Lane.COMPUTE)]

    def channel(self, name: Link) -> Channel:
        """The link's state."""
        if name not in self.channels:
            self.channels[name] = Channel(name, self._costs.link(self._layout, name.source, name.to))
        return self.channels[name]

    def add(self, one: Round) -> None:
        """Append a round's actions to the lanes."""
        for position, actions in enumerate(one.actions):
            lanes = self.lanes[position]
            base = [len(lane.steps) for lane in lanes]
            for action, form in zip(actions, self._formed(actions, one.number), strict=True):
                needs = tuple([(lanes[lane], base[lane] + index) for lane, index in form.needs])
                lanes[form.lane].steps.append(self._step(action, form, needs, one))

    def _step(self, action: Action, form: _Form, needs: tuple[tuple[LaneState, int], ...], one: Round) -> Step:
        if form.role == 0:
            seconds, load = self._compute(action.stage, one.work[action.micro_batch])
            return Step(action, 0, needs, seconds, None, None, 0, load)
        assert form.link is not None
        assert form.sender is not None
        channel = self.channels.get(form.link) or self.channel(form.link)
        stage, letters, micro_batch, _, part = message_key(form.sender)
        key = (stage, letters, micro_batch, action.round, part)
        if form.role == 2:
            return Step(action, 2, needs, 0.0, key, channel, 0, 0)
        size = self._message_bytes(action, letters, one.work[micro_batch])
        return Step(action, 1, needs, channel.cost.occupied_s(size), key, channel, size, 0)

    def _compute(self, stage: int, micro_batch: MicroBatch) -> tuple[float, Load]:
        known = self._computes.get((stage, micro_batch))
        if known is None:
            known = (
                self._costs.compute_s(self._layout, stage, micro_batch),
                self._costs.load(self._layout, stage, micro_batch),
            )
            self._computes[stage, micro_batch] = known
        return known

    def _message_bytes(self, action: Action, letters: str, micro_batch: MicroBatch) -> int:
        size = self._sizes.get((action.stage, letters, micro_batch))
        if size is None:
            size = message_bytes(action, micro_batch, self._layout, self._hidden)
            self._sizes[action.stage, letters, micro_batch] = size
        return size

    def _formed(self, actions: tuple[Action, ...], number: int) -> tuple[_Form, ...]:
        # Enum's hash is slow Python: hash the letters
        shape = tuple([(a.round - number, a.stage, a.kind._value_, a.micro_batch, a.part) for a in actions])
        forms = self._forms.get(shape)
        if forms is None:
            forms = tuple(_forms(actions, self._stages))
            self._forms[shape] = forms
        return forms


def _forms(actions: Sequence[Action], stages: int) -> list[_Form]:
    lane_of = [_LANES.index(action.kind.lane) for action in actions]
    index_of = [lane_of[:i].count(lane_of[i]) for i in range(len(actions))]
    forms = []
    for action, lane, waited in zip(actions, lane_of, waits(actions), strict=True):
        if -1 in waited:
            raise PlanError(f"{format_action(action)} waits for an action that is not there")
        last: dict[int, int] = {}
        for i in waited:
            last[lane_of[i]] = max(last.get(lane_of[i], 0), index_of[i])
        needs = tuple(sorted(last.items()))
        if action.kind.lane is Lane.COMPUTE:
            forms.append(_Form(lane, 0, needs, None, None))
        elif action.kind.sends:
            forms.append(_Form(lane, 1, needs, link(action, stages), action))
        else:
            forms.append(_Form(lane, 2, needs, link(action, stages), partner(action, stages)))
    return forms
