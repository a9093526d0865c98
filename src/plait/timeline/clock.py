"""How far a host's clock is from the reference host's, from timestamps exchanged over their link.

    reference   sent_s ─────┐             ┌───> received_s
    host                    └─> remote_s ─┘

The host's timestamp is taken to lie in the middle of the round trip. It lies somewhere inside it, so the error is
half the round trip, and the shortest of several round trips decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from plait.timeline.timeline import Clock


class Exchange(NamedTuple):
    """One exchange: sent and received are the reference host's seconds, `remote_s` the other host's in between."""

    sent_s: float
    remote_s: float
    received_s: float

    @property
    def round_trip_s(self) -> float:
        """From the question to the answer, on the reference host's clock."""
        return self.received_s - self.sent_s


def offset_from_exchanges(samples: Iterable[Exchange]) -> Clock:
    """The other host's clock minus the reference host's, by the mid-point of the shortest round trip."""
    best = min(samples, key=lambda sample: sample.round_trip_s, default=None)
    if best is None:
        raise ValueError("a clock's offset needs at least 1 exchange of timestamps, and 0 were given")
    if best.round_trip_s < 0:
        raise ValueError(f"an exchange was received {-best.round_trip_s:g} s before it was sent: {best}")
    return Clock(best.remote_s - (best.sent_s + best.received_s) / 2, best.round_trip_s / 2)
