"""A measuring process: a model of random weights in the real shape, computed as a rank computes it.

The whole model runs as three stages, so that layers, head and what a forward costs beside them are timed apart while
each finds the caches as a step of the whole model leaves them.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle, pairwise
from math import prod
from typing import NamedTuple, cast

import msgspec
import torch

from plait.comm.shm import ShmDescription, ShmEndpoint
from plait.comm.tensor_group import EndpointGroup
from plait.nn.batch import Batch
from plait.nn.cache import KVCache
from plait.nn.decoder import StageModel
from plait.nn.dtypes import TORCH_DTYPES
from plait.nn.sampling import sample
from plait.plans.round import MicroBatch, Row
from plait.plans.sampling import SamplingParams
from plait.prober.messages import Alone, Beside, Job, Request, Timed, Work
from plait.spec.model import ModelSpec
from plait.spec.shards import Shard, even_rows, make_shards, shard_tensors, whole_shard

FEW_LAYERS = 3
"""Layers of a piece of the rest, at least. Prefill is measured on one piece at a time, each in its turn, so that its
weights have left the caches too."""

_WARM_UP = 64
"""Positions up to which a shape is computed once before it is measured: what the first time costs matters there."""


_LEAST_LAYER = 0.25
"""Of the stages' time a layer takes at least this part of an even share: the rest is what a forward takes beside."""


class Pretended:
    """The `TensorGroup` of a rank whose others are not there: what they would give is random, and there at once.

    While it is `joined` they are there: `real` is their group.
    """

    def __init__(self, shard: Shard, real: EndpointGroup | None = None) -> None:
        self.index, self.size = shard.index, shard.size
        self._made: dict[tuple[torch.Size, torch.dtype], torch.Tensor] = {}
        self._real, self._joined = real, False

    @contextmanager
    def joined(self) -> Iterator[EndpointGroup]:
        """While it is entered, the others are there."""
        assert self._real is not None, "this process measures alone"
        self._joined = True
        try:
            yield self._real
        finally:
            self._joined = False

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `nn.TensorGroup`."""
        return self._real.all_reduce(tensor) if self._joined and self._real else tensor

    def reduce_scatter(self, tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """See `nn.TensorGroup`."""
        if self._joined and self._real:
            return self._real.reduce_scatter(tensor, sizes)
        first = sum(sizes[: self.index])
        return tensor[first : first + sizes[self.index]]

    def all_gather(self, tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """See `nn.TensorGroup`."""
        if self._joined and self._real:
            return self._real.all_gather(tensor, sizes)
        shape = torch.Size((sum(sizes), *tensor.shape[1:]))
        made = self._made.get((shape, tensor.dtype))
        if made is None:
            made = self._made[shape, tensor.dtype] = torch.empty(shape, dtype=tensor.dtype)
            _fill(made)
        return made


class Part(NamedTuple):
    """A rank's part of a tensor group."""

    shard: Shard
    group: Pretended


def part_of(job: Job, spec: ModelSpec) -> Part | None:
    """What the process of a job is in a tensor group: each has the largest shard, since the group waits for that."""
    if job.tp == 1:
        return None
    largest = largest_shard(spec, job.tp, job.shares, job.dtype)
    if job.mesh is None:
        return Part(largest, Pretended(largest))
    endpoint = ShmEndpoint.attach(cast(ShmDescription, job.mesh))
    first = endpoint.rank // job.tp * job.tp
    real = EndpointGroup(endpoint, range(first, first + job.tp), record=True)
    shard = replace(largest, index=real.index)
    return Part(shard, Pretended(shard, real))


