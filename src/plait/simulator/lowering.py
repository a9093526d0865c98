"""Rounds become steps of lanes: rules and costs, looked up once for each shape and not once for each action.

A position's actions are lowered once for all rounds in which they look the same but for the round's number; costs are
asked once for all micro-batches whose rows are as long and begin at the same places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

from plait.costs.protocol import Costs
from plait.errors import PlanError
from plait.plans.action import Action, Kind, Lane
from plait.plans.layout import Layout
from plait.plans.notation import format_action
from plait.plans.round import MicroBatch, Round
from plait.plans.rules import (
    Link,
    link,
    meetings,
    message_bytes,
    part_counts,
    partner,
    positions_by_stage,
    rank_message_bytes,
    waits,
)
from plait.simulator.lanes import Channel, LaneState, Meeting, Move, Work

_LANES = tuple(Lane)
_COMPUTE, _P2P = _LANES.index(Lane.COMPUTE), _LANES.index(Lane.P2P)
_LANE_OF = {kind.value: _LANES.index(kind.lane) for kind in Kind}
_OTHERS = ((1, 2), (0, 2), (0, 1))
_NEVER = 1 << 62
"""The number of a message that nobody sends."""
_NOBODY = MicroBatch(())

_Key = tuple[int, str, int, int, int | None]
"""A message: its sender's stage, letters, micro-batch, round and part."""


class _LaneForm(NamedTuple):
    """One lane of a position's actions of one shape, which are those at `places`.

    `needs`: each one's index in one of the other lanes, for those in which anything is needed: 0 for the first of them.
    `parts`: into how many its action is cut, or None where none is.
    """

    lane: int
    places: list[int]
    needs: list[tuple[int, list[int]]]
    parts: list[int] | None


class _Ends(NamedTuple):
    """A message's two ends, but for its micro-batch: who sends it with which letters, and over which channel."""

    channel: Channel
    sends: bool
    stage: int
    letters: str


