"""Rounds become steps of lanes: rules and costs, looked up once for each shape and not once for each action.

A position's actions are lowered once for all rounds in which they look the same but for the round's number; costs are
asked once for all micro-batches whose rows are as long and begin at the same places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from plait.costs.protocol import Costs
from plait.errors import PlanError
from plait.plans.action import Action, Kind, Lane
from plait.plans.layout import Layout
from plait.plans.notation import format_action
from plait.plans.round import MicroBatch, Round
from plait.plans.rules import Link, link, message_bytes, part_counts, partner, positions_by_stage, waits
from plait.simulator.lanes import Channel, LaneState, Move, Work

_LANES = tuple(Lane)
_COMPUTE, _P2P = _LANES.index(Lane.COMPUTE), _LANES.index(Lane.P2P)
_LANE_OF = {kind.value: _LANES.index(kind.lane) for kind in Kind}
_OTHERS = ((1, 2), (0, 2), (0, 1))
_NEVER = 1 << 62
"""The number of a message that nobody sends."""
_NOBODY = MicroBatch(())

_Key = tuple[int, str, int, int, int | None]


class _Form(NamedTuple):
    """A position's actions of one shape, by lane: where they stand, what they need in each of the other lanes."""

    places: tuple[tuple[int, ...], ...]
    needs: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    parts: tuple[int, ...]


class _Ends(NamedTuple):
    """A message's two ends, but for its micro-batch: who sends it with which letters, and over which channel."""

    channel: Channel
    sends: bool
    stage: int
    letters: str


