"""A guard: weights that several ranks hold are equal to the bit, whoever updated them.

Replicas hold the same pieces; the ranks of a tensor group the same whole tensors, and some of them the same KV heads;
the first and the last stage a tied embedding. Ranks tell checksums of each kind in the exchange of the norm. Only where
these differ do they tell one of every tensor, to name it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from plait.errors import RunError
from plait.plans.layout import Layout
from plait.spec.model import ModelSpec
from plait.spec.shards import Range, Shard, Unit, make_shards, tensor_cut
from plait.spec.tensors import stage_tensors
from plait.trainer.held import HeldStage
from plait.trainer.norm import Assembly


class Among(Enum):
    """Who must hold the same."""

    REPLICAS = "its replicas"
    STAGE = "the ranks of its stage"
    HEAD = "the ranks that share it"
    TIED = "the first and the last stage"


class Column(NamedTuple):
    """What a checksum is of: tensors of a stage, or one KV head of each."""

    stage: int
    among: Among
    names: tuple[str, ...]
    head: int | None = None

    @property
    def what(self) -> str:
        """In words, where it is of one tensor."""
        head = "" if self.head is None else f", KV head {self.head},"
        return f"{self.names[0]}{head} of stage {self.stage}"


Holder = tuple[int, int]
"""A rank, and one of its stages."""


class CopyGuard:
    """Of the rank `rank` of a layout, which holds `stages`."""

    def __init__(
        self, spec: ModelSpec, layout: Layout, rank: int, stages: Mapping[int, HeldStage], assembly: Assembly
    ) -> None:
        self._spec, self._layout, self._rank, self._stages = spec, layout, rank, stages
        self._assembly = assembly
        self._shards = {
            number: make_shards(spec, layout.tp, stage.shares) for number, stage in enumerate(layout.stages)
        }
        held: dict[int, list[int]] = {}
        for number, stage in enumerate(layout.stages):
            for one in stage.ranks:
                held.setdefault(one, []).append(number)
        self._held = held

    def checksums(self) -> list[int]:
        """This rank's, as many as every rank has: zeros where it has fewer."""
        row = self._row(fine=False)
        return row + [0] * (max(self._sizes(fine=False)) - len(row))

    def check(self, rows: Sequence[Sequence[float]], step: int) -> None:
        """Of all ranks' checksums. Errors: RunError, the same on all ranks, which names what differs, and where."""
        if self._difference(rows, fine=False) is None:
            return
        rows = self._assembly.told(self._row(fine=True), self._sizes(fine=True))
        found = self._difference(rows, fine=True)
        assert found is not None, "checksums of all tensors agree, but not that of all together"
        column, values = found
        groups: dict[int, list[int]] = {}
        for rank, value in values:
            groups.setdefault(value, []).append(rank)
        held = "; ".join(f"{_ranks(ranks)} {value:08x}" for value, ranks in groups.items())
        raise RunError(
            f"step {step}: {column.what} is not the same on {column.among.value}, as it must be to the bit. "
            f"Checksums: {held}. Updates went apart, or memory is faulty: start again from the last good weights"
        )

    def _sizes(self, *, fine: bool) -> list[int]:
        """Columns of each rank."""
        return [sum(len(self._columns(number, fine)) for number in self._held[rank]) for rank in sorted(self._held)]

    def _row(self, *, fine: bool) -> list[int]:
        return [self._checksum(column) for number in self._held[self._rank] for column in self._columns(number, fine)]

    def _checksum(self, column: Column) -> int:
        """0 for a head that is another rank's."""
        values, total = self._stages[column.stage].values, 0
        for name in column.names:
            weight = values[name]
            if column.head is not None:
                weight = _head(weight, column.head, self._shard(column.stage, self._rank).kv_heads)
            total = zlib.crc32(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data, total)
        return total

    def _difference(
        self, rows: Sequence[Sequence[float]], *, fine: bool
    ) -> tuple[Column, list[tuple[int, int]]] | None:
        """The first column whose holders differ, and what (rank, checksum) they have."""
        places: dict[tuple[int, Column], int] = {}
        for rank, numbers in self._held.items():
            columns = (column for number in numbers for column in self._columns(number, fine))
            places |= {(rank, column): at for at, column in enumerate(columns)}
        for number in range(len(self._layout.stages)):
            for column in self._columns(number, fine):
                for holders in self._agreeing(column):
                    values = [
                        (rank, int(rows[rank][places[rank, column._replace(stage=stage)]])) for rank, stage in holders
                    ]
                    if len({value for _, value in values}) > 1:
                        return column, values
        return None

    def _columns(self, number: int, fine: bool) -> tuple[Column, ...]:
        """What a rank tells of a stage."""
        stage, last = self._layout.stages[number], len(self._layout.stages) - 1
        tied = self._spec.tied and last > 0 and number in (0, last)
        return _columns(self._spec, number, stage.layers, (self._layout.tp, stage.shares), tied, fine)

    def _agreeing(self, column: Column) -> Iterator[list[Holder]]:
        """The holders that must have the same."""
        number, tp = column.stage, self._layout.tp
        ranks = self._layout.stages[number].ranks
        match column.among:
            case Among.REPLICAS:
                yield from ([(rank, number) for rank in ranks[index::tp]] for index in range(tp))
            case Among.STAGE:
                yield [(rank, number) for rank in ranks]
            case Among.HEAD:
                assert column.head is not None
                held = [rank for rank in ranks if _within(column.head, self._shard(number, rank).kv_heads)]
                yield [(rank, number) for rank in held]
            case Among.TIED:
                last = len(self._layout.stages) - 1
                if number == 0:
                    pairs = zip(ranks, self._layout.stages[last].ranks, strict=True)
                    yield from ([(rank, 0), (other, last)] for rank, other in pairs)

    def _shard(self, number: int, rank: int) -> Shard:
        return self._shards[number][self._layout.stages[number].ranks.index(rank) % self._layout.tp]


