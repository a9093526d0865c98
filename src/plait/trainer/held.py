"""A stage as one rank of the mesh holds it: with whom it sums gradients, and which of them it counts and updates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from plait.nn.training.stage import TrainingStage
from plait.plans.layout import Layout
from plait.plans.pieces import piece_bounds

Span = tuple[int, int]
"""Items [first, end) of a stage's flat storage."""


@dataclass(frozen=True, slots=True, eq=False)
class HeldStage:
    """`stage`, number `number` of the model, on the `tensor`-th rank of a tensor group.

    `replicas`: the ranks that hold the same pieces, ascending; this one is the `index`-th. `sharded`: each of them
    updates its own pieces only (ZeRO-1, Rajbhandari et al., "ZeRO" (2020), section 5.1). A tied embedding that lies on
    two stages is updated by all: its copies learn the same from the same sum.
    """

    number: int
    stage: TrainingStage
    replicas: tuple[int, ...]
    index: int
    tensor: int
    sharded: bool

    def bounds(self, span: Span) -> tuple[int, ...]:
        """Where the replicas' pieces of a span begin and end, counted from its first item."""
        return piece_bounds(span[1] - span[0], len(self.replicas))

    def piece(self, span: Span) -> Span:
        """This replica's piece of a span."""
        bounds = self.bounds(span)
        return span[0] + bounds[self.index], span[0] + bounds[self.index + 1]

    @property
    def pieces(self) -> tuple[Span, ...]:
        """This replica's piece of each part."""
        return tuple(map(self.piece, self.stage.parts))

    @property
    def updated(self) -> tuple[Span, ...]:
        """What this rank updates."""
        tied = () if self.stage.tied is None else (self.stage.tied,)
        return (*(self.pieces if self.sharded else self.stage.parts), *tied)

    @property
    def counted(self) -> tuple[Span, ...]:
        """What this rank counts in the norm of the mesh, so that the mesh counts every parameter once.

        Replicas count their pieces, sharded or not; a tied embedding counts on the first stage.
        """
        tied = self.stage.tied
        ours = self.pieces if tied is None or self.number else (*self.pieces, self.piece(tied))
        return tuple(overlaps(sorted(self.stage.owned), sorted(ours)))

    @property
    def values(self) -> Mapping[str, Tensor]:
        """Every tensor as it is updated; with ZeRO-1 as it is computed with: masters are of a replica's own pieces."""
        weights, masters = self.stage.weights, self.stage.flat.masters
        if not self.sharded:
            for name, (first, end) in self.stage.places.items():
                weights[name] = masters[first:end].view_as(weights[name])
        return weights


def replicas_of(layout: Layout, stage: int, rank: int) -> tuple[int, ...]:
    """The ranks that hold the same pieces of `stage` as `rank`, ascending, itself among them."""
    ranks = layout.stages[stage].ranks
    return tuple(sorted(ranks[ranks.index(rank) % layout.tp :: layout.tp]))


def overlaps(one: Sequence[Span], other: Sequence[Span]) -> Iterator[Span]:
    """What lies in both; each in order, and none of its spans over another."""
    at = 0
    for first, end in one:
        while at < len(other) and other[at][1] <= first:
            at += 1
        for start, stop in other[at:]:
            if start >= end:
                break
            if max(first, start) < min(end, stop):
                yield max(first, start), min(end, stop)


def joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The same items in as few spans as can be; empty ones left out."""
    found: list[Span] = []
    for first, end in sorted(spans):
        if first == end:
            continue
        if found and found[-1][1] == first:
            first = found.pop()[0]
        found.append((first, end))
    return tuple(found)
