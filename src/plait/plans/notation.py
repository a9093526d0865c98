"""The short notation of an action, read both ways: ``round:stage kind micro-batch.part``, as in ``17:2F0``.

Round and part are left out where there is one. Plan files, logs, errors and reports use it.
"""

from __future__ import annotations

import re

from plait.errors import PlanError
from plait.plans.action import Action, Kind

_PATTERN = re.compile(r"(?:(?P<round>\d+):)?(?P<stage>\d+)(?P<kind>[A-Z]+)(?P<micro_batch>\d+)(?:\.(?P<part>\d+))?")


def format_action(action: Action, *, with_round: bool = True) -> str:
    """``Action(17, 2, FORWARD, 0)`` is ``17:2F0``; without its round, ``2F0``."""
    head = f"{action.round}:" if with_round else ""
    tail = "" if action.part is None else f".{action.part}"
    return f"{head}{action.stage}{action.kind.value}{action.micro_batch}{tail}"


def parse_action(text: str, *, default_round: int = 0) -> Action:
    """The action that `text` names. Errors: PlanError where it names none."""
    match = _PATTERN.fullmatch(text.strip())
    if match is None:
        raise PlanError(f"{text!r} is not an action: expected round:stage kind micro-batch.part, as in '17:2F0'")
    letters = match["kind"]
    if letters not in {kind.value for kind in Kind}:
        known = ", ".join(kind.value for kind in Kind)
        raise PlanError(f"{text!r} is not an action: no kind is written {letters!r} (known: {known})")
    part = None if match["part"] is None else int(match["part"])
    round_number = default_round if match["round"] is None else int(match["round"])
    return Action(round_number, int(match["stage"]), Kind(letters), int(match["micro_batch"]), part)


def format_actions(actions: tuple[Action, ...], number: int) -> str:
    """A position's actions of round `number` on one line; the round stands only before those of another one."""
    return " ".join(format_action(action, with_round=action.round != number) for action in actions)
