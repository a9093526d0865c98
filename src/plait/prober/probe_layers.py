"""Layers as ranks compute them, of random weights that no cache holds, timed beside a device's products.

A forward of one layer takes what a forward takes beside its layers, and a layer; one of n layers takes n of them. Both
in turn, and the difference ÷ (n - 1) is a layer, whose weights the others have driven out of the caches.
"""

from __future__ import annotations

import statistics
import time
from math import prod

import torch

from plait.nn.batch import Batch
from plait.nn.cache import KVCache
from plait.nn.decoder import StageModel
from plait.plans.round import MicroBatch, Row
from plait.prober.beside import CACHED, LARGE, PROMPT_ROWS, SMALL, layer_of
from plait.spec.shards import shard_tensors, whole_shard
from plait.spec.tensors import layer_tensors

_LEAST_LAYERS = 4
_CONTEXT = 192
_LEAST_S = 1e-9


class Stack:
    """Layers of one width on this rank, `stack_bytes` of them at least."""

    def __init__(self, hidden: int, dtype: torch.dtype, stack_bytes: int) -> None:
        count = max(_LEAST_LAYERS, -(-stack_bytes // (layer_values(hidden) * dtype.itemsize)))
        self._count, self._hidden, self._dtype = count, hidden, dtype
        self._all, self._one = _Stage(hidden, count, dtype), _Stage(hidden, 1, dtype)

    def layer_s(self, length: int, sample_s: float) -> float:
        """Seconds of one layer for so many positions of one request, measured for about `sample_s`."""
        start = CACHED if length == 1 else 0
        batch = Batch.of(MicroBatch((Row(0, 0, start, length, False),)))
        inputs = torch.ones(length, self._hidden, dtype=self._dtype)
        taken, end_s = list[float](), time.perf_counter() + sample_s
        while not taken or time.perf_counter() < end_s:
            begin_s = time.perf_counter()
            self._all.forward(batch, inputs)
            between_s = time.perf_counter()
            self._one.forward(batch, inputs)
            taken.append(2 * between_s - begin_s - time.perf_counter())
        return max(_LEAST_S, statistics.median(taken) / (self._count - 1))


class Stacks:
    """The small and the large layers in one dtype."""

    def __init__(self, dtype: torch.dtype, stack_bytes: int) -> None:
        self._small, self._large = (Stack(spec.hidden, dtype, stack_bytes) for spec in (SMALL, LARGE))

    def small_s(self, sample_s: float) -> float:
        """Of a small layer, one row."""
        return self._small.layer_s(1, sample_s)

    def large_s(self, sample_s: float) -> float:
        """Of a large layer, one row."""
        return self._large.layer_s(1, sample_s)

    def prompt_s(self, sample_s: float) -> float:
        """Of a large layer, a prompt's rows."""
        return self._large.layer_s(PROMPT_ROWS, sample_s)


def layer_values(hidden: int) -> int:
    """Numbers of one layer of this width."""
    return sum(map(prod, layer_tensors(layer_of(hidden, 1)).values()))


def stacks_bytes(stack_bytes: int, item_bytes: int) -> int:
    """Bytes of the layers of one dtype, at most."""
    each = [layer_values(spec.hidden) * item_bytes for spec in (SMALL, LARGE)]
    return sum(max(_LEAST_LAYERS * one, stack_bytes + one) + one for one in each)


class _Stage:
    """Layers between the first and the last of a model, with a cache of one request."""

    def __init__(self, hidden: int, layers: int, dtype: torch.dtype) -> None:
        spec = layer_of(hidden, layers + 2)
        held = shard_tensors(spec, 1, 1 + layers, whole_shard(spec))
        tensors = {name: torch.full(piece.shape, 0.01, dtype=dtype) for name, piece in held.items()}
        self._model = StageModel(spec, 1, 1 + layers, tensors, dtype)
        self._cache = KVCache(spec, 1, 1 + layers, 1, _CONTEXT, dtype)
        for layer in self._cache.layers:
            layer.zero_()

    def forward(self, batch: Batch, inputs: torch.Tensor) -> None:
        """Through all layers."""
        self._model.forward(batch, inputs, self._cache)
