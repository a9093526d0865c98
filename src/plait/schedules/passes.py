"""Small passes that lower compute actions to all that a rank does. Each can be printed and checked alone."""

from __future__ import annotations

from collections.abc import Sequence

from plait.plans.action import Action, Kind
from plait.plans.round import Carried, MicroBatch

Positions = tuple[tuple[Action, ...], ...]


def add_activations(positions: Positions) -> Positions:
    """Receive before each forward (but the first stage's), send after it (but the last stage's)."""
    last = len(positions) - 1
    lowered = []
    for stage, forwards in enumerate(positions):
        actions: list[Action] = []
        for forward in forwards:
            if stage > 0:
                actions.append(_same(forward, Kind.RECEIVE_FORWARD))
            actions.append(forward)
            if stage < last:
                actions.append(_same(forward, Kind.SEND_FORWARD))
        lowered.append(tuple(actions))
    return tuple(lowered)


def _same(forward: Action, kind: Kind) -> Action:
    """Another kind of the same micro-batch; made so, and not by `_replace`, since it is done for every message."""
    return Action(forward.round, forward.stage, kind, forward.micro_batch)


def add_token_sends(positions: Positions, sent: Sequence[int]) -> Positions:
    """The last stage sends the tokens of the micro-batches `sent`, each right after its forward."""
    *before, last = positions
    with_sends: list[Action] = []
    for action in last:
        with_sends.append(action)
        if action.kind is Kind.FORWARD and action.micro_batch in sent:
            with_sends.append(_same(action, Kind.SEND_TOKENS))
    return (*before, tuple(with_sends))


def add_token_receives(positions: Positions, places: Sequence[tuple[Carried, int]], number: int) -> Positions:
    """The first stage receives each carried message before the forward of micro-batch `place` (at the end if none)."""
    first, *others = positions
    with_receives: list[Action] = []
    waiting = list(places)

    def take(micro_batch: float) -> None:
        while waiting and waiting[0][1] <= micro_batch:
            carried = waiting.pop(0)[0]
            with_receives.append(Action(carried.round, 0, Kind.RECEIVE_TOKENS, carried.micro_batch))

    for action in first:
        if action.kind is Kind.FORWARD:
            take(action.micro_batch)
        with_receives.append(action)
    take(float("inf"))
    return (tuple(with_receives), *others)


def requests_of(micro_batch: MicroBatch) -> tuple[int, ...]:
    """The requests whose rows are in the micro-batch."""
    return tuple([row.request for row in micro_batch.rows])
