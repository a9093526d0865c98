"""Collectives by their formulas, by nccl-tests' bus bandwidth, and by properties that any link has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.costs.collectives import (
    Channel,
    Collective,
    Group,
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    best_tree_s,
    broadcast_s,
    collective_s,
    point_to_point_s,
    reduce_scatter_s,
    ring_channel,
    ring_s,
    sent_bytes,
    tree_all_reduce_s,
)
from plait.costs.curves import Curve
from plait.costs.protocol import LinkCost

KINDS: tuple[Collective, ...] = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast")
FAST = Channel(LinkCost(1e-6, 100e9))
SLOW = Channel(LinkCost(20e-6, 5e9))
channels = st.builds(Channel, st.builds(LinkCost, st.floats(1e-7, 1e-3), st.floats(1e6, 1e12)))
groups = st.builds(Group, st.integers(1, 9), channels, st.integers(1, 9), channels)


def within(ranks: int, channel: Channel = FAST) -> Group:
    return Group(ranks, channel)


def test_formulas() -> None:
    """α + nβ, and of 8 ranks the ring's 14 messages of n / 8 (Thakur et al. 2005, section 4.5)."""
    n, a, b = 80e6, 1e-6, 1 / 100e9
    assert point_to_point_s(n, FAST) == pytest.approx(a + n * b)
    assert all_reduce_s(n, within(8)) == pytest.approx(14 * a + 2 * 7 / 8 * n * b)
    assert reduce_scatter_s(n, within(8)) == pytest.approx(7 * a + 7 / 8 * n * b)
    assert all_gather_s(n, within(8)) == pytest.approx(7 * a + 7 / 8 * n * b)
    assert all_to_all_s(n, within(8)) == pytest.approx(a + 7 / 8 * n * b)
    assert broadcast_s(n, within(8)) == pytest.approx(3 * a + 7 / 8 * n * b + 7 * (a + n / 8 * b))


def test_small_vectors_go_through_a_tree() -> None:
    """1 KiB over 8 ranks: 6 latencies beat 14."""
    assert all_reduce_s(1024, within(8)) == tree_all_reduce_s(1024, 8, FAST) < ring_s(1024, 8, FAST, rounds=2)
    assert tree_all_reduce_s(1024, 8, FAST) == pytest.approx(6 * (1e-6 + 1024 / 100e9))
    assert broadcast_s(1024, within(8)) == pytest.approx(3 * (1e-6 + 1024 / 100e9))


def test_chunks_follow_each_other_through_a_tree() -> None:
    """A large vector in many chunks comes near twice its bytes; in one it goes down and up level by level."""
    n = 1e9
    assert tree_all_reduce_s(n, 8, FAST) == pytest.approx(6 * n / 100e9, rel=1e-3)
    assert tree_all_reduce_s(n, 8, FAST, chunks=100) == pytest.approx(2 * 102 * (1e-6 + n / 100 / 100e9))


@given(st.integers(2, 3000), channels, st.floats(1, 1e10))
def test_the_best_number_of_chunks(ranks: int, channel: Channel, size: float) -> None:
    """Of chunks of at least a byte."""
    best = best_tree_s(size, ranks, channel)
    for chunks in (chunks for chunks in (1, 2, 3, 5, 10, 100, 1000, 10_000) if chunks <= size):
        assert best <= tree_all_reduce_s(size, ranks, channel, chunks) * (1 + 1e-9)


def test_many_ranks_reduce_through_a_tree() -> None:
    """2,048 ranks: a ring's 4,094 latencies would take 41 ms, the tree's 22 take 0.2 ms; both move the bytes twice."""
    channel = Channel(LinkCost(10e-6, 3e9))
    bytes_s = 2 * 100e6 / 3e9
    group = Group(1, FAST, 2048, channel)
    assert ring_s(100e6, 2048, channel, rounds=2) == pytest.approx(bytes_s + 4094 * 10e-6, rel=1e-3)
    assert bytes_s < all_reduce_s(100e6, group) == best_tree_s(100e6, 2048, channel) < 1.12 * bytes_s


@pytest.mark.parametrize("kind", KINDS)
def test_one_rank_sends_nothing(kind: Collective) -> None:
    assert collective_s(kind, 1e6, within(1)) == 0
    assert sent_bytes(kind, 1e6, 1) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_bus_bandwidth(kind: Collective) -> None:
    """nccl-tests, doc/PERFORMANCE.md: bytes on the bus are n times 2 (p - 1) / p, or (p - 1) / p.

    Without latency a collective takes those bytes ÷ bandwidth. A broadcast sends the vector down a tree, or scatters
    and gathers it, which takes twice its bytes on the bus.
    """
    free = Channel(LinkCost(0.0, 1e9))
    for ranks in (2, 3, 8):
        bus = (2 if kind == "all_reduce" else 1) * (ranks - 1) / ranks * 1e6
        assert sent_bytes(kind, 1e6, ranks) == pytest.approx(bus)
        expected = min(2 * bus, {2: 1, 3: 2, 8: 3}[ranks] * 1e6) if kind == "broadcast" else bus
        assert collective_s(kind, 1e6, within(ranks, free)) == pytest.approx(expected / 1e9)


