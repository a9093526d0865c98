"""Measures the CPU that a rank drives: FLOP/s and memory bandwidth, for each dtype and number of threads.

As ranks use it, not as a data sheet says it:

    memory bandwidth    products of one row with matrices that no cache holds, as in decoding: bytes of weights a second
    FLOP/s              products of 32 and of 256 rows with the same matrices, as in prefill: what a further row takes
    beside              what operations take beside those (`prober.beside`): layers, one row and a prompt's rows

Rounds go over all of them in turn, so that what else the machine does meets all; the ranks of a mesh measure at the
same moments, as they will compute.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import torch

from plait.comm.contract import Endpoint, Group
from plait.nn.dtypes import TORCH_DTYPES
from plait.nn.linear import Linear, make_linear, packs
from plait.prober.beside import FEW_ROWS, MANY_ROWS, Layers, Products, found_beside, medians
from plait.prober.host import busy_s, our_s
from plait.prober.probe_layers import Stacks, stacks_bytes
from plait.prober.probe_messages import Compute, Computed, FoundBeside, Threads, Usage
from plait.prober.spread import Figure, figure, figure_about

DTYPES = ("float32", "bfloat16")
_SIDE = 2048
_SAMPLE_S = 0.04
_LEAST_ROUNDS, _MOST_ROUNDS = 5, 60


def weight_bytes_of(ranks: int) -> int:
    """Of each dtype in each of the ranks of a machine: together far more than caches hold."""
    return max(_LEAST_WEIGHT_BYTES, _WEIGHT_BYTES // ranks)


_WEIGHT_BYTES, _LEAST_WEIGHT_BYTES = 1 << 28, 1 << 26
_STACK_PART = 4
"""Layers of each width have a quarter of the matrices' bytes: two widths, and all are read in turn."""


