"""What operations take beside their FLOP and bytes, from the seconds of products and of layers: two straight lines.

A product's seconds are a line over its rows:

    seconds = weight reads · seconds of one row + rows · 2 · in · out / (FLOP/s)

and a layer's are linear in what of it is counted:

    seconds = operations · operation_s + bytes of weights and caches ÷ memory's rate + bytes of activations ÷ their rate

Three layers (a small and a large one with one row, the large one with many) give the three unknowns of the second; of
these the memory's rate is not used, since products measure it better.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from plait.costs.forward import Rows, Sizes, forward_operations
from plait.costs.operations import Operation
from plait.costs.shares import whole
from plait.prober.probe_messages import FoundBeside
from plait.prober.spread import figure_about
from plait.spec.model import ModelSpec, Rope

FEW_ROWS, MANY_ROWS = 32, 256
"""Rows of the products that the first line goes through. Fewer than few are done in other ways."""

CACHED, PROMPT_ROWS = 63, 128
"""Positions before the one row of a layer, and the rows of one that begins a prompt."""

_LEAST_S, _LEAST_READS = 1e-9, 1e-3
_MOST_GAIN = 4.0
"""FLOP/s beyond so many times those of many rows are not believed: then the few rows were disturbed."""


def layer_of(hidden: int, layers: int) -> ModelSpec:
    """A model of usual layers, of heads of 64 dimensions, two of which share keys and values."""
    heads = hidden // 64
    inner = hidden * 11 // 4
    return ModelSpec(
        "layers", "llama", layers, hidden, heads, heads // 2, 64, inner, 64, 512, 1e-5, Rope(1e4, 64), (None,) * layers
    )


SMALL, LARGE = layer_of(256, 1), layer_of(512, 1)
"""Small enough to be measured beside anything, and large enough that their weights are most of what a layer takes."""


class Products(NamedTuple):
    """Seconds of products with one matrix [out, in] of `weights` numbers: of one row, of few and of many."""

    weights: int
    one_s: float
    few_s: float
    many_s: float

    @property
    def row_s(self) -> float:
        """Of each further row."""
        least = self.many_s / MANY_ROWS / _MOST_GAIN
        return max(least, (self.many_s - self.few_s) / (MANY_ROWS - FEW_ROWS))

    @property
    def flops(self) -> float:
        """FLOP/s of further rows."""
        return 2 * self.weights / self.row_s

    @property
    def weight_reads(self) -> float:
        """What comes before them, in products of one row."""
        return max(_LEAST_READS, (self.few_s - FEW_ROWS * self.row_s) / self.one_s)


class Layers(NamedTuple):
    """Seconds of a layer: the small one and the large one for one row, and the large one for a prompt's."""

    small_s: float
    large_s: float
    prompt_s: float


def medians(samples: Sequence[Seconds]) -> Seconds:
    """Of each of the seconds."""
    return type(samples[0])(*map(statistics.median, zip(*samples, strict=True)))


def found_beside(products: Sequence[Products], layers: Sequence[Layers], item_bytes: int) -> FoundBeside:
    """Figures from the medians over all rounds; by how much those of single rounds vary is their spread."""
    whole = fit(medians(products), medians(layers), item_bytes)
    rounds = [fit(*each, item_bytes) for each in zip(products, layers, strict=True)]
    return FoundBeside(
        figure_about(whole.operation_s, [one.operation_s for one in rounds]),
        figure_about(whole.weight_reads, [one.weight_reads for one in rounds]),
        figure_about(whole.activation_bytes_per_s, [one.activation_bytes_per_s for one in rounds]),
    )


class Fitted(NamedTuple):
    """As `spec.cluster.Beside` has them."""

    operation_s: float
    weight_reads: float
    activation_bytes_per_s: float


def fit(products: Products, layers: Layers, item_bytes: int) -> Fitted:
    """The figures with which the formulas of `costs` give back these seconds, as near as figures of no sign do."""
    read_s = products.one_s / (products.weights * item_bytes)
    small, large, prompt = (_operations(*one, item_bytes) for one in _MEASURED)
    counted = np.array([_counts(small), _counts(large), _counts(prompt)])
    known_s = sum(_product_s(one, products, read_s) for one in prompt if one.kind != "memory")
    counted[2, 1] = 0.0  # what the prompt's products and attention take is known
    seconds = np.array([layers.small_s, layers.large_s, layers.prompt_s - known_s])
    operation_s, _, pass_s = np.linalg.solve(counted, seconds)
    slowest_s = layers.prompt_s / counted[2, 2]
    pass_s = min(max(pass_s, read_s), slowest_s)
    return Fitted(max(_LEAST_S, float(operation_s)), products.weight_reads, 1 / float(pass_s))


Seconds = TypeVar("Seconds", Products, Layers)

_MEASURED = ((SMALL, Rows(1, 1, CACHED)), (LARGE, Rows(1, 1, CACHED)), (LARGE, Rows(1, PROMPT_ROWS, 0)))


def _operations(spec: ModelSpec, rows: Rows, item_bytes: int) -> tuple[Operation, ...]:
    return forward_operations(spec, 0, (rows,), whole(spec), Sizes(item_bytes, item_bytes))


def _counts(operations: Sequence[Operation]) -> tuple[float, float, float]:
    """How many there are, bytes of weights and caches, bytes of activations."""
    passed = sum(one.moved_bytes for one in operations if one.kind == "memory")
    return len(operations), sum(one.moved_bytes for one in operations) - passed, passed


def _product_s(one: Operation, products: Products, read_s: float) -> float:
    """As `costs.profiles` has it, but for `operation_s`."""
    moved_s, done_s = one.moved_bytes * read_s, one.flops / products.flops
    if one.kind == "matmul":
        weights = one.columns * one.inner
        part = weights / (weights + one.rows * (one.columns + one.inner))
        done_s += products.weight_reads * moved_s * part
    return max(done_s, moved_s)
