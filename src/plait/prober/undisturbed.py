"""What a repeated measurement says."""

from __future__ import annotations

from collections.abc import Sequence


def undisturbed(times: Sequence[float]) -> float:
    """The lower quartile: what it takes while nothing else bothers the host, and not by luck alone."""
    ordered = sorted(times)
    return ordered[(len(ordered) - 1) // 4]
