"""Measures what the ranks of a tensor group exchange on this host, between computations, and keeps the answer.

Ranks that exchange wait for the one that computes longest, and come back to other caches. So collectives are measured
where they stand: ranks compute as a layer does, with a collective behind each pair of products and without, and the
difference is what it takes. Its bytes grow with the rows that are computed, as in a layer.
"""

from __future__ import annotations

import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from plait.costs.curves import Curve
from plait.costs.exchange_times import ExchangeTimes
from plait.plans.exchanges import Op
from plait.plans.rules import DTYPE_BYTES
from plait.prober.host import cpu_model, usable_cores
from plait.prober.kept import kept
from plait.spec.shards import even_rows

if TYPE_CHECKING:
    import torch

    from plait.comm.contract import Endpoint
    from plait.nn.group import TensorGroup
    from plait.nn.linear import Linear

_FORMAT = 1
"""Counts up when what is measured changes: older files are measured again."""

_HIDDEN, _COLUMNS, _PAIRS = 576, 1536, 16
_ROWS: Mapping[int, int] = {1: 48, 4: 32, 16: 16, 64: 8, 512: 3}
"""Rows that are computed, and how many exchanges of so many a block has."""
_BLOCKS = 5

Block = Callable[[Op | None], float]
"""Seconds from one exchange to the next, with this collective or with none."""


def measure_exchanges(
    threads: int, tp: int, dtype: str, *, all_threads: int | None = None, fresh: bool = False
) -> ExchangeTimes:
    """Seconds of collectives among `tp` processes of this host, of `threads` threads each, between computations.

    `all_threads` compute in the whole plan. Kept in the user's cache directory; `fresh` measures again.
    """
    cores = usable_cores()
    all_threads = max(tp * threads, all_threads or 0)
    crowded = all_threads > cores
    host = f"{platform.node()} {cpu_model()} {cores} {threads} {tp} {dtype} {crowded} {_FORMAT}"
    return kept("exchanges", host, ExchangeTimes, lambda: _measure(threads, tp, dtype, all_threads), fresh=fresh)


def _measure(threads: int, tp: int, dtype: str, all_threads: int, rows: Sequence[int] = tuple(_ROWS)) -> ExchangeTimes:
    from plait.prober.ranks import run_ranks

    said = run_ranks(__name__, tp, threads, all_threads, [dtype, *map(str, rows)])
    return msgspec.json.decode(said, type=ExchangeTimes)


def exchange_times(block_of: Callable[[int], Block], row_bytes: int, rows: Sequence[int]) -> ExchangeTimes:
    """What each collective adds to a block, over its bytes: the median of several blocks, each with all of them."""
    added: dict[Op, list[float]] = {op: [] for op in Op}
    for count in rows:
        block = block_of(count)
        taken = [_added(block) for _ in range(1 + _BLOCKS)][1:]  # the first warms up
        for op, values in added.items():
            values.append(max(0.0, statistics.median(one[op] for one in taken)))
    at = tuple(float(count * row_bytes) for count in rows)
    curves = [Curve(at, tuple(added[op])) for op in (Op.ALL_REDUCE, Op.REDUCE_SCATTER, Op.ALL_GATHER)]
    return ExchangeTimes(*curves)


def _added(block: Block) -> dict[Op, float]:
    without_s = block(None)
    return {op: block(op) - without_s for op in Op}


class Layers:
    """One rank's computing: pairs of products, as many that they come from memory, and a collective behind each."""

    def __init__(self, endpoint: Endpoint, dtype: torch.dtype) -> None:
        import torch

        from plait.comm.contract import Group
        from plait.comm.tensor_group import EndpointGroup

        ranks = tuple(range(endpoint.size))
        self._endpoint, self._all = endpoint, Group(ranks)
        self._group: TensorGroup = EndpointGroup(endpoint, ranks, record=True)
        columns = _COLUMNS // endpoint.size
        self._pairs = [(_product(columns, _HIDDEN, dtype), _product(_HIDDEN, columns, dtype)) for _ in range(_PAIRS)]
        self._input = torch.ones(max(_ROWS), _HIDDEN, dtype=dtype)

    def block_of(self, rows: int) -> Block:
        """How blocks of so many rows are computed."""
        return lambda op: self._block(rows, op)

    def _block(self, rows: int, op: Op | None) -> float:
        """Seconds a turn; without a collective the mean of all ranks, which compute at the same time."""
        x, turns = self._input[:rows], _ROWS[rows]
        self._endpoint.barrier(self._all)
        start = time.perf_counter()
        for turn in range(turns):
            first, second = self._pairs[turn % _PAIRS]
            self._exchange(op, second(first(x)))
        return self._mean((time.perf_counter() - start) / turns)

    def _exchange(self, op: Op | None, result: torch.Tensor) -> None:
        group, sizes = self._group, even_rows(len(result), self._group.size)
        if op is Op.ALL_REDUCE:
            group.all_reduce(result)
        elif op is Op.REDUCE_SCATTER:
            group.reduce_scatter(result, sizes)
        elif op is Op.ALL_GATHER:
            group.all_gather(result[: sizes[group.index]], sizes)

    def _mean(self, seconds: float) -> float:
        import torch

        total = self._endpoint.all_reduce(self._all, torch.tensor([seconds], dtype=torch.float64))
        return float(total) / self._endpoint.size


def _product(outputs: int, inputs: int, dtype: torch.dtype) -> Linear:
    import torch

    from plait.nn.linear import make_linear, packs

    return make_linear(torch.full((outputs, inputs), 0.01, dtype=dtype), None, packs(dtype, torch.device("cpu"), 1))


def main() -> int:
    """One of the ranks: its arguments are what `this_rank` needs, its dtype, and how many rows to measure."""
    import torch

    from plait.nn.dtypes import TORCH_DTYPES
    from plait.prober.ranks import this_rank

    endpoint, dtype, rows = this_rank(), sys.argv[3], [int(count) for count in sys.argv[4:]]
    with torch.inference_mode():
        times = exchange_times(Layers(endpoint, TORCH_DTYPES[dtype]).block_of, _HIDDEN * DTYPE_BYTES[dtype], rows)
    sys.stdout.buffer.write(msgspec.json.encode(times))
    endpoint.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
