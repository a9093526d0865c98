"""Sums and gathers of a group of CUDA devices, by NCCL through torch.distributed. UNTESTED until GPUs have run it.

All ranks get the same bits, but not added in rank order. Nothing can be counted below NCCL: the bytes are those of the
rule in `plans.exchanges`. What NCCL does not do here (tensors on the CPU, the other collectives) goes the usual way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from plait.comm.calls import row_bytes
from plait.comm.contract import Group
from plait.comm.routed import Collecting
from plait.plans.exchanges import all_reduce_bytes


class Waits(Protocol):
    """An operation that the device has been given."""

    def wait(self) -> object:
        """Let the current stream wait for it."""


class DeviceGroup(Protocol):
    """What is needed of torch.distributed's ProcessGroupNCCL."""

    def allreduce(self, tensors: list[torch.Tensor]) -> Waits:
        """Sum in place."""

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor]) -> Waits:
        """Gather into the outputs, of any sizes."""

    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]]) -> Waits:
        """Sum the inputs; the one of this rank's place goes into the output."""


class NcclCollectives:
    """The collectives of one group of CUDA devices, seen from its rank number `index`."""

    def __init__(self, devices: DeviceGroup, index: int, usual: Collecting, count: Callable[[int, int], None]) -> None:
        self._devices, self._index, self._usual, self._count = devices, index, usual, count

    def _count_all(self, group: Group, sizes: Sequence[int]) -> None:
        """`sizes[i]` payload bytes went to rank i of the group."""
        for index, (rank, size) in enumerate(zip(group.ranks, sizes, strict=True)):
            if index != self._index:
                self._count(rank, size)

    def all_reduce(self, group: Group, tensor: torch.Tensor) -> torch.Tensor:
        """See `Endpoint.all_reduce`."""
        if not tensor.is_cuda:
            return self._usual.all_reduce(group, tensor)
        whole = tensor.detach().contiguous()
        self._devices.allreduce([whole]).wait()
        if not tensor.is_contiguous():
            with torch.no_grad():
                tensor.copy_(whole)
        others = len(group.ranks) - 1
        sent = all_reduce_bytes(tensor.numel(), tensor.element_size(), others + 1)[self._index]
        self._count_all(group, [(sent * (i + 1) // others - sent * i // others) for i in _turns(self._index, others)])
        return tensor

    def reduce_scatter(self, group: Group, tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """See `Endpoint.reduce_scatter`."""
        if not tensor.is_cuda:
            return self._usual.reduce_scatter(group, tensor, sizes)
        parts = list(torch.split(tensor.detach().contiguous(), list(sizes)))
        mine = torch.empty_like(parts[self._index])
        self._devices.reduce_scatter([mine], [parts]).wait()
        self._count_all(group, [part.nbytes for part in parts])
        return mine

    def all_gather(self, group: Group, tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """See `Endpoint.all_gather`."""
        if not tensor.is_cuda:
            return self._usual.all_gather(group, tensor, sizes)
        whole = tensor.new_empty((sum(sizes), *tensor.shape[1:]))
        self._devices.allgather([list(torch.split(whole, list(sizes)))], [tensor.detach().contiguous()]).wait()
        self._count_all(group, [sizes[self._index] * row_bytes(tensor)] * len(sizes))
        return whole

    def all_to_all(self, group: Group, pieces: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """See `Endpoint.all_to_all`."""
        return self._usual.all_to_all(group, pieces)

    def broadcast(self, group: Group, tensor: torch.Tensor, source: int) -> torch.Tensor:
        """See `Endpoint.broadcast`."""
        return self._usual.broadcast(group, tensor, source)

    def barrier(self, group: Group) -> None:
        """See `Endpoint.barrier`."""
        self._usual.barrier(group)


def _turns(index: int, others: int) -> list[int]:
    """The others counted from 0, with anything in our own place."""
    return [other - (other > index) for other in range(others + 1)]