def measured_bytes(ranks: int) -> int:
    """What each rank of a machine needs for all weights that it measures with."""
    weight_bytes = weight_bytes_of(ranks)
    layers = [stacks_bytes(weight_bytes // _STACK_PART, TORCH_DTYPES[dtype].itemsize) for dtype in DTYPES]
    return len(DTYPES) * weight_bytes + sum(layers)


PROCESS_BYTES = 400 << 20
"""A process with torch in it."""


def probe_device(endpoint: Endpoint, order: Compute, threads: int, cores: Sequence[int]) -> Computed:
    """Measure this rank's device, on a machine with these cores. All ranks call it at the same time."""
    began = busy_s(cores), our_s(), time.monotonic()
    with torch.inference_mode():
        device = _Device(endpoint, order.weight_bytes, thread_counts(threads))
        begin_s = time.perf_counter()
        device.round()
        taken_s = time.perf_counter() - begin_s
        device.forget()  # the first one warms up
        for _ in range(_agreed(endpoint, order.budget_s / taken_s)):
            device.round()
    torch.set_num_threads(threads)
    usage = Usage(busy_s(cores) - began[0], our_s() - began[1], time.monotonic() - began[2])
    return Computed(device.found(), usage, device.beside())


def thread_counts(most: int) -> list[int]:
    """1, 2, 4, … and `most` itself."""
    return sorted({*(1 << power for power in range(most.bit_length())), most})


def _agreed(endpoint: Endpoint, rounds: float) -> int:
    """How many rounds the ranks do: all the same, as the first says."""
    count = torch.tensor([min(_MOST_ROUNDS, max(_LEAST_ROUNDS, round(rounds)))])
    return int(endpoint.broadcast(Group(tuple(range(endpoint.size))), count, 0))


class _Device:
    """The matrices and layers, and what was found so far: samples by threads and dtype."""

    def __init__(self, endpoint: Endpoint, weight_bytes: int, counts: Sequence[int]) -> None:
        self._endpoint, self._all, self._counts = endpoint, Group(tuple(range(endpoint.size))), counts
        self._weights = {dtype: _weights(TORCH_DTYPES[dtype], weight_bytes) for dtype in DTYPES}
        self._one = {dtype: torch.ones(1, _SIDE, dtype=TORCH_DTYPES[dtype]) for dtype in DTYPES}
        self._few = {dtype: torch.ones(FEW_ROWS, _SIDE, dtype=TORCH_DTYPES[dtype]) for dtype in DTYPES}
        self._many = {dtype: torch.ones(MANY_ROWS, _SIDE, dtype=TORCH_DTYPES[dtype]) for dtype in DTYPES}
        self._stacks = {dtype: Stacks(TORCH_DTYPES[dtype], weight_bytes // _STACK_PART) for dtype in DTYPES}
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self._products: dict[tuple[int, str], list[Products]] = {}
        self._layers: dict[str, list[Layers]] = {}

    def round(self) -> None:
        """One sample of everything."""
        for threads in self._counts:
            torch.set_num_threads(threads)
            for dtype in DTYPES:
                self._products.setdefault((threads, dtype), []).append(self._products_s(dtype))
                if threads == self._counts[-1]:
                    self._layers.setdefault(dtype, []).append(self._layers_s(dtype))

    def found(self) -> list[Threads]:
        """Medians and spreads."""
        return [
            Threads(
                threads,
                {dtype: self._flops(threads, dtype) for dtype in DTYPES},
                {dtype: figure(self._reads(threads, dtype)) for dtype in DTYPES},
            )
            for threads in self._counts
        ]

    def beside(self) -> dict[str, FoundBeside]:
        """What operations take beside, with all threads: medians and spreads."""
        return {
            dtype: found_beside(self._products[self._counts[-1], dtype], layers, TORCH_DTYPES[dtype].itemsize)
            for dtype, layers in self._layers.items()
        }

    def _flops(self, threads: int, dtype: str) -> Figure:
        products = self._products[threads, dtype]
        return figure_about(medians(products).flops, [one.flops for one in products])

    def _reads(self, threads: int, dtype: str) -> list[float]:
        """Bytes/s of weights."""
        weight_bytes = _SIDE * _SIDE * TORCH_DTYPES[dtype].itemsize
        return [weight_bytes / one.one_s for one in self._products[threads, dtype]]

    def _products_s(self, dtype: str) -> Products:
        """Products of one row, of few and of many."""
        weights = self._weights[dtype]
        return Products(
            _SIDE * _SIDE,
            *(self._product_s(weights, rows[dtype]) for rows in (self._one, self._few, self._many)),
        )

    def _layers_s(self, dtype: str) -> Layers:
        """Layers of both widths, while the other ranks do the same."""
        taken = []
        stacks = self._stacks[dtype]
        for measure in (stacks.small_s, stacks.large_s, stacks.prompt_s):
            self._endpoint.barrier(self._all)
            taken.append(measure(_SAMPLE_S))
        return Layers(*taken)

    def _product_s(self, weights: Sequence[Linear], rows: torch.Tensor) -> float:
        """Seconds of a product, one matrix after the other, while the other ranks do the same."""
        weights[-1](rows)  # wakes the threads
        self._endpoint.barrier(self._all)
        taken, begin_s = list[float](), time.perf_counter()
        while not taken or time.perf_counter() - begin_s < _SAMPLE_S:
            matrix, start_s = weights[len(taken) % len(weights)], time.perf_counter()
            matrix(rows)
            taken.append(time.perf_counter() - start_s)
        return statistics.median(taken)  # of a mean, one interruption by others makes most


def _weights(dtype: torch.dtype, weight_bytes: int) -> list[Linear]:
    """Matrices [side, side] in the layout of a decoding rank."""
    packed = packs(dtype, torch.device("cpu"), 1)
    count = max(2, weight_bytes // (_SIDE * _SIDE * dtype.itemsize))
    return [make_linear(torch.full((_SIDE, _SIDE), 0.01, dtype=dtype), None, packed) for _ in range(count)]
