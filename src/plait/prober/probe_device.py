"""Measures the CPU that a rank drives: FLOP/s and memory bandwidth, for each dtype and number of threads.

As ranks use it, not as a data sheet says it:

    memory bandwidth    products of one row with matrices that no cache holds, as in decoding: bytes of weights a second
    FLOP/s              products of many rows with the same matrices, as in prefill: 2 · rows · in · out each

Rounds go over all of them in turn, so that what else the machine does meets all; the ranks of a mesh measure at the
same moments, as they will compute.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from plait.comm.contract import Endpoint, Group
from plait.nn.dtypes import TORCH_DTYPES
from plait.nn.linear import Linear, make_linear, packs
from plait.prober.host import busy_s, our_s
from plait.prober.probe_messages import Compute, Computed, Threads, Usage
from plait.prober.spread import figure

DTYPES = ("float32", "bfloat16")
_SIDE, _ROWS = 2048, 256
_SAMPLE_S = 0.04
_LEAST_ROUNDS, _MOST_ROUNDS = 5, 60


def weight_bytes_of(ranks: int) -> int:
    """Of each dtype in each of the ranks of a machine: together far more than caches hold."""
    return max(_LEAST_WEIGHT_BYTES, _WEIGHT_BYTES // ranks)


_WEIGHT_BYTES, _LEAST_WEIGHT_BYTES = 1 << 28, 1 << 26
PROCESS_BYTES = 400 << 20
"""A process with torch in it."""


def probe_device(endpoint: Endpoint, order: Compute, threads: int, cores: Sequence[int]) -> Computed:
    """Measure this rank's device, on a machine with these cores. All ranks call it at the same time."""
    began = busy_s(cores), our_s(), time.monotonic()
    device = _Device(endpoint, order.weight_bytes, thread_counts(threads))
    with torch.inference_mode():
        begin_s = time.perf_counter()
        device.round()
        taken_s = time.perf_counter() - begin_s
        device.forget()  # the first one warms up
        for _ in range(_agreed(endpoint, order.budget_s / taken_s)):
            device.round()
    torch.set_num_threads(threads)
    usage = Usage(busy_s(cores) - began[0], our_s() - began[1], time.monotonic() - began[2])
    return Computed(device.found(), usage)


def thread_counts(most: int) -> list[int]:
    """1, 2, 4, … and `most` itself."""
    return sorted({*(1 << power for power in range(most.bit_length())), most})


def _agreed(endpoint: Endpoint, rounds: float) -> int:
    """How many rounds the ranks do: all the same, as the first says."""
    count = torch.tensor([min(_MOST_ROUNDS, max(_LEAST_ROUNDS, round(rounds)))])
    return int(endpoint.broadcast(Group(tuple(range(endpoint.size))), count, 0))


class _Device:
    """The matrices, and what was found so far: samples by threads and dtype."""

    def __init__(self, endpoint: Endpoint, weight_bytes: int, counts: Sequence[int]) -> None:
        self._endpoint, self._all, self._counts = endpoint, Group(tuple(range(endpoint.size))), counts
        self._weights = {dtype: _weights(TORCH_DTYPES[dtype], weight_bytes) for dtype in DTYPES}
        self._one = {dtype: torch.ones(1, _SIDE, dtype=TORCH_DTYPES[dtype]) for dtype in DTYPES}
        self._many = {dtype: torch.ones(_ROWS, _SIDE, dtype=TORCH_DTYPES[dtype]) for dtype in DTYPES}
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self._reads: dict[tuple[int, str], list[float]] = {}
        self._flops: dict[tuple[int, str], list[float]] = {}

    def round(self) -> None:
        """One sample of everything."""
        for threads in self._counts:
            torch.set_num_threads(threads)
            for dtype in DTYPES:
                item_bytes = TORCH_DTYPES[dtype].itemsize
                read = self._products_per_s(self._weights[dtype], self._one[dtype]) * _SIDE * _SIDE * item_bytes
                done = self._products_per_s(self._weights[dtype], self._many[dtype]) * 2 * _ROWS * _SIDE * _SIDE
                self._reads.setdefault((threads, dtype), []).append(read)
                self._flops.setdefault((threads, dtype), []).append(done)

    def found(self) -> list[Threads]:
        """Medians and spreads."""
        return [
            Threads(
                threads,
                {dtype: figure(self._flops[threads, dtype]) for dtype in DTYPES},
                {dtype: figure(self._reads[threads, dtype]) for dtype in DTYPES},
            )
            for threads in self._counts
        ]

    def _products_per_s(self, weights: Sequence[Linear], rows: torch.Tensor) -> float:
        """Products a second, one matrix after the other, while the other ranks do the same."""
        weights[-1](rows)  # wakes the threads
        self._endpoint.barrier(self._all)
        count, begin_s = 0, time.perf_counter()
        while not count or time.perf_counter() - begin_s < _SAMPLE_S:
            weights[count % len(weights)](rows)
            count += 1
        return count / (time.perf_counter() - begin_s)


def _weights(dtype: torch.dtype, weight_bytes: int) -> list[Linear]:
    """Matrices [side, side] in the layout of a decoding rank."""
    packed = packs(dtype, torch.device("cpu"), 1)
    count = max(2, weight_bytes // (_SIDE * _SIDE * dtype.itemsize))
    return [make_linear(torch.full((_SIDE, _SIDE), 0.01, dtype=dtype), None, packed) for _ in range(count)]