class Lowering:
    """Turns rounds into steps of lanes. `lanes[position]` (compute, p2p, reduce) and `channels` are what a replay runs.

    Errors: PlanError where an action waits for one that is not there.
    """

    def __init__(self, layout: Layout, costs: Costs, hidden: int) -> None:
        self._layout, self._costs, self._hidden = layout, costs, hidden
        self._stages = len(layout.stages)
        self._position_of = positions_by_stage(layout.positions)
        self.lanes = [_position(index) for index in range(len(layout.positions))]
        self.channels: dict[Link, Channel] = {}
        self._forms: dict[tuple[object, ...], _Form] = {}
        self._shapes: dict[object, int] = {}
        self._works: dict[tuple[int, str, int, int], Work] = {}
        self._moves: dict[tuple[int, str, int], Move] = {}
        self._ends: dict[tuple[int, str], _Ends] = {}
        self._sent: dict[_Key, int] = {}

    def compute_lane(self, stage: int) -> LaneState:
        """The lane that computes the stage."""
        return self.lanes[self._position_of[stage]][_COMPUTE]

    def carry_in(self, send: Action) -> None:
        """`send` was done before the rounds began: its message is there from the start."""
        ends = self._message_ends(send)
        self._number(send, ends)
        ends.channel.arrives_s.append(0.0)

    def add(self, one: Round) -> None:
        """Append a round's actions to the lanes."""
        shapes = [self._shape(micro_batch) for micro_batch in one.work]
        for lanes, actions in zip(self.lanes, one.actions, strict=True):
            form = self._formed(actions, one.number)
            bases = [len(lane.actions) for lane in lanes]
            for index, lane in enumerate(lanes):
                places = form.places[index]
                if not places:
                    continue
                taken = [actions[place] for place in places]
                lane.actions.extend(taken)
                for column, needed, other in zip(lane.needs, form.needs[index], _OTHERS[index], strict=True):
                    base = bases[other]
                    column.extend([step + base if step >= 0 else -1 for step in needed] if base else needed)
                if index == _P2P:
                    self._add_moves(lane, taken, one, shapes)
                else:
                    lane.works.extend(self._works_of(taken, places, form.parts, one, shapes))

    def finish(self) -> None:
        """Give every receive the number of its message, now that all sends are known."""
        for lanes in self.lanes:
            lane = lanes[_P2P]
            ends_of, sent = self._ends, self._sent
            for index, (round_, stage, kind, micro_batch, part) in enumerate(lane.actions):
                if not lane.moves[index][1]:
                    ends = ends_of[stage, kind._value_]
                    lane.numbers[index] = sent.get((ends[2], ends[3], micro_batch, round_, part), _NEVER)

    def _works_of(
        self,
        actions: Sequence[Action],
        places: Sequence[int],
        parts: Sequence[int],
        one: Round,
        shapes: Sequence[int],
    ) -> list[Work]:
        known, works = self._works, []
        for action, place in zip(actions, places, strict=True):
            _, stage, kind, micro_batch, _ = action
            letters = kind._value_  # an enum's hash is slow Python
            shape = shapes[micro_batch] if letters not in _OF_STAGE else -1
            work = known.get((stage, letters, shape, parts[place]))
            if work is None:
                work = self._work(stage, kind, one.work[micro_batch] if shape >= 0 else _NOBODY, parts[place])
                known[stage, letters, shape, parts[place]] = work
            works.append(work)
        return works

    def _work(self, stage: int, kind: Kind, micro_batch: MicroBatch, parts: int) -> Work:
        costs, layout = self._costs, self._layout
        if kind.lane is Lane.REDUCE:
            sent_bytes = costs.reduce_bytes(layout, stage, kind, parts)
            return Work(costs.reduce_s(layout, stage, kind, parts), sent_bytes=sent_bytes)
        seconds = costs.compute_s(layout, stage, micro_batch, kind) / parts
        inside = costs.exchange(layout, stage, micro_batch, kind)
        load = costs.load(layout, stage, micro_batch)
        return Work(seconds, load, inside.seconds / parts, inside.sent_bytes // parts)

    def _add_moves(self, lane: LaneState, actions: Sequence[Action], one: Round, shapes: Sequence[int]) -> None:
        known, sent = self._moves, self._sent
        for action in actions:
            round_, stage, kind, micro_batch, part = action
            letters = kind._value_
            # a receive's size is the send's: it has no work of its own, and may be of an earlier round
            shape = shapes[micro_batch] if letters in _SENDS else -1
            move = known.get((stage, letters, shape))
            if move is None:
                move = known[stage, letters, shape] = self._move(action, one)
            lane.moves.append(move)
            if move[1]:
                channel = move[0]
                sent[stage, letters, micro_batch, round_, part] = channel.messages
                lane.numbers.append(channel.messages)
                channel.messages += 1
            else:
                lane.numbers.append(_NEVER)

    def _move(self, action: Action, one: Round) -> Move:
        ends = self._message_ends(action)
        if not ends.sends:
            return Move(ends.channel, False, 0.0, 0)
        size = message_bytes(action, one.work[action.micro_batch], self._layout, self._hidden)
        return Move(ends.channel, True, ends.channel.cost.occupied_s(size), size)

    def _message_ends(self, action: Action) -> _Ends:
        key = (action.stage, action.kind._value_)
        if key not in self._ends:
            other = partner(action, self._stages)
            sender, receiver = (action, other) if action.kind.sends else (other, action)
            name = link(action, self._stages, self._position_of)
            if name not in self.channels:
                cost = self._costs.link(self._layout, sender.stage, receiver.stage)
                self.channels[name] = Channel(name, cost)
            ends = _Ends(self.channels[name], action.kind.sends, sender.stage, sender.kind._value_)
            self._ends[key] = ends
        return self._ends[key]

    def _number(self, send: Action, ends: _Ends) -> None:
        self._sent[send.stage, ends.letters, send.micro_batch, send.round, send.part] = ends.channel.messages
        ends.channel.messages += 1

    def _shape(self, micro_batch: MicroBatch) -> int:
        shape = tuple([row[2:] for row in micro_batch.rows])
        return self._shapes.setdefault(shape, len(self._shapes))

    def _formed(self, actions: tuple[Action, ...], number: int) -> _Form:
        shape = tuple([(round_ - number, stage, kind._value_, mb, part) for round_, stage, kind, mb, part in actions])
        form = self._forms.get(shape)
        if form is None:
            form = self._forms[shape] = _form(actions)
        return form


_OF_STAGE = frozenset((Kind.OPTIMIZER.value, Kind.REDUCE_GRADIENTS.value, Kind.GATHER_PARAMETERS.value))
_SENDS = frozenset(kind.value for kind in Kind if kind.sends)


def _position(index: int) -> tuple[LaneState, ...]:
    lanes = tuple(LaneState(index) for _ in _LANES)
    for lane, others in zip(lanes, _OTHERS, strict=True):
        lane.others = tuple(lanes[other] for other in others)
    return lanes


def _form(actions: Sequence[Action]) -> _Form:
    places: tuple[list[int], ...] = tuple([] for _ in _LANES)
    lane_of, index_of = [], []
    for place, action in enumerate(actions):
        lane = _LANE_OF[action[2]._value_]
        lane_of.append(lane)
        index_of.append(len(places[lane]))
        places[lane].append(place)
    needs: tuple[list[list[int]], ...] = tuple([[-1] * len(of_lane) for _ in _LANES] for of_lane in places)
    for place, found in enumerate(waits(actions)):
        for other in found:
            if other < 0:
                raise PlanError(f"{format_action(actions[place])} waits for an action that is not there")
            column = needs[lane_of[place]][lane_of[other]]
            step = index_of[place]
            column[step] = max(column[step], index_of[other])
    return _Form(
        tuple(map(tuple, places)),
        tuple(
            (tuple(of_lane[first]), tuple(of_lane[second]))
            for of_lane, (first, second) in zip(needs, _OTHERS, strict=True)
        ),
        part_counts(actions),
    )
