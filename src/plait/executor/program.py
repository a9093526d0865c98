"""A position's actions of a training step, compiled once for all rounds that differ only in their number.

Each lane becomes a list. What an action waits for (`plans.rules`) becomes how many actions of each other lane must be
done: lanes keep their order, so to wait for several is to wait for the last of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from plait.errors import PlanError
from plait.executor.lane import Post, action_code
from plait.plans.action import Action, Kind, Lane
from plait.plans.notation import format_action
from plait.plans.rules import follows, partner, waits

NOWHERE = -1
"""The source of what takes no tensor."""


class Compute(NamedTuple):
    """An action of the compute lane. Tensors are named by the place of the action that made or received them."""

    place: int
    letters: str
    moves: int
    """Messages that must have moved."""
    reductions: int
    """Reductions that must have ended."""
    source: int
    """Whose tensor it takes."""
    keeps: bool
    """Whether something takes its own."""


class Move(NamedTuple):
    """A send or a receive."""

    place: int
    computed: int
    """Computations that must have ended."""
    source: int
    """Whose tensor a send takes; nowhere for a receive."""
    peer: int
    code: int
    """The last number of its tag."""


class Reduce(NamedTuple):
    """A reduction or a gather."""

    place: int
    computed: int


class Program(NamedTuple):
    """The lanes of one position. `last_sends`: by rank, how many messages have moved once all sends to it have."""

    size: int
    computes: tuple[Compute, ...]
    moves: tuple[Move, ...]
    reduces: tuple[Reduce, ...]
    last_sends: Mapping[int, int]


Shape = tuple[tuple[int, str, int, int | None], ...]
"""Actions without their round; letters instead of the enum, whose hash is slow."""


def shape_of(actions: Sequence[Action]) -> Shape:
    """What two rounds must share to have one program."""
    return tuple([(stage, kind._value_, micro_batch, part) for _, stage, kind, micro_batch, part in actions])


def compile_program(actions: Sequence[Action], post: Post, stages: int) -> Program:
    """The program of one position's actions. Errors: PlanError where one waits for what is not there."""
    waited, followed = waits(actions), follows(actions)
    _require_all(actions, waited)
    count = _Counts(actions)
    sources = [
        _source(actions, index, (*waited[index], *followed[index])) if action.kind in _TAKES else NOWHERE
        for index, action in enumerate(actions)
    ]
    taken = set(sources)
    computes, moves, reduces = [], [], []
    for index, action in enumerate(actions):
        needs = waited[index]
        match action.kind.lane:
            case Lane.COMPUTE:
                # the norm talks over every link: the step's messages, which its other ranks need first, have left them
                before = range(len(actions)) if action.kind is Kind.NORM else needs
                needed = count.of(Lane.P2P, before), count.of(Lane.REDUCE, needs)
                computes.append(Compute(index, action.kind.value, *needed, sources[index], index in taken))
            case Lane.P2P:
                sender = action if action.kind.sends else partner(action, stages)
                computed = count.of(Lane.COMPUTE, needs)
                moves.append(Move(index, computed, sources[index], post.peer(action), action_code(sender)))
            case Lane.REDUCE:
                reduces.append(Reduce(index, count.of(Lane.COMPUTE, needs)))
    last_sends = {move.peer: place + 1 for place, move in enumerate(moves) if move.source != NOWHERE}
    return Program(len(actions), tuple(computes), tuple(moves), tuple(reduces), last_sends)


_BACK = (Kind.BACKWARD, Kind.BACKWARD_INPUT)
_TAKES = frozenset((Kind.FORWARD, *_BACK, Kind.SEND_FORWARD, Kind.SEND_BACKWARD))


def _require_all(actions: Sequence[Action], waited: Sequence[Sequence[int]]) -> None:
    for action, needs in zip(actions, waited, strict=True):
        if NOWHERE in needs:
            raise PlanError(f"{format_action(action)} waits for an action that is not there")


def _source(actions: Sequence[Action], index: int, needed: Sequence[int]) -> int:
    """Whose tensor an action takes: a receive's, its own stage's for a send, or the neighbouring stage's."""
    action = actions[index]
    for other in needed:
        made = actions[other]
        if made.kind.receives or action.kind.sends or (made.stage != action.stage and not action.part):
            return other
    return NOWHERE


class _Counts:
    """How many actions of a lane have ended once the one at an index has."""

    def __init__(self, actions: Sequence[Action]) -> None:
        self._lanes = [action.kind.lane for action in actions]
        done = dict.fromkeys(Lane, 0)
        self._until = []
        for lane in self._lanes:
            done[lane] += 1
            self._until.append(done[lane])

    def of(self, lane: Lane, indices: Sequence[int]) -> int:
        """The most of those in `lane`; 0 where none is."""
        return max((self._until[index] for index in indices if self._lanes[index] is lane), default=0)
