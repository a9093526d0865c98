"""Axes on links: where groups lie, by listing every rank, and what bandwidth each rank is left with."""

from __future__ import annotations

from math import lcm

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.costs.collectives import all_reduce_s
from plait.costs.topology import AXES, Fabric, Reach, gradient_reach, group_on, lay, reach, stage_link, strides
from plait.plans.split import Split
from plait.spec.cluster import Network, Wire

NETWORK = Network(Wire(2e-6, 300e9), Wire(10e-6, 25e9, 25e9))
"""P9's: 300 GB/s inside a host; hosts at 25 GB/s each, all devices together."""

splits = st.builds(Split, st.integers(1, 4), st.integers(1, 4), st.integers(1, 8), st.integers(1, 3), st.integers(1, 2))


def groups_of(split: Split, axis: str) -> list[list[int]]:
    """Every group of an axis, by numbering ranks as coordinates: tp fastest, then cp, ep, dp, pp."""
    sizes = [getattr(split, name) for name in AXES]
    found: dict[tuple[int, ...], list[int]] = {}
    for rank in range(split.ranks):
        rest, where = rank, []
        for size in sizes:
            where.append(rest % size)
            rest //= size
        where[AXES.index(axis)] = -1
        found.setdefault(tuple(where), []).append(rank)
    return list(found.values())


def spanned(group: list[int], per_host: int) -> tuple[int, int]:
    """Hosts that a group spans, and its most ranks in one."""
    hosts = [rank // per_host for rank in group]
    return len(set(hosts)), max(map(hosts.count, hosts))


@given(splits, st.sampled_from(AXES), st.integers(1, 9))
def test_no_group_spans_more_hosts_than_its_reach(split: Split, axis: str, per_host: int) -> None:
    place = lay(split, per_host)[axis]
    assert place.size == getattr(split, axis)
    assert place.hosts >= max(spanned(group, per_host)[0] for group in groups_of(split, axis))


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 9))
def test_reach_by_listing_all_groups(size: int, stride: int, per_host: int) -> None:
    """Over as many ranks as it takes until groups lie on hosts as the first ones did."""
    block = size * stride
    groups = [
        [start + member + index * stride for index in range(size)]
        for start in range(0, lcm(block, per_host), block)
        for member in range(stride)
    ]
    hosts, inside = max(spanned(group, per_host) for group in groups)
    assert reach(size, stride, per_host) == Reach(size, stride, inside, hosts)


@pytest.mark.parametrize(
    ("size", "stride", "per_host", "expected"),
    [
        (8, 1, 8, Reach(8, 1, 8, 1)),
        (4, 1, 8, Reach(4, 1, 4, 1)),
        (2, 4, 8, Reach(2, 4, 2, 1)),
        (16, 1, 8, Reach(16, 1, 8, 2)),
        (64, 8, 8, Reach(64, 8, 1, 64)),
        (8, 2, 8, Reach(8, 2, 4, 2)),
        (3, 1, 8, Reach(3, 1, 2, 2)),
        (1, 5, 8, Reach(1, 5, 1, 1)),
        (384, 8, 8, Reach(384, 8, 1, 384)),
    ],
)
def test_places_by_hand(size: int, stride: int, per_host: int, expected: Reach) -> None:
    assert reach(size, stride, per_host) == expected
    assert expected.crosses_hosts == (expected.hosts > 1)


def test_ranks_are_numbered_with_tensor_groups_fastest() -> None:
    assert strides(Split(dp=5, pp=4, tp=8, ep=2, cp=3)) == {"tp": 1, "cp": 8, "ep": 24, "dp": 48, "pp": 240}


def test_a_tensor_group_lies_in_a_host_wherever_it_divides_one() -> None:
    """P9: tensor inside the host, pipeline across hosts, data around both."""
    places = lay(Split(dp=4, pp=2, tp=8), 8)
    assert not places["tp"].crosses_hosts
    assert places["dp"].crosses_hosts
    assert places["pp"].crosses_hosts
    assert lay(Split(tp=16), 8)["tp"].crosses_hosts


