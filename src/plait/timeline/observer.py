"""What the executor calls while it runs. The tracer is an observer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from plait.plans.action import Action


class Observer(Protocol):
    """Told of every action once, when it has ended. Times are seconds of the host's monotonic clock."""

    def finished(
        self,
        action: Action,
        start_s: float,
        ready_s: float,
        end_s: float,
        payload_bytes: int,
        exchanges: Sequence[tuple[float, float]] = (),
    ) -> None:
        """`action` ran from start to end; from start to `ready_s` it waited for its message (receives only).

        `exchanges`: begin and end of what a computation exchanged inside, over the tensor and expert axes, in order.
        `payload_bytes`: what this rank put on its links, for a message or for these exchanges.
        """
