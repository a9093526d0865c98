"""Collectives against a plain reference, bit by bit, on every transport."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.comm import threads
from plait.comm.contract import Endpoint, Group, Tag
from plait.errors import RunError
from tests.comm.ranks import Ranks, ThreadRanks

DTYPES = ("float32", "float64", "bfloat16", "int64", "float16")
SIZES = (0, 1, 7, 256, 4096, 4097, 8193)
LARGE = (70_001, 250_000)


def tensor_of(seed: int, rank: int, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """Random numbers of very different size, so that another order of adding gives other bits."""
    generator = torch.Generator().manual_seed(seed * 100 + rank)
    values = torch.randn(shape, generator=generator) * 10 ** torch.randint(0, 4, shape, generator=generator)
    return values.to(getattr(torch, dtype))


def sum_of(seed: int, group: Group, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """The reference: one after the other."""
    total = tensor_of(seed, group.ranks[0], shape, dtype)
    for rank in group.ranks[1:]:
        total = total + tensor_of(seed, rank, shape, dtype)
    return total


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dtype == right.dtype and left.shape == right.shape and torch.equal(left, right)


def try_all(endpoint: Endpoint, group: Group, seed: int, size: int, dtype: str) -> list[str]:
    """Every collective once; the names of those that were wrong."""
    me, ranks = endpoint.rank, group.ranks
    rng = random.Random(seed)
    rows = [rng.randint(0, size) if rng.random() < 0.7 else 0 for _ in ranks]
    at, columns = ranks.index(me), rng.choice([(), (3,), (2, 2)])
    mine = tensor_of(seed, me, (size,), dtype)
    reduced = endpoint.all_reduce(group, mine)
    whole = (sum(rows), *columns)
    scattered = endpoint.reduce_scatter(group, tensor_of(seed, me, whole, dtype), rows)
    parts = [tensor_of(seed, rank, (count, *columns), dtype) for rank, count in zip(ranks, rows, strict=True)]
    gathered = endpoint.all_gather(group, parts[at], rows)
    shapes = {(a, b): (rng.randint(0, size), rng.randint(0, 3)) for a in ranks for b in ranks}
    swapped = endpoint.all_to_all(group, [tensor_of(b, me, shapes[me, b], dtype) for b in ranks])
    source = rng.choice(ranks)
    spread = endpoint.broadcast(group, tensor_of(seed, me, (size,), dtype), source)
    endpoint.barrier(group)
    right = {
        "all_reduce": reduced is mine and same(reduced, sum_of(seed, group, (size,), dtype)),
        "reduce_scatter": same(scattered, sum_of(seed, group, whole, dtype).split(rows)[at]),
        "all_gather": same(gathered, torch.cat(parts)),
        "all_to_all": all(
            same(piece, tensor_of(me, rank, shapes[rank, me], dtype))
            for rank, piece in zip(ranks, swapped, strict=True)
        ),
        "broadcast": same(spread, tensor_of(seed, source, (size,), dtype)),
    }
    return [name for name, good in right.items() if not good]


def everyone(endpoint: Endpoint, sizes: list[int], dtypes: list[str]) -> list[str]:
    group = Group(tuple(range(endpoint.size)))
    wrong = []
    for seed, (size, dtype) in enumerate((size, dtype) for size in sizes for dtype in dtypes):
        wrong += [f"{name} {size} {dtype}" for name in try_all(endpoint, group, seed, size, dtype)]
    return wrong


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_collectives_equal_the_reference(ranks: Ranks, size: int) -> None:
    dtypes = DTYPES if size < 5 else DTYPES[:3]
    assert ranks.run(everyone, size, sizes=list(SIZES), dtypes=list(dtypes)) == [[]] * size


@pytest.mark.parametrize("size", [2, 3])
def test_collectives_of_large_tensors_equal_the_reference(ranks: Ranks, size: int) -> None:
    assert ranks.run(everyone, size, sizes=list(LARGE), dtypes=["float32", "bfloat16"]) == [[]] * size


def in_groups(endpoint: Endpoint, partitions: list[list[list[int]]], repeats: int) -> list[str]:
    """One partition of the ranks after the other; its groups work at the same time and know nothing of each other."""
    wrong = []
    for number, partition in enumerate(partitions):
        (mine,) = (group for group in partition if endpoint.rank in group)
        for repeat in range(repeats):
            seed = number * 7 + repeat
            wrong += try_all(endpoint, Group(tuple(mine)), seed, (seed * 37) % 500, DTYPES[seed % len(DTYPES)])
    return wrong


def partition_of(rng: random.Random, size: int) -> list[list[int]]:
    parts = rng.randint(1, size)
    groups: list[list[int]] = [[] for _ in range(parts)]
    for rank in range(size):
        rng.choice(groups).append(rank)
    return [group for group in groups if group]


def test_groups_that_overlap_and_follow_each_other(ranks: Ranks) -> None:
    rng = random.Random(3)
    for size in (3, 5):
        partitions = [partition_of(rng, size) for _ in range(12)]
        assert ranks.run(in_groups, size, partitions=partitions, repeats=2) == [[]] * size


@settings(max_examples=25, deadline=None)
@given(size=st.integers(1, 6), seed=st.integers(0, 10_000))
def test_any_groups_of_threads(size: int, seed: int) -> None:
    rng = random.Random(seed)
    partitions = [partition_of(rng, size) for _ in range(4)]
    assert ThreadRanks().run(in_groups, size, partitions=partitions, repeats=1) == [[]] * size


def odd_tensors(endpoint: Endpoint) -> list[bool]:
    """Not contiguous, not of one dimension, a leaf that wants a gradient: all_reduce works in place on each."""
    group = Group(tuple(range(endpoint.size)))
    grid = torch.arange(24.0).view(4, 6)
    leaf = torch.ones(5, requires_grad=True)
    endpoint.all_reduce(group, grid.t())
    endpoint.all_reduce(group, grid[:, 1::2])
    endpoint.all_reduce(group, leaf)
    expected = torch.arange(24.0).view(4, 6) * endpoint.size
    expected[:, 1::2] *= endpoint.size
    return [torch.equal(grid, expected), torch.equal(leaf.detach(), torch.full((5,), float(endpoint.size)))]


@pytest.mark.parametrize("size", [2, 3])
def test_in_place_whatever_the_tensor_looks_like(ranks: Ranks, size: int) -> None:
    assert ranks.run(odd_tensors, size) == [[True, True]] * size


def many(endpoint: Endpoint, count: int) -> bool:
    """Calls as fast as they go, small and large in turn: slots are reused while others still read."""
    group = Group(tuple(range(endpoint.size)))
    good = True
    for index in range(count):
        tensor = torch.full((index % 3 * 9000 + 1,), float(endpoint.rank + index))
        endpoint.all_reduce(group, tensor)
        expected = sum(float(rank + index) for rank in range(endpoint.size))
        good &= bool((tensor == expected).all())
    return good


@pytest.mark.parametrize("size", [2, 4])
def test_repeated_calls_are_safe(ranks: Ranks, size: int) -> None:
    assert ranks.run(many, size, count=600) == [True] * size


def disagree(endpoint: Endpoint, kind: str) -> str:
    group = Group((0, 1))
    try:
        if endpoint.rank == 0:
            endpoint.all_reduce(group, torch.zeros(256))
        elif kind == "size":
            endpoint.all_reduce(group, torch.zeros(128))
        elif kind == "dtype":
            endpoint.all_reduce(group, torch.zeros(256, dtype=torch.int32))
        else:
            endpoint.barrier(group)
    except RunError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("kind", "theirs"),
    [
        ("size", "all_reduce of 512 bytes of float32"),
        ("dtype", "all_reduce of 1024 bytes of int32"),
        ("call", "barrier"),
    ],
)
def test_ranks_that_call_different_things_are_told(ranks: Ranks, kind: str, theirs: str) -> None:
    mine = "all_reduce of 1024 bytes of float32"
    rule = "the ranks of a group call its collectives in the same order, with the same sizes"
    assert ranks.run(disagree, 2, kind=kind) == [
        f"rank 0 calls {mine}, but rank 1 calls {theirs}: {rule}",
        f"rank 1 calls {theirs}, but rank 0 calls {mine}: {rule}",
    ]


def cut_differently(endpoint: Endpoint, gather: bool) -> str:
    """Both bring what fits their own sizes; the sizes differ, their sum does not."""
    group, sizes = Group((0, 1)), ([2, 2], [3, 1])[endpoint.rank]
    try:
        if gather:
            endpoint.all_gather(group, torch.zeros(sizes[endpoint.rank], 3), sizes)
        else:
            endpoint.reduce_scatter(group, torch.zeros(4, 3), sizes)
    except RunError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("gather", [True, False])
def test_ranks_that_cut_differently_are_told(ranks: Ranks, gather: bool) -> None:
    what = f"{'all_gather' if gather else 'reduce_scatter'} of 48 bytes of float32"
    rule = "the ranks of a group call its collectives in the same order, with the same sizes"
    assert ranks.run(cut_differently, 2, gather=gather) == [
        f"rank {me} and rank {1 - me} call {what}, but cut it differently among the ranks: {rule}" for me in (0, 1)
    ]


def sum_with_a_message_queued(endpoint: Endpoint) -> float:
    """Rank 0 has a message for 2 that found no room, and sums with 1, who waits for what 2 sends only after it."""
    first, second, third = (Tag(0, 0, action) for action in range(3))
    total = torch.ones(1)
    if endpoint.rank == 2:
        endpoint.wait(lambda: endpoint.poll(0), "rank 0 to have no room", 20)
        for tag in (first, second):
            endpoint.receive(0, tag, 20)
        endpoint.send(1, third, torch.ones(1))
        return 2.0
    if endpoint.rank == 1:
        endpoint.receive(2, third, 20)
    else:
        endpoint.send(2, first, torch.ones(1))
        queued = [second]
        assert not endpoint.try_send(2, second, torch.ones(1))
        endpoint.post(2, b"no room")

        def idle() -> None:
            if queued and endpoint.try_send(2, queued[0], torch.ones(1)):
                queued.clear()

        endpoint.idle = idle
    return endpoint.all_reduce(Group((0, 1)), total).item()


def test_what_is_queued_moves_on_while_a_collective_waits(ranks: Ranks) -> None:
    assert ranks.run(sum_with_a_message_queued, 3, capacity=1) == [2.0, 2.0, 2.0]


def add_backwards(pieces: list[torch.Tensor]) -> torch.Tensor:
    total = pieces[-1].clone()
    for piece in pieces[-2::-1]:
        total += piece
    return total


def test_a_wrong_order_of_adding_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seeded fault: were sums added from the last rank to the first, the tests above would fail."""
    monkeypatch.setattr(threads, "add_in_order", add_backwards)
    wrong: list[list[Any]] = ThreadRanks().run(everyone, 3, sizes=[256], dtypes=["float32"])
    assert all("all_reduce 256 float32" in names for names in wrong)
