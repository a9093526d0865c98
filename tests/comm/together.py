"""Ranks over torch.distributed as threads of one process: quick, and both sides of a link are at hand."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from plait.comm.c10d import C10dEndpoint
from plait.comm.wire import Messages, Work

T = TypeVar("T")


def together(*functions: Callable[[], T]) -> list[T]:
    """What the functions return, each called in a thread of its own. The first that raises is raised."""
    results: list[Any] = [None] * len(functions)
    failures: list[BaseException] = []

    def main(index: int, function: Callable[[], T]) -> None:
        try:
            results[index] = function()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=main, args=pair) for pair in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results


class Counted:
    """A process group that counts its sends, by tag."""

    def __init__(self, group: Messages) -> None:
        self._group = group
        self.sends: list[int] = []

    def send(self, tensors: list[torch.Tensor], dstRank: int, tag: int) -> Work:  # noqa: N803
        self.sends.append(tag)
        return self._group.send(tensors, dstRank, tag)

    def recv(self, tensors: list[torch.Tensor], srcRank: int, tag: int) -> Work:  # noqa: N803
        return self._group.recv(tensors, srcRank, tag)


def groups(size: int) -> list[Counted]:
    """A process group's side of every rank."""
    store = dist.HashStore()

    def open_one(rank: int) -> Counted:
        group: object = dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=20))
        return Counted(cast(Messages, group))

    return together(*(lambda rank=rank: open_one(rank) for rank in range(size)))  # type: ignore[misc]


def endpoints(size: int, capacity: int = 2) -> list[C10dEndpoint]:
    """The endpoints of all ranks."""
    opened = groups(size)

    def connect(rank: int) -> C10dEndpoint:
        return C10dEndpoint(opened[rank], rank, size, capacity, timeout_s=20)

    return together(*(lambda rank=rank: connect(rank) for rank in range(size)))  # type: ignore[misc]


def close(*ends: C10dEndpoint) -> None:
    """Leave, all at once."""
    together(*(end.close for end in ends))
