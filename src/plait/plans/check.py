"""The executable specification of rounds: complete, in order, and free of deadlock for the plan's k.

Called after every pass. Deadlock is looked for by replaying the lanes without time: every lane goes on as far as it
can, a send completes while fewer than k messages lie unreceived on its link. More progress of one lane never takes a
possibility from another, so one greedy replay decides: what is stuck in it is stuck in every run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from plait.errors import PlanError
from plait.plans.action import Action, Kind, Lane
from plait.plans.layout import Layout
from plait.plans.notation import format_action
from plait.plans.round import Round
from plait.plans.rules import Link, link, partner, waits


def check_layout(layout: Layout, layers: int) -> None:
    """Every layer is in exactly one stage, in order, and every rank drives exactly one stage. Errors: PlanError."""
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
    ranks = [rank for stage in layout.stages for rank in stage.ranks]
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
    _check_progress(rounds, stages, capacity)


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


class _LaneReplay:
    """One lane of one position: its actions over all rounds, each with the number of the round list it stands in."""

    def __init__(self) -> None:
        self.actions: list[tuple[Action, tuple[Action, ...]]] = []
        self.next = 0

    @property
    def head(self) -> tuple[Action, tuple[Action, ...]] | None:
        return self.actions[self.next] if self.next < len(self.actions) else None


def _check_progress(rounds: Sequence[Round], stages: int, capacity: int) -> None:
    lanes = _lanes(rounds, stages)
    done: set[Action] = set()
    unreceived: dict[Link, int] = defaultdict(int)
    for carried in rounds[0].carried_in if rounds else ():
        # sent before these rounds began
        send = Action(carried.round, stages - 1, Kind.SEND_TOKENS, carried.micro_batch)
        done.add(send)
        unreceived[link(send, stages)] += 1
    moved = True
    while moved:
        moved = False
        for lane in lanes.values():
            while lane.head is not None and _can(lane.head, done, unreceived, stages, capacity):
                _do(lane.head[0], done, unreceived, stages)
                lane.next += 1
                moved = True
    stuck = [lane.head for lane in lanes.values() if lane.head is not None]
    if stuck:
        raise PlanError("deadlock: " + "; ".join(_why(head, done, stages, capacity) for head in stuck))


def _lanes(rounds: Sequence[Round], stages: int) -> dict[tuple[int, Lane], _LaneReplay]:
    lanes: dict[tuple[int, Lane], _LaneReplay] = defaultdict(_LaneReplay)
    for one in rounds:
        for position, actions in enumerate(one.actions):
            for action, waited in zip(actions, waits(actions), strict=True):
                if -1 in waited:
                    raise PlanError(
                        f"round {one.number}: {format_action(action)} waits for an action that is not there"
                    )
                lanes[position, action.kind.lane].actions.append((action, tuple(actions[i] for i in waited)))
    return lanes


def _can(
    head: tuple[Action, tuple[Action, ...]], done: set[Action], unreceived: dict[Link, int], stages: int, capacity: int
) -> bool:
    action, waited = head
    if any(other not in done for other in waited):
        return False
    if action.kind.sends:
        return unreceived[link(action, stages)] < capacity
    return not action.kind.receives or partner(action, stages) in done


def _do(action: Action, done: set[Action], unreceived: dict[Link, int], stages: int) -> None:
    done.add(action)
    if action.kind.sends:
        unreceived[link(action, stages)] += 1
    elif action.kind.receives:
        unreceived[link(action, stages)] -= 1


def _why(head: tuple[Action, tuple[Action, ...]], done: set[Action], stages: int, capacity: int) -> str:
    action, waited = head
    name = format_action(action)
    missing = next((other for other in waited if other not in done), None)
    if missing is None and action.kind.receives:
        missing = partner(action, stages)
    if missing is not None:
        return f"{name} waits for {format_action(missing)}"
    source, to = link(action, stages)
    return f"{name} waits for room on link {source}→{to}, which holds {capacity} unreceived"