@lru_cache(maxsize=256)
def _columns(
    spec: ModelSpec, number: int, layers: tuple[int, int], sharing: tuple[int, tuple[int, ...]], tied: bool, fine: bool
) -> tuple[Column, ...]:
    """Of stage `number`, whose tensor groups have so many ranks with such shares; `fine`: of each tensor alone."""
    names, shards = tuple(stage_tensors(spec, *layers)), make_shards(spec, *sharing)
    found = [Column(number, Among.REPLICAS, names)]
    if len(shards) > 1:
        found.append(Column(number, Among.STAGE, tuple(name for name in names if tensor_cut(spec, name) is None)))
    heads = tuple(name for name in names if _of_kv_heads(spec, name))
    found += [Column(number, Among.HEAD, heads, head) for head in _shared_heads(spec, shards)]
    if tied:
        found.append(Column(number, Among.TIED, ("embed.weight",)))
    return tuple(column._replace(names=(name,)) for column in found for name in column.names) if fine else tuple(found)


def _shared_heads(spec: ModelSpec, shards: Sequence[Shard]) -> list[int]:
    """KV heads that several ranks of a tensor group hold."""
    return [head for head in range(spec.kv_heads) if sum(_within(head, shard.kv_heads) for shard in shards) > 1]


def _of_kv_heads(spec: ModelSpec, name: str) -> bool:
    cut = tensor_cut(spec, name)
    return cut is not None and cut.unit is Unit.KV_HEAD


def _within(head: int, heads: Range) -> bool:
    return heads.first <= head < heads.end


def _head(weight: Tensor, head: int, heads: Range) -> Tensor:
    """One KV head of a rank's piece; nothing where it has not got it."""
    if not _within(head, heads):
        return weight[:0]
    return weight.chunk(heads.size)[head - heads.first]


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