class Lowering:
    """Turns rounds into steps of lanes. `lanes[position]` (compute, p2p, reduce) and `channels` are what a replay runs.

    `rounds`: how many there will be. `slices`: each rank of a tensor group sends its rows of the activations, not all.
    `shared`: the hosts on which several positions compute. Errors: PlanError where an action waits for one that is not
    there.
    """

    def __init__(self, layout: Layout, costs: Costs, hidden: int, rounds: int, *, slices: bool) -> None:
        self._layout, self._costs, self._hidden, self._rounds = layout, costs, hidden, rounds
        self._slices = slices and layout.tp > 1
        self._stages = len(layout.stages)
        self._position_of = positions_by_stage(layout.positions)
        self.lanes = [_position(index) for index in range(len(layout.positions))]
        self.channels: dict[Link, Channel] = {}
        hosts = Counter(layout.stages[stages[0]].host for stages in layout.positions)
        self.shared = frozenset(host for host, positions in hosts.items() if positions > 1)
        self._forms: dict[tuple[object, ...], tuple[_LaneForm, ...]] = {}
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
        channel = self._message_ends(send.stage, send.kind).channel
        self._sent[send.stage, send.kind.value, send.micro_batch, send.round, send.part] = channel.messages
        channel.messages += 1
        channel.arrives_s.append(0.0)

    def add(self, one: Round) -> None:
        """Append a round's actions to the lanes."""
        shapes, sizes = self._shapes_of(one.work)
        met = _meetings(one)
        for lanes, actions in zip(self.lanes, one.actions, strict=True):
            bases = [len(lane.actions) for lane in lanes]
            for form in self._formed(actions, one.number):
                lane = lanes[form.lane]
                taken = [actions[place] for place in form.places]
                if met:
                    first = len(lane.actions)
                    lane.meets |= {first + at: met[action] for at, action in enumerate(taken) if action in met}
                lane.actions += taken
                for which, needed in form.needs:
                    column, base = lane.needs[which], bases[_OTHERS[form.lane][which]]
                    _fill(column, bases[form.lane])
                    column += [step + base if step >= 0 else -1 for step in needed] if base else needed
                if form.lane == _P2P:
                    self._add_moves(lane, taken, one, sizes)
                else:
                    self._add_works(lane, taken, form.parts, one, shapes)

    def finish(self) -> None:
        """Give every receive the number of its message, now that all sends are known."""
        ends_of, sent = self._ends, self._sent
        for lanes in self.lanes:
            for lane in lanes:
                for column in filter(None, lane.needs):
                    _fill(column, len(lane.actions))
            lane = lanes[_P2P]
            for index, number in enumerate(lane.numbers):
                if number == _NEVER:
                    round_, stage, kind, micro_batch, part = lane.actions[index]
                    ends = ends_of[stage, kind._value_]
                    lane.numbers[index] = sent.get((ends[2], ends[3], micro_batch, round_, part), _NEVER)

    def _shapes_of(self, work: Sequence[MicroBatch]) -> tuple[list[int], list[int]]:
        """Of each micro-batch a number for all that costs may look at, and one for how many rows go how far."""
        shapes, sizes, known = [], [], self._shapes
        for (rows,) in work:
            size = tuple([row[3:] for row in rows])
            shape = (size, tuple([row[2] for row in rows]))
            shapes.append(known.setdefault(shape, len(known)))
            sizes.append(known.setdefault(size, len(known)))
        return shapes, sizes

    def _add_works(
        self, lane: LaneState, actions: list[Action], parts: list[int] | None, one: Round, shapes: Sequence[int]
    ) -> None:
        known, works = self._works, lane.works
        for (_, stage, kind, micro_batch, _), count in zip(actions, parts or repeat(1), strict=False):
            letters = kind._value_
            shape = -1 if letters in _OF_STAGE else shapes[micro_batch]
            work = known.get((stage, letters, shape, count))
            if work is None:
                work = self._work(stage, kind, _NOBODY if shape < 0 else one.work[micro_batch], count)
                known[stage, letters, shape, count] = work
            works.append(work)

    def _work(self, stage: int, kind: Kind, micro_batch: MicroBatch, parts: int) -> Work:
        costs, layout = self._costs, self._layout
        if kind._value_ in _REDUCES:
            sent_bytes = costs.reduce_bytes(layout, stage, kind, parts)
            return Work(costs.reduce_s(layout, stage, kind, parts), sent_bytes=sent_bytes)
        seconds = costs.compute_s(layout, stage, micro_batch, kind) / parts
        where = layout.stages[stage]
        load = costs.load(layout, stage, micro_batch) if where.host in self.shared else 0
        if len(where.ranks) == 1 and kind is not Kind.NORM:
            return Work(seconds, load)
        inside = costs.exchange(layout, stage, micro_batch, kind)
        each = tuple(sent_bytes // parts for sent_bytes in inside.each)
        return Work(seconds, load, inside.seconds / parts, inside.sent_bytes // parts, each)

    def _add_moves(self, lane: LaneState, actions: list[Action], one: Round, sizes: Sequence[int]) -> None:
        known, sent, moves, numbers = self._moves, self._sent, lane.moves, lane.numbers
        for action in actions:
            round_, stage, kind, micro_batch, part = action
            letters = kind._value_
            # what a receive takes is the send's work: it has none of its own, and may be of an earlier round
            size = sizes[micro_batch] if letters in _SENDS else -1
            move = known.get((stage, letters, size))
            if move is None:
                move = known[stage, letters, size] = self._move(action, one)
            moves.append(move)
            number = _NEVER
            if size >= 0:
                channel = move[0]
                number = channel.messages
                channel.messages = number + 1
                sent[stage, letters, micro_batch, round_, part] = number
            numbers.append(number)

    def _move(self, action: Action, one: Round) -> Move:
        ends = self._message_ends(action.stage, action.kind)
        if not ends.sends:
            return Move(ends.channel, False, 0.0, 0)
        micro_batch = one.work[action.micro_batch]
        each: tuple[int, ...] = ()
        if self._slices:
            each = rank_message_bytes(action, micro_batch, self._layout, self._hidden)
        size = max(each) if each else message_bytes(action, micro_batch, self._layout, self._hidden)
        return Move(ends.channel, True, ends.channel.cost.occupied_s(size), size, each)

    def _message_ends(self, stage: int, kind: Kind) -> _Ends:
        known = self._ends.get((stage, kind.value))
        if known is None:
            action = Action(0, stage, kind, 0)
            other = partner(action, self._stages)
            sender, receiver = (action, other) if kind.sends else (other, action)
            name = link(action, self._stages, self._position_of)
            if name not in self.channels:
                self.channels[name] = Channel(name, self._costs.link(self._layout, sender.stage, receiver.stage))
            known = _Ends(self.channels[name], kind.sends, sender.stage, sender.kind.value)
            self._ends[stage, kind.value] = known
        return known

    def _formed(self, actions: tuple[Action, ...], number: int) -> tuple[_LaneForm, ...]:
        if self._rounds == 1:
            return _form(actions)
        # an enum's hash is slow Python: its letters stand for it
        shape = tuple([(round_ - number, stage, kind._value_, mb, part) for round_, stage, kind, mb, part in actions])
        form = self._forms.get(shape)
        if form is None:
            form = self._forms[shape] = _form(actions)
        return form


_REDUCES = frozenset(kind.value for kind in Kind if kind.lane is Lane.REDUCE)
_OF_STAGE = _REDUCES | {Kind.OPTIMIZER.value, Kind.NORM.value}
_SENDS = frozenset(kind.value for kind in Kind if kind.sends)


def _meetings(one: Round) -> dict[Action, Meeting]:
    """By action, what it meets: one object for all that meet."""
    made: dict[tuple[Action, ...], Meeting] = {}
    return {action: made.setdefault(found, Meeting(found)) for action, found in meetings(one.actions).items()}


def _fill(column: list[int], length: int) -> None:
    """Steps that need nothing, up to a length: they are written when one after them needs something."""
    if len(column) < length:
        column += [-1] * (length - len(column))


def _position(index: int) -> tuple[LaneState, ...]:
    lanes = tuple(LaneState(index) for _ in _LANES)
    for lane, others in zip(lanes, _OTHERS, strict=True):
        lane.others = tuple(lanes[other] for other in others)
    return lanes


def _form(actions: Sequence[Action]) -> tuple[_LaneForm, ...]:
    places: tuple[list[int], ...] = tuple([] for _ in _LANES)
    lane_of, index_of = [], []
    for place, action in enumerate(actions):
        lane = _LANE_OF[action[2]._value_]
        lane_of.append(lane)
        index_of.append(len(places[lane]))
        places[lane].append(place)
    needs = [[[-1] * len(of_lane) for _ in _LANES] for of_lane in places]
    for place, found in enumerate(waits(actions)):
        for other in found:
            if other < 0:
                raise PlanError(f"{format_action(actions[place])} waits for an action that is not there")
            column, step = needs[lane_of[place]][lane_of[other]], index_of[place]
            if index_of[other] > column[step]:
                column[step] = index_of[other]
    counts = part_counts(actions)
    return tuple(
        _LaneForm(
            lane,
            of_lane,
            [(i, needs[lane][other]) for i, other in enumerate(_OTHERS[lane]) if max(needs[lane][other]) >= 0],
            [counts[place] for place in of_lane] if any(actions[place].part is not None for place in of_lane) else None,
        )
        for lane, of_lane in enumerate(places)
        if of_lane
    )
