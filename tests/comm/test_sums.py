"""Sums, gathers and their bytes for any sizes, dtypes and ranks: bits of the rank-order sum, bytes of the rule."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from plait.comm.contract import Endpoint, Group
from plait.plans.exchanges import Collective, Op, all_reduce_bytes, sent_bytes
from plait.spec.shards import even_rows
from tests.comm.ranks import Ranks, ShmRanks, ThreadRanks, Workers
from tests.comm.test_collectives import sum_of, tensor_of

DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
LAYOUTS = ("flat", "transposed", "strided")

Case = tuple[str, int, str, str]
"""Operation, rows, dtype, and how the tensor lies in memory."""


def lay(tensor: torch.Tensor, how: str) -> torch.Tensor:
    """The same values, lying differently."""
    if how == "transposed":
        return tensor.t().contiguous().t()
    if how == "strided":
        wide = torch.zeros(len(tensor), 2 * tensor.shape[1], dtype=tensor.dtype)
        wide[:, ::2] = tensor
        return wide[:, ::2]
    return tensor


def sent_by(endpoint: Endpoint) -> int:
    return sum(endpoint.traffic(other).payload_bytes for other in range(endpoint.size) if other != endpoint.rank)


def try_cases(endpoint: Endpoint, cases: list[Case], columns: int) -> list[str]:
    """The cases that were wrong: in a bit, or in a byte."""
    group = Group(tuple(range(endpoint.size)))
    wrong = []
    for seed, (op, rows, dtype, how) in enumerate(cases):
        shape = (rows, columns)
        sizes = even_rows(rows, endpoint.size)
        mine = tensor_of(seed, endpoint.rank, shape, dtype)
        before = sent_by(endpoint)
        if op == "all-reduce":
            got, right = endpoint.all_reduce(group, lay(mine, how)), sum_of(seed, group, shape, dtype)
        elif op == "reduce-scatter":
            got = endpoint.reduce_scatter(group, lay(mine, how), sizes)
            right = sum_of(seed, group, shape, dtype).split(sizes)[endpoint.rank]
        else:
            got = endpoint.all_gather(group, lay(mine.split(sizes)[endpoint.rank], how), sizes)
            right = torch.cat([tensor_of(seed, rank, shape, dtype).split(sizes)[rank] for rank in group.ranks])
        expected = sent_bytes(Collective(Op(op), rows, columns, mine.element_size()), endpoint.size)[endpoint.rank]
        if got.dtype != right.dtype or not torch.equal(got, right):
            wrong.append(f"{op} {shape} {dtype} {how}: wrong bits")
        if sent_by(endpoint) - before != expected:
            wrong.append(f"{op} {shape} {dtype} {how}: sent {sent_by(endpoint) - before}, by the rule {expected}")
    return wrong


rows_of = st.one_of(st.integers(0, 20), st.integers(0, 2000), st.sampled_from([4095, 4096, 4097, 300_001]))
case = st.tuples(
    st.sampled_from(["all-reduce", "reduce-scatter", "all-gather"]),
    rows_of,
    st.sampled_from(DTYPES),
    st.sampled_from(LAYOUTS),
)


@pytest.fixture(scope="module")
def processes(workers: Workers) -> Ranks:
    return ShmRanks(workers)


@settings(max_examples=25, deadline=None)
@example(size=3, columns=1, cases=[("all-reduce", 600_001, "float32", "flat")])
@example(size=8, columns=1, cases=[("all-reduce", 4097, "float32", "flat"), ("reduce-scatter", 5, "int8", "flat")])
@given(size=st.integers(1, 8), columns=st.integers(1, 3), cases=st.lists(case, min_size=1, max_size=4))
def test_threads_any_sizes(size: int, columns: int, cases: list[Case]) -> None:
    assert ThreadRanks().run(try_cases, size, cases=cases, columns=columns) == [[]] * size


@settings(max_examples=15, deadline=None)
@example(size=3, columns=1, cases=[("all-reduce", 600_001, "float32", "flat")])
@example(size=2, columns=1, cases=[("all-reduce", 600_001, "bfloat16", "flat"), ("all-reduce", 5001, "int8", "flat")])
@given(size=st.integers(2, 5), columns=st.integers(1, 3), cases=st.lists(case, min_size=1, max_size=8))
def test_processes_any_sizes(processes: Ranks, size: int, columns: int, cases: list[Case]) -> None:
    assert processes.run(try_cases, size, cases=cases, columns=columns) == [[]] * size


def test_eight_processes_on_few_cores(ranks: Ranks) -> None:
    cases = [
        (op, rows, "float32", "flat") for op in ("all-reduce", "reduce-scatter", "all-gather") for rows in (5, 5000)
    ]
    assert ranks.run(try_cases, 8, cases=cases, columns=3) == [[]] * 8


@pytest.mark.soak
@settings(max_examples=300, deadline=None)
@given(size=st.integers(2, 8), columns=st.integers(1, 3), cases=st.lists(case, min_size=1, max_size=8))
def test_processes_any_sizes_for_long(processes: Ranks, size: int, columns: int, cases: list[Case]) -> None:
    assert processes.run(try_cases, size, cases=cases, columns=columns) == [[]] * size


def by_link(endpoint: Endpoint, count: int) -> list[int]:
    endpoint.all_reduce(Group(tuple(range(endpoint.size))), torch.zeros(count))
    return [endpoint.traffic(other).payload_bytes for other in range(endpoint.size) if other != endpoint.rank]


def test_bytes_of_each_link_of_a_large_sum(ranks: Ranks) -> None:
    """Known values: 10,001 floats are cut into 3333, 3334 and 3334; each link carries both its ends' pieces."""
    sent = ranks.run(by_link, 3, count=10_001)
    assert sent == [[6667 * 4, 6667 * 4], [6667 * 4, 6668 * 4], [6667 * 4, 6668 * 4]]
    assert tuple(map(sum, sent)) == all_reduce_bytes(10_001, 4, 3)
