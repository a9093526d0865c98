"""Stages whose layers are shared by ranks, each a thread with its own endpoint; every exchange is written down."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import TypeVar

import torch
from torch import Tensor

from plait.comm.contract import Endpoint
from plait.comm.tensor_group import EndpointGroup
from plait.comm.threads import thread_mesh
from plait.nn.batch import Batch
from plait.nn.cache import KVCache
from plait.nn.decoder import StageModel
from plait.nn.sampling import sample
from plait.plans.exchanges import Collective, Op, forward_bytes, forward_exchanges
from plait.plans.layout import Layout, Stage
from plait.plans.round import MicroBatch, Row
from plait.plans.sampling import SamplingParams
from plait.spec.model import ModelSpec
from plait.spec.shards import Piece, Shard, even_rows, make_shards, shard_tensors

from .models import Tiny
from .splits import Told

T = TypeVar("T")
DTYPES = {torch.float64: "float64", torch.float32: "float32", torch.bfloat16: "bfloat16"}


def at_once(calls: Sequence[Callable[[], T]], endpoints: Sequence[Endpoint]) -> list[T]:
    """What each rank's call returns, all called at the same time; the first rank's error."""
    found: dict[int, T] = {}
    errors: list[Exception] = []

    def run(rank: int) -> None:
        try:
            found[rank] = calls[rank]()
        except Exception as error:
            errors.append(error)
            endpoints[rank].fail(repr(error))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [found[rank] for rank in range(len(calls))]


@dataclass
class Recorder:
    """A rank's group; `seen` are the exchanges it has called since they were last cleared."""

    group: EndpointGroup
    seen: list[tuple[Op, int, int, int, tuple[int, ...]]] = field(default_factory=list)

    @property
    def index(self) -> int:
        return self.group.index

    @property
    def size(self) -> int:
        return self.group.size

    def _note(self, op: Op, tensor: Tensor, rows: int, sizes: Sequence[int]) -> None:
        self.seen.append((op, rows, prod(tensor.shape[1:]), tensor.element_size(), tuple(sizes)))

    def all_reduce(self, tensor: Tensor) -> Tensor:
        self._note(Op.ALL_REDUCE, tensor, tensor.shape[0], ())
        return self.group.all_reduce(tensor)

    def reduce_scatter(self, tensor: Tensor, sizes: Sequence[int]) -> Tensor:
        self._note(Op.REDUCE_SCATTER, tensor, tensor.shape[0], sizes)
        return self.group.reduce_scatter(tensor, sizes)

    def all_gather(self, tensor: Tensor, sizes: Sequence[int]) -> Tensor:
        assert tensor.shape[0] == sizes[self.index]
        self._note(Op.ALL_GATHER, tensor, sum(sizes), sizes)
        return self.group.all_gather(tensor, sizes)


