"""Waits that say whom they wait for: in the error that ends them, and once in a while before."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from plait.comm.contract import timed_out
from plait.errors import WaitTimeout
from plait.executor.lane import Messages
from plait.plans.action import Action, Kind
from plait.plans.layout import Layout
from plait.plans.notation import format_action

LOOK_AGAIN_S = 0.5
"""How often a wait inside a computation looks whether something moved."""


class Blocked(NamedTuple):
    """The action at the head of a lane, and the rank that it waits for; numbers that change when something moves."""

    action: Action
    peer: int
    messages: int
    chunks: int

    def text(self, rank: int) -> str:
        """What the wait is for."""
        name = format_action(self.action)
        if self.action.kind.sends:
            return f"room for {name} on link {rank}→{self.peer}"
        return f"{name} of rank {self.peer}"


class Waiting:
    """The waits of one rank. `stalled(text)` is called once each `stall_s` in which nothing moves."""

    def __init__(
        self,
        rank: int,
        messages: Messages,
        stalled: Callable[[str], None] | None,
        stall_s: float,
        timeout_s: float,
    ) -> None:
        self._rank, self._messages, self._stalled = rank, messages, stalled
        self._stall_s, self._timeout_s = stall_s, timeout_s

    def until_free(self, blocked: Callable[[], Blocked | None]) -> None:
        """Wait while `blocked` says so. Errors: PeerLost; WaitTimeout when nothing has moved for `timeout_s`."""
        at = blocked()
        if at is None:
            return
        since, told_s = time.monotonic(), 0.0
        while at is not None:
            now = self._change(at, blocked, since, told_s)
            if now != at:
                since, told_s = time.monotonic(), 0.0
            else:
                told_s += self._stall_s
                assert self._stalled is not None
                self._stalled(f"rank {self._rank} has waited {told_s:g} s for {at.text(self._rank)}")
            at = now

    def _change(
        self, at: Blocked, blocked: Callable[[], Blocked | None], since: float, told_s: float
    ) -> Blocked | None:
        """What blocks once something has moved; `at` where it is time to tell that nothing has."""
        found: list[Blocked | None] = []

        def moved() -> bool | None:
            now = blocked()
            if now == at:
                return None
            found.append(now)
            return True

        left_s = since + self._timeout_s - time.monotonic()
        patience_s = since + told_s + self._stall_s - time.monotonic()
        tells = self._stalled is not None and patience_s < left_s
        try:
            self._messages.wait(moved, at.text(self._rank), max(0.0, patience_s if tells else left_s), (at.peer,))
        except WaitTimeout:
            if tells:
                return at
            raise timed_out(self._rank, at.text(self._rank), self._timeout_s) from None
        return found[0]


class GroupWatch:
    """Notices that a computation waits for the others of its tensor group, and nothing moves between them.

    `action`: what is computed.
    """

    def __init__(
        self,
        layout: Layout,
        rank: int,
        messages: Messages,
        stalled: Callable[[str], None] | None,
        stall_s: float,
    ) -> None:
        group = layout.tensor_group(layout.stage_of(rank), rank)
        self._rank, self._others = rank, tuple(other for other in group if other != rank)
        self._everyone = tuple(other for other in range(layout.ranks) if other != rank)
        self._messages, self._stalled, self._stall_s = messages, stalled, stall_s
        self._seen: tuple[Action | None, int] = None, 0
        self._since = self._look_at = self._told_s = 0.0
        self.action: Action | None = None

    def look(self) -> None:
        """Called often while the computation waits: says so each `stall_s` of it."""
        now = time.monotonic()
        if self._stalled is None or self.action is None or now < self._look_at:
            return
        self._look_at = now + min(LOOK_AGAIN_S, self._stall_s / 8)
        others = self._everyone if self.action.kind is Kind.NORM else self._others
        seen = self.action, sum(self._messages.traffic(other).payload_bytes for other in others)
        if seen != self._seen:
            self._seen, self._since, self._told_s = seen, now, 0.0
        elif now - self._since >= self._told_s + self._stall_s:
            self._told_s += self._stall_s
            who = "rank" if len(others) == 1 else "ranks"
            names = ", ".join(map(str, others))
            what = f"{format_action(self.action)} of {who} {names}"
            self._stalled(f"rank {self._rank} has waited {self._told_s:g} s for {what}")
