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
from plait.spec.shards import even_rows

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
    G: the last B or W of its stage; its part k that of the same part, where that backward is cut. T: the last B or W of
    its stage. N: every G and T of its position. O: every G and T of its stage. A: the O of its stage. -1, which no
    reader accepts, stands for an action that is missing.
    """
    places = _Places(actions)
    tokens: Indices = ()
    found: list[Indices] = []
    for index, action in enumerate(actions):
        letters = action.kind._value_
        if letters == "RT":
            tokens = (*tokens, index)
        found.append(tokens if letters == "F" and action.stage == 0 else places.across(action, letters))
    return tuple(found)


def follows(actions: Sequence[Action]) -> tuple[Indices, ...]:
    """For each of one position's actions, the indices of the actions of its own lane that must stand before it.

    F: the F of the stage before, on one position. B and I: their F, and the B or I of the stage after, on one position.
    W: its I. N: the last B or W of every stage of its position. O: the last B or W of its stage, and the N of its
    position, where there is one. A later part: the part before.
    """
    places = _Places(actions)
    return tuple([places.before(action, action.kind._value_) for action in actions])


def meetings(actions: Sequence[Sequence[Action]]) -> dict[Action, tuple[Action, ...]]:
    """By action, all those of a round that it begins and ends together with, itself among them: a rendezvous.

    `actions`: of every position. All N meet. The two T meet where they stand on different positions; on one, the first
    of them in the lane does nothing, and the second meets nobody. What the ranks of one position do together (G, A, the
    exchanges of a tensor group) is not listed here: they have the same actions in the same order.
    """
    found: dict[Action, tuple[Action, ...]] = {}
    for kind in (Kind.NORM, Kind.REDUCE_TIED):
        here = [[action for action in of_position if action.kind is kind] for of_position in actions]
        together = [action for of_position in here for action in of_position]
        if max(map(len, here), default=0) == 1 < len(together):
            found |= dict.fromkeys(together, tuple(together))
    return found


def part_counts(actions: Sequence[Action]) -> tuple[int, ...]:
    """For each of one position's actions, into how many equal parts its action is cut: 1 where it is whole."""
    counts = Counter([action._replace(part=None) for action in actions if action.part is not None])
    return tuple([1 if action.part is None else counts[action._replace(part=None)] for action in actions])


class _Rule(NamedTuple):
    """What a kind needs of its own micro-batch: the first that is there of the (letters, stages further on) named.

    `across` are of other lanes, `before` of its own; `may_lack`: none of them need be there. `always`: what must be
    there besides, of its own lane.
    """

    across: tuple[tuple[str, int], ...] = ()
    before: tuple[tuple[str, int], ...] = ()
    always: tuple[tuple[str, int], ...] = ()
    may_lack: bool = False


_NOTHING = _Rule(may_lack=True)
_BACKWARD = _Rule((("RB", 0),), (("B", 1), ("I", 1)), (("F", 0),), may_lack=True)
_RULES: Mapping[str, _Rule] = {
    "F": _Rule((("RF", 0),), (("F", -1),)),
    "B": _BACKWARD,
    "I": _BACKWARD,
    "W": _Rule(before=(("I", 0),)),
    "SF": _Rule((("F", 0),)),
    "ST": _Rule((("F", 0),)),
    "SB": _Rule((("B", 0), ("I", 0))),
    "A": _Rule((("O", 0),)),
    "RF": _NOTHING,
    "RB": _NOTHING,
    "RT": _NOTHING,
}
"""What needs more than its own micro-batch, G, T, N and O, is said in `_Places`."""
_COMPUTED = ("F", "B", "I", "W", "O")


