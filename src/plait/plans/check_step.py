"""The executable specification of a training step's round: complete, in order, and free of deadlock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from plait.errors import PlanError
from plait.plans.action import Action, Kind
from plait.plans.layout import Layout
from plait.plans.notation import format_action
from plait.plans.progress import check_progress
from plait.plans.round import Round
from plait.plans.rules import follows, positions_by_stage

_OF_STAGE = (Kind.REDUCE_GRADIENTS, Kind.OPTIMIZER, Kind.GATHER_PARAMETERS)
"""What is done once for a whole stage."""
_UNCUT = (Kind.REDUCE_TIED, Kind.NORM)
"""What is never done in parts."""


def check_training_round(one: Round, layout: Layout) -> None:
    """Round `one` trains every stage on every micro-batch exactly once, and comes to its end. Errors: PlanError.

    Every stage has one F and one B, or one I and one W, a micro-batch; a send and a receive between stages on different
    positions; at most one G, O and A a stage, and if one stage has it, all have; a T of the first and of the last
    stage, or of none; an N of every position's first stage, or of none. What an action needs of its own lane stands
    before it, and the links' k is enough.
    """
    positions = layout.positions
    if len(one.actions) != len(positions):
        raise PlanError(
            f"round {one.number} has actions for {len(one.actions)} positions, but the layout has {len(positions)}"
        )
    position_of = positions_by_stage(positions)
    for position, actions in enumerate(one.actions):
        _check_names(one, position, actions, positions[position])
        whole = _whole(one, actions)
        _check_set(one, position, whole, set(_expected(one, position, whole, position_of)))
        _check_order(one, actions)
    _check_alike(one, len(position_of))
    _check_norms(one, positions)
    check_progress([one], len(position_of), layout.link_capacity, position_of)


def _check_names(one: Round, position: int, actions: tuple[Action, ...], stages: tuple[int, ...]) -> None:
    """Nothing is named twice, or stands where its stage is not."""
    for action, count in Counter(actions).items():
        name = format_action(action)
        if action.round != one.number:
            raise PlanError(f"round {one.number}: {name} is of another round")
        if action.stage not in stages:
            raise PlanError(
                f"round {one.number}: {name} stands at position {position}, which holds stages {list(stages)}"
            )
        if count > 1:
            raise PlanError(f"round {one.number}: {name} stands {count} times, not once")
        if action.kind in _UNCUT and action.part is not None:
            raise PlanError(f"round {one.number}: {name} is a part, but {action.kind.value} is never cut")


def _whole(one: Round, actions: tuple[Action, ...]) -> set[Action]:
    """The actions with their parts put together. Parts count up from 0; none stands beside the whole."""
    parts: dict[Action, list[int | None]] = {}
    for action in actions:
        parts.setdefault(action._replace(part=None), []).append(action.part)
    for action, found in parts.items():
        if found != [None] and found != list(range(len(found))):
            given = ", ".join("whole" if part is None else str(part) for part in found)
            raise PlanError(
                f"round {one.number}: the parts of {format_action(action)} are {given}, not 0, 1, 2 and so on"
            )
    return set(parts)


def _expected(one: Round, position: int, given: set[Action], position_of: tuple[int, ...]) -> Iterator[Action]:
    """All that a position must do; backwards whole or split as given, and what may be there or not as given."""
    held = [stage for stage, place in enumerate(position_of) if place == position]
    may_have = dict.fromkeys(_OF_STAGE, held) | {Kind.REDUCE_TIED: _ends(len(position_of)), Kind.NORM: held[:1]}
    yield from (action for action in given if action.stage in may_have.get(action.kind, ()) and not action.micro_batch)
    for stage, place in enumerate(position_of):
        if place != position:
            continue
        before = stage > 0 and position_of[stage - 1] != position
        after = stage < len(position_of) - 1 and position_of[stage + 1] != position
        for micro_batch in range(len(one.work)):
            named = Action(one.number, stage, Kind.FORWARD, micro_batch)
            split = named._replace(kind=Kind.BACKWARD_INPUT) in given
            yield from (named._replace(kind=kind) for kind in _kinds(split, before, after))


def _kinds(split: bool, before: bool, after: bool) -> tuple[Kind, ...]:
    """Of one micro-batch in one stage; `before`, `after`: the neighbouring stage is on another position."""
    backward = (Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT) if split else (Kind.BACKWARD,)
    first = (Kind.RECEIVE_FORWARD, Kind.SEND_BACKWARD) if before else ()
    last = (Kind.SEND_FORWARD, Kind.RECEIVE_BACKWARD) if after else ()
    return (Kind.FORWARD, *backward, *first, *last)


def _check_set(one: Round, position: int, given: set[Action], expected: set[Action]) -> None:
    for word, actions in (("lacks", expected - given), ("has a surplus", given - expected)):
        if actions:
            names = ", ".join(sorted(map(format_action, actions)))
            raise PlanError(f"round {one.number}: position {position} {word} {names}")


def _check_order(one: Round, actions: tuple[Action, ...]) -> None:
    for index, needed in enumerate(follows(actions)):
        late = next((i for i in needed if i >= index), None)
        if late is not None:
            raise PlanError(
                f"round {one.number}: {format_action(actions[index])} stands before {format_action(actions[late])}, "
                "which it needs"
            )


def _ends(stages: int) -> list[int]:
    """The first and the last stage, which may share an embedding; none where they are one."""
    return [0, stages - 1] if stages > 1 else []


def _check_alike(one: Round, stages: int) -> None:
    """Gradients are reduced, weights updated and gathered in all stages or in none; a tied embedding at both ends."""
    for kind in (*_OF_STAGE, Kind.REDUCE_TIED):
        of_stages = _ends(stages) if kind is Kind.REDUCE_TIED else range(stages)
        having = {action.stage for actions in one.actions for action in actions if action.kind is kind}
        lacking = sorted(set(of_stages) - having)
        if having and lacking:
            raise PlanError(f"round {one.number}: stages {lacking} lack {kind.value}, which other stages have")


def _check_norms(one: Round, positions: tuple[tuple[int, ...], ...]) -> None:
    """All positions take part in the norm, or none."""
    having = {action.stage for actions in one.actions for action in actions if action.kind is Kind.NORM}
    lacking = [position for position, stages in enumerate(positions) if stages[0] not in having]
    if having and lacking:
        raise PlanError(f"round {one.number}: positions {lacking} lack N, which other positions have")