def noted(one: Collective, tp: int) -> tuple[Op, int, int, int, tuple[int, ...]]:
    """An exchange of the rule, as a `Recorder` writes it down."""
    sizes = () if one.op is Op.ALL_REDUCE else even_rows(one.rows, tp) if one.even else (one.rows // tp,) * tp
    return one.op, one.rows, one.row_items, one.item_bytes, sizes


def taken(tensor: Tensor, piece: Piece) -> Tensor:
    """A rank's piece of a whole tensor."""
    return tensor if piece.axis is None else tensor.narrow(piece.axis, piece.first, piece.end - piece.first).clone()


class Group:
    """The ranks of one stage."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.shards = shards
        self.endpoints = thread_mesh(len(shards), 2)
        self.groups = [Recorder(EndpointGroup(endpoint, range(len(shards)))) for endpoint in self.endpoints]

    def run(self, call: Callable[[int], T]) -> list[T]:
        """`call` of every rank at the same time."""
        return at_once([lambda rank=rank: call(rank) for rank in range(len(self.shards))], self.endpoints)  # type: ignore[misc]

    def sent_bytes(self) -> tuple[int, ...]:
        ranks = range(len(self.shards))
        return tuple(
            sum(self.endpoints[rank].traffic(to).payload_bytes for to in ranks if to != rank) for rank in ranks
        )

    def sample(
        self, logits: Tensor, params: Sequence[SamplingParams], requests: Sequence[int], positions: Sequence[int]
    ) -> list[Tensor]:
        """What every rank draws, of whole `logits` that are cut here."""
        return self.run(
            lambda rank: sample(
                logits[:, slice(*self.shards[rank].vocab)].clone(),
                params,
                requests,
                positions,
                self.shards[rank],
                self.groups[rank],
            )
        )


class SharedSplit:
    """The stages of `model`, each shared by `tp` ranks, and their caches. Checks what each forward exchanged."""

    def __init__(
        self,
        model: Tiny,
        cut: Sequence[int],
        dtype: torch.dtype,
        tp: int,
        *,
        shares: Sequence[int] = (),
        sequence: bool = False,
        rows: int = 1,
        slots: int = 4,
    ) -> None:
        spec = self.spec = model.spec
        self.layout = Layout(
            {"pp": len(cut) + 1, "tp": tp},
            tuple(
                Stage(layers, tuple(range(number * tp, number * tp + tp)), DTYPES[dtype], shares=tuple(shares))
                for number, layers in enumerate(pairwise((0, *cut, spec.layers)))
            ),
            sequence=sequence,
        )
        shards = make_shards(spec, tp, shares)
        self.stages = [Group(shards) for _ in self.layout.stages]
        self.models: list[list[StageModel]] = []
        self.caches: list[list[KVCache]] = []
        for group, stage in zip(self.stages, self.layout.stages, strict=True):
            self.models.append(
                [
                    StageModel(
                        spec,
                        *stage.layers,
                        pieces(model, shard, stage.layers, dtype),
                        dtype,
                        rows,
                        shard,
                        group.groups[shard.index],
                        sequence,
                    )
                    for shard in shards
                ]
            )
            self.caches.append([KVCache(spec, *stage.layers, slots, 96, dtype, shard=shard) for shard in shards])

    def forward(self, rows: Sequence[Row], ids: Tensor) -> Tensor:
        """Whole logits: what the ranks of the last stage have, side by side."""
        micro_batch = MicroBatch(tuple(rows))
        inputs = [ids] * self.layout.tp
        for number in range(len(self.stages)):
            inputs = self._stage(number, micro_batch, inputs)
        return torch.cat(inputs, dim=1)

    def _stage(self, number: int, micro_batch: MicroBatch, inputs: list[Tensor]) -> list[Tensor]:
        group, batch = self.stages[number], Batch.of(micro_batch)
        before = group.sent_bytes()
        for recorder in group.groups:
            recorder.seen.clear()
        given = [one.clone() for one in inputs]
        out = group.run(lambda r: self.models[number][r].forward(batch, inputs[r], self.caches[number][r]))
        assert all(map(torch.equal, given, inputs)), "a stage has written into its inputs"
        if number == len(self.stages) - 1 and micro_batch.sampled:
            which = list(range(micro_batch.sampled))
            ids = group.run(
                lambda r: sample(
                    out[r], [SamplingParams()] * len(which), which, which, group.shards[r], group.groups[r]
                )
            )
            assert all(torch.equal(one, torch.cat(out, dim=1).argmax(-1)) for one in ids)
        self._check_exchanges(number, micro_batch, before)
        return out

    def _check_exchanges(self, number: int, micro_batch: MicroBatch, before: tuple[int, ...]) -> None:
        rule = [noted(one, self.layout.tp) for one in forward_exchanges(self.spec, self.layout, number, micro_batch)]
        for recorder in self.stages[number].groups:
            assert recorder.seen == rule
        sent = tuple(now - then for now, then in zip(self.stages[number].sent_bytes(), before, strict=True))
        assert sent == forward_bytes(self.spec, self.layout, number, micro_batch)

    def run(self, sequences: Sequence[Told], sampled: Callable[[Told, Row], bool]) -> dict[tuple[int, int], Tensor]:
        """Logits by (slot, position), at the end of every piece that is `sampled`."""
        found: dict[tuple[int, int], Tensor] = {}
        for number in range(max(one.begins + len(one.pieces) for one in sequences)):
            rows, ids = [], []
            for one in sorted(sequences, key=lambda one: one.slot):
                if one.begins <= number < one.begins + len(one.pieces):
                    row = one.rows()[number - one.begins]
                    rows.append(row._replace(samples=sampled(one, row)))
                    ids.append(one.ids[row.start : row.start + row.length])
            if rows:
                logits = self.forward(rows, torch.cat(ids))
                ends = [(row.slot, row.start + row.length - 1) for row in rows if row.samples]
                found |= dict(zip(ends, logits, strict=True))
        return found


def pieces(model: Tiny, shard: Shard, layers: tuple[int, int], dtype: torch.dtype) -> dict[str, Tensor]:
    """A rank's pieces of a stage, as the loader would hand them over."""
    spec: ModelSpec = model.spec
    return {
        name: taken(model.tensors[name].to(dtype), piece) for name, piece in shard_tensors(spec, *layers, shard).items()
    }