class _Places:
    """Where the actions of one position stand: by name the last part, by name and part each, by stage what ends it."""

    def __init__(self, actions: Sequence[Action]) -> None:
        self._last: dict[_Key, int] = {}
        self._parts: dict[tuple[_Key, int], int] = {}
        self._ends: dict[tuple[int, int], _Key] = {}
        self._reductions: dict[tuple[int, int], Indices] = {}
        self._norms: dict[int, int] = {}
        for index, (round_, stage, kind, micro_batch, part) in enumerate(actions):
            letters = kind._value_
            key = (letters, round_, stage, micro_batch)
            self._last[key] = index
            if part is not None:
                self._parts[key, part] = index
            if letters == "B" or letters == "W":
                self._ends[round_, stage] = key
            elif letters == "N":
                self._norms[round_] = index
            elif letters == "G" or letters == "T":
                self._reductions[round_, stage] = (*self._reductions.get((round_, stage), ()), index)

    def across(self, action: Action, letters: str) -> Indices:
        """What the action needs of other lanes; -1 for what it needs and is in none."""
        if letters == "G" or letters == "T":
            return self._end_of_stage(action)
        if letters == "N":
            here = [reduced for (round_, _), reduced in self._reductions.items() if round_ == action.round]
            return tuple(index for reduced in here for index in reduced)
        if letters == "O":
            lacks = self._end_of_stage(action) == _MISSING
            return (_MISSING if lacks else ()) + self._reductions.get((action.round, action.stage), ())
        if action.part and letters in _COMPUTED:
            return () if self._part_before(action, letters) != _MISSING else _MISSING
        rule = _RULES[letters]
        lacking = _MISSING if rule.always and self._first(rule.always, action) is None else ()
        found = self._first(rule.across, action)
        if found is not None:
            return (*lacking, found)
        return lacking if rule.may_lack or self._first(rule.before, action) is not None else _MISSING

    def before(self, action: Action, letters: str) -> Indices:
        """What the action needs of its own lane, and is there."""
        if letters == "G" or letters == "T":
            return ()
        if letters == "N":
            return tuple(self._last[key] for (round_, _), key in self._ends.items() if round_ == action.round)
        if letters == "O":
            ends = tuple(index for index in self._end_of_stage(action) if index >= 0)
            return ends + ((self._norms[action.round],) if action.round in self._norms else ())
        if action.part and letters in _COMPUTED:
            return tuple(index for index in self._part_before(action, letters) if index >= 0)
        rule = _RULES[letters]
        found = [self._first(rule.always, action)]
        if self._first(rule.across, action) is None:
            found.append(self._first(rule.before, action))
        return tuple([index for index in found if index is not None])

    def _first(self, wanted: tuple[tuple[str, int], ...], action: Action) -> int | None:
        """Where the first of the wanted that is there stands."""
        round_, stage, _, micro_batch, _ = action
        for letters, further in wanted:
            index = self._last.get((letters, round_, stage + further, micro_batch))
            if index is not None:
                return index
        return None

    def _part_before(self, action: Action, letters: str) -> Indices:
        assert action.part is not None
        key = (letters, action.round, action.stage, action.micro_batch)
        return (self._parts.get((key, action.part - 1), -1),)

    def _end_of_stage(self, action: Action) -> Indices:
        """The last B or W of the action's stage, or its part of the same number."""
        key = self._ends.get((action.round, action.stage))
        if key is None:
            return _MISSING
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


def rank_message_bytes(action: Action, micro_batch: MicroBatch, layout: Layout, hidden: int) -> tuple[int, ...]:
    """What each rank of a tensor group puts on its link, or takes off it, for a message.

    Rank i talks to rank i of the other stage: it sends its rows of the activations or their gradients (`even_rows`),
    and the tokens whole, since every rank of the first stage needs them.
    """
    if action.kind.lane is not Lane.P2P:
        return (0,) * layout.tp
    if action.kind in (Kind.SEND_TOKENS, Kind.RECEIVE_TOKENS):
        return (micro_batch.sampled * TOKEN_BYTES,) * layout.tp
    row_bytes = message_bytes(action, micro_batch, layout, hidden) // max(1, micro_batch.tokens)
    return tuple(rows * row_bytes for rows in even_rows(micro_batch.tokens, layout.tp))


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
