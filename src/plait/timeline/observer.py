"""What the executor calls while it runs. The tracer is an observer."""

from __future__ import annotations

from typing import Protocol

from plait.plans.action import Action


class Observer(Protocol):
    """Told of every action once, when it has ended. Times are seconds of the host's monotonic clock."""

    def finished(self, action: Action, start_s: float, ready_s: float, end_s: float, payload_bytes: int) -> None:
        """`action` ran from start to end; from start to `ready_s` it waited for its message (receives only)."""
