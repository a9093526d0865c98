"""Where to cut: the contiguous ranges of layers whose slowest stage is fastest, for equal devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise

from plait.errors import PlanError

Cut = tuple[tuple[int, int], ...]

StageSeconds = Callable[[int, int], float]
"""Seconds of a stage that holds layers [first, end)."""


def require_stages(stages: int, layers: int) -> None:
    """Every stage can have a layer. Errors: PlanError."""
    if stages < 1:
        raise PlanError(f"{stages} stages were asked for, but there must be at least 1")
    if stages > layers:
        raise PlanError(
            f"{stages} stages were asked for, but the model has {layers} layers and every stage needs at least one: "
            f"{stages - layers} too many (--pp {layers} is the most)"
        )


def balanced_cut(layers: int, stages: int, seconds: StageSeconds) -> Cut:
    """The cut with the least slowest stage, and among those the least sum of squares, exact by dynamic programming."""
    require_stages(stages, layers)

    @cache
    def best(first: int, left: int) -> tuple[float, float, Cut]:
        if left == 1:
            time = seconds(first, layers)
            return time, time * time, ((first, layers),)
        options = []
        for end in range(first + 1, layers - left + 2):
            time = seconds(first, end)
            slowest, squares, rest = best(end, left - 1)
            options.append((max(time, slowest), squares + time * time, ((first, end), *rest)))
        return min(options)

    return best(0, stages)[2]


def cut_by_hand(counts: Sequence[int], layers: int, stages: int | None = None) -> Cut:
    """The cut that gives each stage so many layers. Errors: PlanError where they do not add up to the model's."""
    if any(count < 1 for count in counts):
        raise PlanError(f"--layers {_listed(counts)} gives a stage no layer, but every stage needs at least one")
    if sum(counts) != layers:
        difference = layers - sum(counts)
        word = "too few" if difference > 0 else "too many"
        nearest = _listed(proportional_layers(counts, layers))
        raise PlanError(
            f"--layers {_listed(counts)} adds up to {sum(counts)}, but the model has {layers} layers: "
            f"{abs(difference)} {word} (--layers {nearest} would be nearest)"
        )
    if stages is not None and stages != len(counts):
        raise PlanError(f"--layers {_listed(counts)} makes {len(counts)} stages, but --pp asks for {stages}")
    ends = [sum(counts[: index + 1]) for index in range(len(counts))]
    return tuple(zip([0, *ends[:-1]], ends, strict=True))


def proportional_layers(shares: Sequence[int], layers: int) -> tuple[int, ...]:
    """Layers of each stage in these proportions: every cut where it was asked for, to the nearest layer.

    Every stage gets at least one layer. Errors: PlanError.
    """
    if any(share < 1 for share in shares):
        raise PlanError(f"--layers {':'.join(map(str, shares))} gives a stage no share, but every stage needs one")
    require_stages(len(shares), layers)
    ends = [0]
    for index in range(len(shares)):
        wanted = round(layers * sum(shares[: index + 1]) / sum(shares))
        ends.append(min(max(wanted, ends[-1] + 1), layers - (len(shares) - 1 - index)))
    return tuple(end - first for first, end in pairwise(ends))


def _listed(counts: Sequence[int]) -> str:
    return ",".join(map(str, counts))