def test_devices_share_their_hosts_way_out() -> None:
    """Eight devices send at once through 25 GB/s: 3.125 GB/s each; a device alone could have all of it."""
    fabric = Fabric(8, NETWORK)
    group = group_on(fabric, lay(Split(dp=4, tp=8), 8)["dp"])
    assert (group.inside, group.hosts, group.ranks) == (1, 4, 4)
    assert group.outer is not None
    assert group.outer.link.bandwidth_bytes_per_s == 25e9 / 8
    assert fabric.between(1).link.bandwidth_bytes_per_s == 25e9
    assert group_on(fabric, lay(Split(tp=8), 8)["tp"]).outer is None


def test_without_a_hosts_limit_each_device_has_its_own() -> None:
    fabric = Fabric(8, Network(Wire(2e-6, 300e9), Wire(10e-6, 50e9)))
    assert fabric.between().link.bandwidth_bytes_per_s == 50e9


def test_tensor_groups_over_hosts_are_slower_in_proportion() -> None:
    """The same 16 ranks: two hosts of 8 against one of 16, 50 MB."""
    small, large = Fabric(8, NETWORK), Fabric(16, NETWORK)
    split = Split(tp=16)
    crossing, inside = (
        all_reduce_s(50e6, group_on(fabric, lay(split, fabric.devices_per_host)["tp"])) for fabric in (small, large)
    )
    between = 2 * (10e-6 + 50e6 / 8 / 2 / (25e9 / 8))
    assert crossing == pytest.approx(2 * (7 * 2e-6 + 7 / 8 * 50e6 / 300e9) + between)
    assert inside < crossing / 5


def test_gradients_go_over_all_that_share_them() -> None:
    split = Split(dp=4, pp=2, tp=2, ep=2)
    assert gradient_reach(split, 8) == Reach(8, 2, 4, 2)
    assert gradient_reach(split, 8, experts=True) == Reach(4, 4, 2, 2)
    assert gradient_reach(Split(dp=8), 8, experts=True) == Reach(8, 1, 8, 1)


@given(
    st.builds(Split, *(st.sampled_from([1, 2, 4]) for _ in range(2)), *(st.sampled_from([1, 2, 4]) for _ in range(3))),
    st.sampled_from([1, 2, 4, 8]),
    st.booleans(),
)
def test_reduction_groups_by_listing_all_ranks(split: Split, per_host: int, experts: bool) -> None:
    """Ranks with the same tp and pp, and for experts with the same ep, hold the same parameters."""
    step = strides(split)
    same: dict[tuple[int, ...], list[int]] = {}
    for rank in range(split.ranks):
        expert = rank // step["ep"] % split.ep if experts else 0
        same.setdefault((rank % split.tp, rank // step["pp"], expert), []).append(rank)
    hosts, inside = max(spanned(group, per_host) for group in same.values())
    place = gradient_reach(split, per_host, experts=experts)
    assert (place.size, place.inside, place.hosts) == (len(same[0, 0, 0]), inside, hosts)


def test_a_group_that_does_not_fill_its_hosts() -> None:
    """Three ranks of two hosts take as long as two and two, and are still three."""
    group = group_on(Fabric(8, NETWORK), reach(3, 1, 8))
    assert (group.inside, group.hosts, group.ranks) == (2, 2, 3)


@given(splits, st.sampled_from([1, 2, 3, 4, 8]), st.data())
def test_the_link_between_two_stages(split: Split, per_host: int, data: st.DataObject) -> None:
    """Within the host if every rank's partner is in its own; else the position's ranks on a host share the way out."""
    source, to = (data.draw(st.integers(0, split.pp - 1)) for _ in range(2))
    fabric = Fabric(per_host, NETWORK)
    stride = split.ranks // split.pp
    together = all((source * stride + rank) // per_host == (to * stride + rank) // per_host for rank in range(stride))
    channel = stage_link(fabric, split, source, to)
    if together:
        assert channel == fabric.within
    else:
        assert channel.link.bandwidth_bytes_per_s == 25e9 / min(stride, per_host)
        assert channel.link.latency_s == 10e-6
