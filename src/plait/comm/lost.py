"""How ranks leave a mesh, and which of those departures end a wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from plait.comm.contract import peer_lost

LEFT = "it has left in order"
SILENT = "its process ended without a word (killed, or out of memory?); its own output may say more"


class Gone(NamedTuple):
    """How a rank left. `lost` is the rank to name: itself, or the one whose loss ended it."""

    lost: int
    reason: str
    in_order: bool


def check_alive(rank: int, size: int, gone: Mapping[int, Gone], what: str, peers: Sequence[int]) -> None:
    """Raise PeerLost if a wait of `rank` for `what` cannot end well any more.

    Any death ends it. A departure in order ends it only for those who wait for that rank, or when nobody else is
    left. Of several, a rank that failed by itself is named before one that failed because of another, and that one
    before one that has left in order (it may have caught the error).
    """
    everyone = len(gone) >= size - 1
    for other, how in sorted(gone.items(), key=lambda item: (item[1].in_order, item[1].lost != item[0], item[0])):
        if not how.in_order or everyone or other in peers:
            raise peer_lost(rank, what, how.lost, how.reason)