class Piece:
    """A stage of the measured model, with its cache; where there is a shard, that part of it."""

    def __init__(self, job: Job, spec: ModelSpec, first: int, end: int, part: Part | None) -> None:
        dtype = TORCH_DTYPES[job.dtype]
        shard, group = part or (None, None)
        held = shard_tensors(spec, first, end, shard or whole_shard(spec))
        tensors = {name: _random(piece.shape, dtype, name) for name, piece in held.items()}
        self.layers = end - first
        self.model = StageModel(spec, first, end, tensors, dtype, job.packed_for, shard, group, job.sequence)
        self.cache = KVCache(spec, first, end, job.slots, job.context, dtype, shard=shard)
        for layer in self.cache.layers:
            _fill(layer)

    def forward(self, batch: Batch, inputs: torch.Tensor) -> torch.Tensor:
        """See `StageModel.forward`."""
        output: torch.Tensor = self.model.forward(batch, inputs, self.cache)
        return output


class Bench:
    """The model of a job: `share` layers, and where the job has a rest, a first, a last and the layers between."""

    def __init__(self, job: Job) -> None:
        rest = max(0, job.layers - job.share - 2)
        layers = job.share + rest + 2
        windows = tuple(job.spec.windows[i % job.spec.layers] for i in range(layers))
        spec = replace(job.spec, layers=layers, windows=windows, max_positions=max(job.context, job.spec.max_positions))
        self._spec, self._dtype = spec, TORCH_DTYPES[job.dtype]
        self._part = part = part_of(job, spec)
        self._share = Piece(job, spec, 1, 1 + job.share, part)
        self._whole = job.layers > 0
        if self._whole:
            self._first, self._last = Piece(job, spec, 0, 1, part), Piece(job, spec, layers - 1, layers, part)
            cuts = list(range(1 + job.share, layers - 1 - FEW_LAYERS, FEW_LAYERS)) or ([1 + job.share] if rest else [])
            self._rest = [Piece(job, spec, *cut, part) for cut in pairwise([*cuts, layers - 1])]
            self._turns = cycle(self._rest or [self._share])

    def alone(self, request: Alone) -> list[Timed]:
        """Each work's pieces."""
        taken: list[list[tuple[float, ...]]] = [[] for _ in request.works]
        for work in request.works:
            if work.length <= _WARM_UP:
                self._step(work)
        end_s = time.perf_counter() + request.budget_s
        while len(taken[-1]) < request.least or time.perf_counter() < end_s:
            for work, times in zip(request.works, taken, strict=True):
                times.append(self._step(work))
        return [
            self._split(work, tuple(map(statistics.median, zip(*times, strict=True))))
            for work, times in zip(request.works, taken, strict=True)
        ]

    def beside(self, request: Beside) -> list[float]:
        """Seconds of one layer, each time; in a tensor group without what it exchanges."""
        micro_batch, inputs = _micro_batch(request.work), self._hidden(request.work)
        time.sleep(max(0.0, request.begin_s - time.monotonic()))
        if self._part is not None:
            with self._part.group.joined() as group:
                return self._beside_in_group(request, micro_batch, inputs, group)
        taken: list[float] = []
        while time.monotonic() < request.end_s or not taken:
            start = time.perf_counter()
            batch = Batch.of(micro_batch)
            x = self._share.forward(batch, inputs)
            taken.append((time.perf_counter() - start) / self._share.layers)
            if self._whole:
                self._last.forward(batch, x)
        return taken

    def _beside_in_group(
        self, request: Beside, micro_batch: MicroBatch, inputs: torch.Tensor, group: EndpointGroup
    ) -> list[float]:
        """All ranks of the group go on as long as one of them does."""
        taken: list[float] = []
        left = torch.ones(1)
        while left.item() > 0:
            group.take()
            start = time.perf_counter()
            self._share.forward(Batch.of(micro_batch), inputs)
            whole_s = time.perf_counter() - start
            taken.append((whole_s - sum(end - begin for begin, end in group.take()[1])) / self._share.layers)
            left = group.all_reduce(torch.full((1,), float(time.monotonic() < request.end_s)))
        return taken

    def _middle(self, work: Work) -> list[Piece]:
        return [next(self._turns)] if work.length > 1 else [self._share, *self._rest]

    def _split(self, work: Work, times: tuple[float, ...]) -> Timed:
        """What of a step is whose: `times` to make the batch, of the first stage, of those between, of the last.

        Decoding, a first stage of one layer takes h + l and n stages of m layers take n × h + m × l: h is a forward
        beside its layers, l a layer. In prefill h is nothing beside l. On a busy machine h may look like all of it.
        """
        make, first, middle, last = times
        pieces = [self._share, *self._rest]
        layers = sum(piece.layers for piece in pieces)
        if work.length > 1:
            return Timed(make, middle, last)
        if layers <= 2 * len(pieces):
            return Timed(make, middle / layers, last)
        layer = max((middle - len(pieces) * first) / (layers - len(pieces)), _LEAST_LAYER * middle / layers)
        beside = max(0.0, first - layer)
        return Timed(make + beside, layer, max(layer, last - beside))

    def _step(self, work: Work) -> tuple[float, ...]:
        """Seconds to make the batch, of the first stage, of those between, and of the last with sampling.

        In prefill one layer counts for those between.
        """
        micro_batch = _micro_batch(work)
        ids = torch.zeros(work.rows * work.length, dtype=torch.int64)
        times = [time.perf_counter()]
        batch = Batch.of(micro_batch)
        times.append(time.perf_counter())
        x = self._first.forward(batch, ids)
        times.append(time.perf_counter())
        middle = self._middle(work)
        for piece in middle:
            x = piece.forward(batch, x)
        times.append(time.perf_counter())
        logits = self._last.forward(batch, x)
        if work.samples:
            which = range(work.rows)
            sample(logits, [SamplingParams()] * work.rows, which, which, *(self._part or ()))
        times.append(time.perf_counter())
        make, first, between, last = (after - before for before, after in pairwise(times))
        return make, first, between / middle[0].layers if work.length > 1 else between, last

    def _hidden(self, work: Work) -> torch.Tensor:
        """What comes from the stage before: of a tensor group its rank's rows."""
        rows = work.rows * work.length
        if self._part is not None:
            rows = even_rows(rows, self._part.group.size)[self._part.group.index]
        return torch.randn(rows, self._spec.hidden).to(self._dtype)


