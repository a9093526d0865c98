"""A rank that exchanges between computations, and measures it.

Ranks that exchange wait for the one that computes longest. So collectives are measured where they stand: ranks compute
as a layer does, and exchange what comes out. Their bytes grow with the rows that are computed, as in a layer.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence

import msgspec
import torch

from plait.comm.contract import Endpoint, Group
from plait.comm.tensor_group import EndpointGroup
from plait.costs.curves import Curve
from plait.costs.exchange_times import ExchangeTimes
from plait.nn.dtypes import TORCH_DTYPES
from plait.nn.linear import Linear, make_linear, packs
from plait.plans.exchanges import Op
from plait.prober.ranks import this_rank
from plait.spec.shards import even_rows

_HIDDEN, _COLUMNS, _PAIRS = 576, 1536, 16
_MOST_TURNS, _LEAST_TURNS, _TURN_ROWS = 48, 3, 512
_BLOCKS = 5

Block = Callable[[Op], float]
"""Seconds that a collective takes behind a computation, with the wait for the others: the mean of many."""


def exchange_times(block_of: Callable[[int], Block], row_bytes: int, rows: Sequence[int]) -> ExchangeTimes:
    """What each collective takes, over its bytes: the median of several blocks, between which all take turns."""
    found: dict[Op, list[float]] = {op: [] for op in Op}
    for count in rows:
        block = block_of(count)
        taken = [{op: block(op) for op in Op} for _ in range(1 + _BLOCKS)][1:]  # the first warms up
        for op, values in found.items():
            values.append(statistics.median(one[op] for one in taken))
    at = tuple(float(count * row_bytes) for count in rows)
    curves = [Curve(at, tuple(found[op])) for op in (Op.ALL_REDUCE, Op.REDUCE_SCATTER, Op.ALL_GATHER)]
    return ExchangeTimes(*curves)


class Layers:
    """One rank's computing: pairs of products, as many that they come from memory, and a collective behind each."""

    def __init__(self, endpoint: Endpoint, dtype: torch.dtype) -> None:
        ranks = tuple(range(endpoint.size))
        self._endpoint, self._all = endpoint, Group(ranks)
        self.group = EndpointGroup(endpoint, ranks, record=True)
        columns = _COLUMNS // endpoint.size
        self.pairs = [(_product(columns, _HIDDEN, dtype), _product(_HIDDEN, columns, dtype)) for _ in range(_PAIRS)]
        self._dtype = dtype

    def block_of(self, rows: int) -> Block:
        """How a block of so many rows is computed."""
        x = torch.ones(rows, _HIDDEN, dtype=self._dtype)
        turns = min(_MOST_TURNS, max(_LEAST_TURNS, _TURN_ROWS // rows))
        return lambda op: self._block(x, op, turns)

    def _block(self, x: torch.Tensor, op: Op, turns: int) -> float:
        """The mean of all ranks, which compute at the same time."""
        self._endpoint.barrier(self._all)
        self.group.take()
        for turn in range(turns):
            first, second = self.pairs[turn % len(self.pairs)]
            self._exchange(op, second(first(x)))
        taken_s = sum(end - begin for begin, end in self.group.take()[1])
        total = self._endpoint.all_reduce(self._all, torch.tensor([taken_s / turns], dtype=torch.float64))
        return float(total) / self._endpoint.size

    def _exchange(self, op: Op, result: torch.Tensor) -> None:
        group, sizes = self.group, even_rows(len(result), self.group.size)
        if op is Op.ALL_REDUCE:
            group.all_reduce(result)
        elif op is Op.REDUCE_SCATTER:
            group.reduce_scatter(result, sizes)
        else:
            group.all_gather(result[: sizes[group.index]], sizes)


def _product(outputs: int, inputs: int, dtype: torch.dtype) -> Linear:
    return make_linear(torch.full((outputs, inputs), 0.01, dtype=dtype), None, packs(dtype, torch.device("cpu"), 1))


def main() -> int:
    """One of the ranks: its arguments are what `this_rank` needs, its dtype, and how many rows to measure."""
    endpoint, dtype, rows = this_rank(), TORCH_DTYPES[sys.argv[3]], [int(count) for count in sys.argv[4:]]
    with torch.inference_mode():
        times = exchange_times(Layers(endpoint, dtype).block_of, _HIDDEN * dtype.itemsize, rows)
    sys.stdout.buffer.write(msgspec.json.encode(times))
    endpoint.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
