"""The one place that knows what an action waits for, who its peer is, and how many bytes it moves.

Checker, passes, simulator and executor call this module. Order within a lane is not a wait: every reader keeps it.
What an action needs of its own lane (`follows`) only has to stand before it, and the checker looks that it does.

Stages are numbered through the whole model, also where one position holds several of them. Messages are named by
stages (`partner`); the links that carry them are between positions (`link`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from plait.plans.action import Action, Kind, Lane
from plait.plans.layout import Layout
from plait.plans.round import MicroBatch

DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float64": 8}
TOKEN_BYTES = 8
"""A sampled token travels as an int64."""

Indices = tuple[int, ...]
_Key = tuple[str, int, int, int]
"""Kind, round, stage, micro-batch: letters instead of the enum, whose hash is slow."""


def waits(actions: Sequence[Action]) -> tuple[Indices, ...]:
    """For each of one position's actions, the indices of the actions of other lanes that it waits for.

    F: of the first stage, every token message before it (a pass puts them there because the forward, or the schedule,
    needs them); of a later one its RF, or nothing where the stage before is on the same position. B and I: their RB,
    or nothing on the last stage and where the stage after is on the same position. SF and ST: their F. SB: its B or I.
    G: the last B or W of its stage; its part k that of the same part, where that backward is cut. O: every G of its
    stage. A: the O of its stage. -1, which no reader accepts, stands for an action that is missing.
    """
    return _other_lane(actions, _needs(actions))


def follows(actions: Sequence[Action]) -> tuple[Indices, ...]:
    """For each of one position's actions, the indices of the actions of its own lane that must stand before it.

    F: the F of the stage before, on one position. B and I: their F, and the B or I of the stage after, on one position.
    W: its I. O: the last B or W of its stage. A later part: the part before.
    """
    return _own_lane(actions, _needs(actions))


def part_counts(actions: Sequence[Action]) -> tuple[int, ...]:
    """For each of one position's actions, into how many equal parts its action is cut: 1 where it is whole."""
    counts = Counter([action._replace(part=None) for action in actions if action.part is not None])
    return tuple([1 if action.part is None else counts[action._replace(part=None)] for action in actions])


def _other_lane(actions: Sequence[Action], needs: Sequence[Indices]) -> tuple[Indices, ...]:
    lanes = [action.kind.lane for action in actions]
    return tuple([tuple([i for i in found if i < 0 or lanes[i] is not lanes[n]]) for n, found in enumerate(needs)])


def _own_lane(actions: Sequence[Action], needs: Sequence[Indices]) -> tuple[Indices, ...]:
    lanes = [action.kind.lane for action in actions]
    return tuple([tuple([i for i in found if i >= 0 and lanes[i] is lanes[n]]) for n, found in enumerate(needs)])


def _needs(actions: Sequence[Action]) -> list[Indices]:
    place = _Places(actions)
    tokens: Indices = ()
    found: list[Indices] = []
    for index, action in enumerate(actions):
        if action.kind is Kind.RECEIVE_TOKENS:
            tokens = (*tokens, index)
        first_stage = action.kind is Kind.FORWARD and action.stage == 0
        found.append(tokens if first_stage else place.needed(action))
    return found


