"""For which ranks a rank of a timeline stands: itself, or all of its position where it alone was simulated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from plait.plans.layout import Layout


def stood_for(layout: Layout, shown: Iterable[int]) -> Mapping[int, tuple[int, ...]]:
    """By rank that is shown: the ranks that it stands for, itself the first.

    Of a position of 8 ranks of which one is shown it stands for all; of which two are (a tensor group, the first of
    four replicas), each stands for those in its own place.
    """
    seen = set(shown)
    found: dict[int, tuple[int, ...]] = {}
    for stages in layout.positions:
        ranks = layout.stages[stages[0]].ranks
        here = [rank for rank in ranks if rank in seen]
        width = len(here)
        spread = bool(width) and len(ranks) % width == 0 and tuple(here) == ranks[:width]
        for place, rank in enumerate(here):
            found[rank] = ranks[place::width] if spread else (rank,)
    return found | {rank: (rank,) for rank in seen - found.keys()}