def test_over_hosts_each_rank_takes_its_part() -> None:
    """4 hosts of 8: reduce-scatter and all-gather inside, each rank's eighth through a ring of 4 between hosts."""
    group = Group(8, FAST, 4, SLOW)
    n = 400e6
    inside = 2 * (7 * 1e-6 + 7 / 8 * n / 100e9)
    between = 6 * 20e-6 + 2 * 3 / 4 * n / 8 / 5e9
    assert all_reduce_s(n, group) == pytest.approx(inside + between)
    assert all_reduce_s(n, group) < all_reduce_s(n, Group(1, FAST, 32, SLOW))
    assert all_gather_s(n, group) == pytest.approx(7e-6 + 7 / 8 * n / 100e9 + 3 * 20e-6 + 3 / 4 * n / 8 / 5e9)


def test_all_to_all_waits_for_the_slower_way() -> None:
    """Of 32 parts 7 go inside and 24 beyond."""
    group = Group(8, FAST, 4, SLOW)
    assert all_to_all_s(32e6, group) == pytest.approx(20e-6 + 24e6 / 5e9)


def test_tensor_parallel_decoding_over_ethernet() -> None:
    """P8: 160 all-reduces of 16 KB between two machines over 1 Gb/s with 100 µs: latency and wire both count."""
    ethernet = Channel(LinkCost(100e-6, 125e6))
    once = all_reduce_s(16384, within(2, ethernet))
    assert 160 * once == pytest.approx(160 * (2 * 100e-6 + 16384 / 125e6))


@given(st.sampled_from(KINDS), groups, st.floats(1, 1e9), st.floats(1, 1e9))
def test_more_bytes_never_take_less(kind: Collective, group: Group, some: float, more: float) -> None:
    low, high = sorted((some, more))
    assert collective_s(kind, low, group) <= collective_s(kind, high, group) * (1 + 1e-12)


@given(st.sampled_from(KINDS), groups, st.floats(1, 1e9), st.floats(1.0, 10.0))
def test_a_better_link_never_takes_longer(kind: Collective, group: Group, size: float, better: float) -> None:
    def improved(channel: Channel) -> Channel:
        link = channel.link
        return Channel(LinkCost(link.latency_s / better, link.bandwidth_bytes_per_s * better))

    assert group.outer is not None
    faster = Group(group.inside, improved(group.inner), group.hosts, improved(group.outer))
    assert collective_s(kind, size, faster) <= collective_s(kind, size, group) * (1 + 1e-12)


@given(st.sampled_from(KINDS), groups, st.floats(1, 1e9))
def test_never_faster_than_the_bytes_on_the_slowest_wire(kind: Collective, group: Group, size: float) -> None:
    """Where all ranks lie in one host, no collective beats its bytes through the rank's own link."""
    one = Group(group.inside, group.inner)
    if kind != "broadcast":
        least = sent_bytes(kind, size, one.ranks) / group.inner.link.bandwidth_bytes_per_s
        assert collective_s(kind, size, one) >= least * (1 - 1e-9)


@given(
    st.integers(2, 16),
    st.lists(st.tuples(st.integers(1, 10**9), st.floats(1e-6, 1.0)), min_size=1, max_size=6, unique_by=lambda p: p[0]),
)
def test_a_measured_channel_gives_what_was_measured(ranks: int, points: list[tuple[int, float]]) -> None:
    channel = ring_channel(points, ranks)
    for size, seconds in points:
        assert ring_s(size, ranks, channel, rounds=2) == pytest.approx(seconds)


@given(st.integers(2, 16), st.floats(1e-6, 1e-3), st.floats(1e8, 1e12), st.floats(1e6, 1e9))
def test_two_points_give_latency_and_bandwidth(ranks: int, latency: float, bandwidth: float, size: float) -> None:
    true = Channel(LinkCost(latency, bandwidth))
    points = [(each, ring_s(each, ranks, true, rounds=2)) for each in (1e6, 1e9)]
    found = ring_channel(points, ranks)
    assert found.link.latency_s == pytest.approx(latency, rel=1e-3, abs=1e-9)
    assert found.link.bandwidth_bytes_per_s == pytest.approx(bandwidth, rel=1e-3)
    assert ring_s(size, ranks, found, rounds=2) == pytest.approx(ring_s(size, ranks, true, rounds=2), rel=1e-6)


def test_a_curve_goes_before_latency_and_bandwidth() -> None:
    channel = Channel(LinkCost(1.0, 1.0), Curve((10.0, 20.0), (1.0, 3.0)))
    assert [channel.message_s(size) for size in (5, 10, 15, 30)] == [1.0, 1.0, 2.0, 5.0]
