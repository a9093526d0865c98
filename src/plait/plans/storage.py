"""Where the tensors of a stage lie in its flat storage.

The storage has as many parts as the backward, the last layers first; the final norm and the LM head lie in part 0, the
embedding and learned positions in the last one. What a tied embedding learns on a stage that has only one end of the
model is summed with the other end's, not with its part: it lies behind all of them.

In front of each part lie the pieces of which a rank may compute only a part of the gradient, so that one sum over the
group completes them (`partial.py`). Queries, keys and values of a layer lie one after another, and so do gate and up:
the stage multiplies by them at once, while readers see the names of `plait.spec.tensors`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import NamedTuple

from plait.spec.model import ModelSpec
from plait.spec.shards import Piece, Shard, Unit, even_rows, tensor_cut

_FUSED: Mapping[str, str] = MappingProxyType({"q": "qkv", "k": "qkv", "v": "qkv", "gate": "gate_up", "up": "gate_up"})
_ALIGNED = 16
"""Items that blocks begin at a multiple of: a cache line of float32."""


class Part(NamedTuple):
    """Items of one part, [first, end).

    Up to `by_head` they belong to norms of single heads, and with those up to `whole` to all that no rank has a piece
    of, but learned positions.
    """

    first: int
    by_head: int
    whole: int
    end: int


class Block(NamedTuple):
    """Pieces that lie one after another and are used as one; `part`: of the backward, or their number, if tied."""

    key: str
    names: tuple[str, ...]
    shape: tuple[int, ...]
    learns: bool
    part: int
    first: int = 0

    @property
    def items(self) -> int:
        """How many numbers."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Storage:
    """`blocks` that learn have their place in it, in order; frozen ones have none."""

    blocks: tuple[Block, ...]
    parts: tuple[Part, ...]
    tied: tuple[int, int] | None
    items: int


def layer_runs(first: int, end: int, parts: int) -> tuple[tuple[int, int], ...]:
    """Layers [first, end) of each part of the backward, as even as they divide; part 0 has the last ones."""
    assert 1 <= parts <= end - first, f"{parts} parts of {end - first} layers"
    runs, stop = [], end
    for size in even_rows(end - first, parts):
        runs.append((stop - size, stop))
        stop -= size
    return tuple(runs)


def make_storage(
    spec: ModelSpec,
    layers: tuple[int, int],
    pieces: Mapping[str, Piece],
    shard: Shard,
    parts: int,
    frozen: frozenset[str],
) -> Storage:
    """Of the `pieces` of a stage with `layers` [first, end)."""
    runs = layer_runs(*layers, parts)
    place = _Placer()
    ranges = []
    for part in range(parts):
        names = [name for name in pieces if _part_of(spec, name, layers, runs) == part]
        start, ends = place.at, []
        for kind in range(3):
            for block in _blocks((name for name in names if _kind(spec, name, pieces[name], shard) == kind), frozen):
                place.put(block, pieces, part)
            ends.append(place.at)
        ranges.append(Part(start, *ends))
    tied = [name for name in pieces if _part_of(spec, name, layers, runs) == parts]
    start = place.at
    for block in _blocks(tied, frozen):
        place.put(block, pieces, parts)
    end = start + sum(block.items for block in place.blocks if block.part == parts and block.learns)
    return Storage(tuple(place.blocks), tuple(ranges), (start, end) if end > start else None, end)


class _Placer:
    """Gives blocks their places, one behind another."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.at = 0

    def put(self, found: tuple[str, tuple[str, ...], bool], pieces: Mapping[str, Piece], part: int) -> None:
        key, names, learns = found
        shapes = [pieces[name].shape for name in names]
        shape = (sum(one[0] for one in shapes), *shapes[0][1:])
        block = Block(key, names, shape, learns, part, self.at if learns else 0)
        self.blocks.append(block)
        if learns:
            self.at += -(-block.items // _ALIGNED) * _ALIGNED


def _part_of(spec: ModelSpec, name: str, layers: tuple[int, int], runs: tuple[tuple[int, int], ...]) -> int:
    """The part of the backward that completes the gradient of `name`; behind the last one, if it is tied."""
    if name.startswith("layers."):
        layer = int(name.split(".", 2)[1])
        return next(part for part, (first, end) in enumerate(runs) if first <= layer < end)
    if name == "embed.weight":
        alone = spec.tied and (layers[0] == 0) != (layers[1] == spec.layers)
        return len(runs) if alone else len(runs) - 1
    return len(runs) - 1 if name == "positions.weight" else 0


def _kind(spec: ModelSpec, name: str, piece: Piece, shard: Shard) -> int:
    """0: a norm of single heads; 1: whole on every rank; 2: a piece, or learned positions."""
    if spec.qk_norm == "head" and name.endswith(("q_norm.weight", "k_norm.weight")):
        return 0
    cut = piece.axis is not None or shard.size == 1
    return 2 if cut or name == "positions.weight" else 1


def _blocks(names: Iterable[str], frozen: frozenset[str]) -> list[tuple[str, tuple[str, ...], bool]]:
    """Keys of blocks, their names, and whether they learn; what is used as one but learns in part is two of them."""
    found: dict[str, list[str]] = {}
    for name in names:
        *prefix, short, kind = name.split(".")
        found.setdefault(".".join((*prefix, _FUSED.get(short, short), kind)), []).append(name)
    return [
        (key, tuple(run), learns)
        for key, members in found.items()
        for learns, run in groupby(members, lambda name: name not in frozen)
    ]


def owned_ranges(
    spec: ModelSpec, places: Mapping[str, tuple[int, int]], pieces: Mapping[str, Piece], shard: Shard
) -> tuple[tuple[int, int], ...]:
    """Of the flat `places`, those that a rank counts for its group, so that the group counts every parameter once.

    A piece is its rank's; a whole copy counts on the first rank; a KV head on the rank with the first of its query
    heads.
    """
    found: list[tuple[int, int]] = []
    for name, (first, end) in sorted(places.items(), key=lambda one: one[1]):
        cut = tensor_cut(spec, name)
        if cut is None or pieces[name].axis is None:
            ranges = [(first, end)] if shard.index == 0 else []
        elif cut.unit is Unit.KV_HEAD:
            width = (end - first) // max(1, shard.kv_heads.size)
            ranges = [
                (first + at * width, first + (at + 1) * width)
                for at, head in enumerate(range(*shard.kv_heads))
                if shard.heads.first <= head * (spec.heads // spec.kv_heads) < shard.heads.end
            ]
        else:
            ranges = [(first, end)]
        for start, stop in ranges:
            if found and found[-1][1] == start:
                start = found.pop()[0]
            if stop > start:
                found.append((start, stop))
    return tuple(found)
