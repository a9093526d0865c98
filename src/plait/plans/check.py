"""The executable specification of layouts and of generation's rounds: complete, in order, free of deadlock.

Called after every pass. Module `check_step` is that of training's rounds, `progress` the look for deadlocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from plait.errors import PlanError
from plait.plans.action import Action, Kind
from plait.plans.layout import Layout
from plait.plans.notation import format_action
from plait.plans.progress import check_progress
from plait.plans.round import Round


def check_layout(layout: Layout, layers: int) -> None:
    """Every layer is in exactly one stage, in order, and every rank drives exactly one position. Errors: PlanError.

    A position may hold several stages (virtual ones): those name the same ranks in the same order.
    """
    expected = 0
    for index, stage in enumerate(layout.stages):
        first, end = stage.layers
        if first != expected or end <= first:
            raise PlanError(
                f"stage {index} holds layers [{first}, {end}), but must begin at layer {expected} and hold at least one"
            )
        expected = end
    if expected != layers:
        raise PlanError(
            f"the cut covers {expected} layers, but the model has {layers}: {_by_how_much(expected, layers)}"
        )
    ranks = [rank for held in layout.positions for rank in layout.stages[held[0]].ranks]
    if sorted(ranks) != list(range(layout.ranks)):
        raise PlanError(
            f"the stages name ranks {ranks}, but the axes {dict(layout.axes)} make ranks 0 to {layout.ranks - 1}"
        )
    if layout.link_capacity < 1:
        raise PlanError(f"link_capacity is {layout.link_capacity}, but a link must hold at least 1 message")


def _by_how_much(covered: int, layers: int) -> str:
    difference = abs(layers - covered)
    word = "layer" if difference == 1 else "layers"
    return f"{difference} {word} too {'few' if covered < layers else 'many'}"


def check_rounds(rounds: Sequence[Round], stages: int, capacity: int) -> None:
    """Consecutive rounds are complete, and run to their end on links of `capacity` messages. Errors: PlanError.

    The last round may leave token messages in flight: its `carried_out`.
    """
    for one in rounds:
        _check_complete(one, stages)
    for before, after in pairwise(rounds):
        if before.carried_out != after.carried_in:
            raise PlanError(
                f"round {after.number} begins with other messages in flight than round {before.number} left"
            )
    check_progress(rounds, stages, capacity)


def _check_complete(one: Round, stages: int) -> None:
    if len(one.actions) != stages:
        raise PlanError(
            f"round {one.number} has actions for {len(one.actions)} positions, but the plan has {stages} stages"
        )
    for position, actions in enumerate(one.actions):
        for action, count in Counter(actions).items():
            if action.stage != position:
                raise PlanError(f"round {one.number}: {format_action(action)} stands at position {position}")
            if count > 1:
                raise PlanError(f"round {one.number}: {format_action(action)} stands {count} times, not once")
        _check_set(one, position, set(actions), set(_expected(one, position, stages)))


def _expected(one: Round, stage: int, stages: int) -> Iterator[Action]:
    """All that a position must do, token messages apart, whose number the schedule decides."""
    for micro_batch in range(len(one.work)):
        yield Action(one.number, stage, Kind.FORWARD, micro_batch)
        if stage > 0:
            yield Action(one.number, stage, Kind.RECEIVE_FORWARD, micro_batch)
        if stage < stages - 1:
            yield Action(one.number, stage, Kind.SEND_FORWARD, micro_batch)


def _check_set(one: Round, position: int, given: set[Action], expected: set[Action]) -> None:
    tokens = {action for action in given if action.kind in (Kind.SEND_TOKENS, Kind.RECEIVE_TOKENS)}
    missing, surplus = expected - given, given - tokens - expected
    for word, actions in (("lacks", missing), ("has a surplus", surplus)):
        if actions:
            raise PlanError(f"round {one.number}: position {position} {word} {_listed(actions)}")
    if len(one.actions) == 1:
        return
    if position == len(one.actions) - 1:
        sent = {action.micro_batch for action in tokens}
        unsent = [i for i, micro_batch in enumerate(one.work) if micro_batch.sampled and i not in sent]
        if unsent:
            raise PlanError(f"round {one.number}: the tokens of micro-batches {unsent} are sampled but never sent")
    if position == 0:
        arriving = {(carried.round, carried.micro_batch) for carried in one.carried_in}
        for action in sorted(tokens):
            if (action.round, action.micro_batch) not in arriving:
                raise PlanError(f"round {one.number}: {format_action(action)} receives a message that nobody sent")


def _listed(actions: set[Action]) -> str:
    return ", ".join(format_action(action) for action in sorted(actions, key=format_action))
