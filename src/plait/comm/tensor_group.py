"""A tensor group over an endpoint: what sharded layers call, with the times and bytes of what they exchanged."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from plait.comm.contract import Endpoint, Group

Exchanged = tuple[int, tuple[tuple[float, float], ...]]
"""Payload bytes that this rank sent, and when each exchange began and ended."""


class EndpointGroup:
    """`nn.TensorGroup` of the ranks `ranks` (ascending) of a mesh, seen from the endpoint's rank.

    With `record` the begin and end of every exchange are kept until `take`.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        ranks: Sequence[int],
        *,
        record: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._endpoint, self._group, self._clock = endpoint, Group(tuple(ranks)), clock
        self.index, self.size = ranks.index(endpoint.rank), len(ranks)
        self._others = tuple(rank for rank in ranks if rank != endpoint.rank)
        self._record = record
        self._times: list[tuple[float, float]] = []
        self._sent_bytes = self._total()

    def take(self) -> Exchanged:
        """What was exchanged since this was last asked; the bytes are what the transport wrote."""
        times = tuple(self._times)
        self._times.clear()
        total = self._total()
        sent, self._sent_bytes = total - self._sent_bytes, total
        return sent, times

    def _total(self) -> int:
        """Payload that went to the others of the group, ever."""
        return sum(self._endpoint.traffic(other).payload_bytes for other in self._others)

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `nn.TensorGroup`."""
        start = self._clock()
        self._endpoint.all_reduce(self._group, tensor)
        self._end(start)
        return tensor

    def reduce_scatter(self, tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """See `nn.TensorGroup`."""
        start = self._clock()
        mine = self._endpoint.reduce_scatter(self._group, tensor, sizes)
        self._end(start)
        return mine

    def all_gather(self, tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """See `nn.TensorGroup`."""
        start = self._clock()
        whole = self._endpoint.all_gather(self._group, tensor, sizes)
        self._end(start)
        return whole

    def _end(self, start: float) -> None:
        if self._record:
            self._times.append((start, self._clock()))
