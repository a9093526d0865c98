"""The launcher's side of a mesh of processes on this host, whatever carries their messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Mesh(Protocol):
    """What the ranks share, before they have it: `ShmMesh`, `EmulatedMesh`."""

    def descriptors(self, rank: int) -> tuple[int, ...]:
        """The descriptors that the rank's process must inherit (`pass_fds`)."""

    def description(self, rank: int) -> Mapping[str, object]:
        """What the rank's process gives to `attach.attach`: plain data."""

    def close_parent(self) -> None:
        """Close the launcher's copies, once all processes are started. Idempotent."""