class _Places:
    """Where the actions of one position stand: by name the last part, by name and part each, by stage what ends it."""

    def __init__(self, actions: Sequence[Action]) -> None:
        self._last: dict[_Key, int] = {}
        self._parts: dict[tuple[_Key, int], int] = {}
        self._ends: dict[tuple[int, int], Action] = {}
        self._reductions: dict[tuple[int, int], Indices] = {}
        for index, action in enumerate(actions):
            letters = action.kind._value_
            key = (letters, action.round, action.stage, action.micro_batch)
            self._last[key] = index
            if action.part is not None:
                self._parts[key, action.part] = index
            if letters in ("B", "W"):
                self._ends[action.round, action.stage] = action
            elif letters == "G":
                step = (action.round, action.stage)
                self._reductions[step] = (*self._reductions.get(step, ()), index)

    def needed(self, action: Action) -> Indices:
        """What the action needs, of any lane; token receives apart."""
        if action.part and action.kind.lane is Lane.COMPUTE:
            return (self._part(action, action.part - 1),)
        match action.kind:
            case Kind.FORWARD:
                return self._one_of(action, ("RF", action.stage), ("F", action.stage - 1))
            case Kind.BACKWARD | Kind.BACKWARD_INPUT:
                own = self._one_of(action, ("F", action.stage))
                after = (("RB", action.stage), ("B", action.stage + 1), ("I", action.stage + 1))
                given = self._one_of(action, *after)
                return own if given == _MISSING else own + given
            case Kind.BACKWARD_WEIGHT:
                return self._one_of(action, ("I", action.stage))
            case Kind.SEND_FORWARD | Kind.SEND_TOKENS:
                return self._one_of(action, ("F", action.stage))
            case Kind.SEND_BACKWARD:
                return self._one_of(action, ("B", action.stage), ("I", action.stage))
            case Kind.REDUCE_GRADIENTS:
                return self._end_of_stage(action)
            case Kind.OPTIMIZER:
                return self._end_of_stage(action) + self._reductions.get((action.round, action.stage), ())
            case Kind.GATHER_PARAMETERS:
                return self._one_of(action, ("O", action.stage))
            case _:
                return ()

    def _one_of(self, action: Action, *wanted: tuple[str, int]) -> Indices:
        """Where the first of the wanted (kind, stage) of the action's micro-batch stands."""
        for letters, stage in wanted:
            index = self._last.get((letters, action.round, stage, action.micro_batch))
            if index is not None:
                return (index,)
        return _MISSING

    def _part(self, action: Action, part: int) -> int:
        key = (action.kind._value_, action.round, action.stage, action.micro_batch)
        return self._parts.get((key, part), -1)

    def _end_of_stage(self, action: Action) -> Indices:
        """The last B or W of the action's stage, or its part of the same number."""
        end = self._ends.get((action.round, action.stage))
        if end is None:
            return _MISSING
        key = (end.kind._value_, end.round, end.stage, end.micro_batch)
        whole = self._last[key]
        return (whole if action.part is None else self._parts.get((key, action.part), whole),)


_MISSING = (-1,)


def partner(action: Action, stages: int) -> Action:
    """The other end of a message: the receive of a send, the send of a receive. `stages`: of the whole layout."""
    match action.kind:
        case Kind.SEND_FORWARD:
            return action._replace(kind=Kind.RECEIVE_FORWARD, stage=action.stage + 1)
        case Kind.RECEIVE_FORWARD:
            return action._replace(kind=Kind.SEND_FORWARD, stage=action.stage - 1)
        case Kind.SEND_BACKWARD:
            return action._replace(kind=Kind.RECEIVE_BACKWARD, stage=action.stage - 1)
        case Kind.RECEIVE_BACKWARD:
            return action._replace(kind=Kind.SEND_BACKWARD, stage=action.stage + 1)
        case Kind.SEND_TOKENS:
            return action._replace(kind=Kind.RECEIVE_TOKENS, stage=0)
        case Kind.RECEIVE_TOKENS:
            return action._replace(kind=Kind.SEND_TOKENS, stage=stages - 1)
        case _:
            raise AssertionError(f"{action} moves no message")


def message_bytes(action: Action, micro_batch: MicroBatch, layout: Layout, hidden: int) -> int:
    """Payload that a send puts on its link, or its receive takes off it; 0 for an action of another lane.

    Activations are [tokens, hidden] in the dtype of the stage that makes them, their gradients the same; tokens are one
    int64 a sampling row. What a reduction or a gather moves depends on the stage's tensors: `costs` knows it.
    """
    if action.kind.lane is not Lane.P2P:
        return 0
    if action.kind in (Kind.SEND_TOKENS, Kind.RECEIVE_TOKENS):
        return micro_batch.sampled * TOKEN_BYTES
    before = action.stage - 1 if action.kind in (Kind.RECEIVE_FORWARD, Kind.SEND_BACKWARD) else action.stage
    return micro_batch.tokens * hidden * DTYPE_BYTES[layout.stages[before].dtype]


class Link(NamedTuple):
    """A directed link between two positions."""

    source: int
    to: int


def link(action: Action, stages: int, position_of: Sequence[int] | None = None) -> Link:
    """The link between positions that a send or receive uses.

    `position_of`: the position of each stage (`positions_by_stage`); without it every stage is a position of its own.
    """
    other = partner(action, stages)
    here, there = action.stage, other.stage
    if position_of is not None:
        here, there = position_of[here], position_of[there]
    return Link(here, there) if action.kind.sends else Link(there, here)


def positions_by_stage(positions: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The position of each stage, from the stages of each position (`Layout.positions`)."""
    held = {stage: position for position, stages in enumerate(positions) for stage in stages}
    return tuple(held[stage] for stage in range(len(held)))
