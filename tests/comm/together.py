"""Ranks over connections as threads of one process: quick, and both sides of a link are at hand."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from itertools import combinations
from typing import Any, TypeVar

from plait.comm.c10d import C10dEndpoint

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


def connections(size: int) -> list[dict[int, socket.socket]]:
    """A connected socket to each other rank, for every rank."""
    found: list[dict[int, socket.socket]] = [{} for _ in range(size)]
    for low, high in combinations(range(size), 2):
        found[low][high], found[high][low] = socket.socketpair()
    return found


def endpoints(size: int, capacity: int = 2) -> list[C10dEndpoint]:
    """The endpoints of all ranks."""
    opened = connections(size)

    def connect(rank: int) -> C10dEndpoint:
        return C10dEndpoint(opened[rank], rank, size, capacity, timeout_s=20)

    return together(*(lambda rank=rank: connect(rank) for rank in range(size)))  # type: ignore[misc]


def close(*ends: C10dEndpoint) -> None:
    """Leave, all at once."""
    together(*(end.close for end in ends))