def largest_shard(spec: ModelSpec, tp: int, shares: Sequence[int], weights: str) -> Shard:
    """Of a tensor group the shard with the most weights in a layer."""

    def weights_of(shard: Shard) -> int:
        return sum(prod(piece.shape) for piece in shard_tensors(spec, 1, 2, shard).values())

    return max(make_shards(spec, tp, shares, weights), key=weights_of)


def _micro_batch(work: Work) -> MicroBatch:
    return MicroBatch(tuple(Row(i, i, work.start, work.length, work.samples) for i in range(work.rows)))


def _random(shape: tuple[int, ...], dtype: torch.dtype, name: str) -> torch.Tensor:
    if "norm" in name:
        return torch.ones(shape, dtype=dtype)
    tensor = torch.empty(shape, dtype=dtype)
    _fill(tensor)
    return tensor


def _fill(tensor: torch.Tensor) -> None:
    """Small random numbers, a block of them over and over: memory that is only allocated is not read from memory."""
    flat = tensor.view(-1)
    block = (torch.randn(min(len(flat), 1 << 18), generator=torch.Generator().manual_seed(0)) * 0.02).to(tensor.dtype)
    for begin in range(0, len(flat), len(block)):
        piece = flat[begin : begin + len(block)]
        piece.copy_(block[: len(piece)])


def main() -> int:
    """Lines in, lines out: a Job, then requests until the input ends."""
    lines = iter(sys.stdin.buffer)
    job = msgspec.json.decode(next(lines), type=Job)
    torch.set_num_threads(job.threads)
    with torch.inference_mode():
        bench = Bench(job)
        _say(True)
        for line in lines:
            request = msgspec.json.decode(line, type=Request)
            _say(bench.alone(request) if isinstance(request, Alone) else bench.beside(request))
    return 0


def _say(answer: object) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
