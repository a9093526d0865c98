"""Every order and cut looked at in arrays: against the closed forms one by one, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise, permutations, product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.costs.serving import ServingModel
from plait.planner.result import Objective
from plait.planner.serving import ServingLimits, plan_serving
from plait.planner.serving_cuts import Ask, every_cut
from plait.planner.serving_figures import Way, figures, fits
from plait.planner.serving_search import Search, value
from plait.planner.serving_units import Demand, Unit, World
from plait.schedules.generation import LAYERWISE, PIPELINED
from plait.spec.cluster import Cluster, Device, Host, Link
from plait.spec.job import Job
from tests.planner.machines import SMOL, plain, single

INF = float("inf")
OBJECTIVES: list[Objective] = ["latency", "throughput", "ttft"]


@st.composite
def clusters(draw: st.DrawFn, most: int = 4) -> Cluster:
    """A few unequal devices, with links of every sort, that slow computing down too."""
    count = draw(st.integers(2, most))
    homes = [draw(st.integers(0, at)) for at in range(count)]
    devices = tuple(
        Device(
            f"d{at}",
            f"h{home}",
            draw(st.integers(3, 20)) * 10**9,
            {"bfloat16": draw(st.sampled_from([1e12, 5e12, 2e13]))},
            draw(st.sampled_from([50e9, 100e9, 400e9])),
        )
        for at, home in enumerate(homes)
    )
    links = tuple(
        Link(one.name, other.name, draw(st.sampled_from([0.0, 1e-4, 3e-3])), draw(st.sampled_from([3e6, 1e8, 1e10])))
        for one in devices
        for other in devices
        if one is not other
    )
    return Cluster(tuple(Host(f"h{home}") for home in range(count)), devices, links)


def world_of(cluster: Cluster, job: Job, layers: int = 6) -> World:
    spec = plain(layers, 1e9)
    return World(spec, cluster, job, ServingModel(spec, cluster))


def best_s(cluster: Cluster, objective: Objective, job: Job, layers: int = 6) -> float:
    search = Search(world_of(cluster, job, layers), objective, ServingLimits(tp=1)).run()
    return value(objective, search.found[0].figures) if search.found else INF


@pytest.mark.parametrize("goal", OBJECTIVES)
@pytest.mark.parametrize("first", range(0, 45, 15))
def test_no_pipeline_by_brute_force_is_faster(first: int, goal: Objective) -> None:
    """Every order, cut, schedule, number of micro-batches and piece of a prompt, by the same closed forms."""
    for seed in range(first, first + 15):
        draw = Random(seed)
        cluster, job = drawn(draw, draw.choice([2, 3])), Job(draw.choice([128, 700]), 64, draw.choice([1, 2, 3, 5]))
        world = world_of(cluster, job)
        least = min((value(goal, figures(world, way)) for way in ways(world, goal) if fits(world, way)), default=INF)
        assert best_s(cluster, goal, job) <= least * (1 + 1e-9)


def drawn(draw: Random, count: int) -> Cluster:
    """Unequal devices, figures from a Raspberry's to a card's, each on a host of its own."""
    names = [f"d{at}" for at in range(count)]
    devices = tuple(
        Device(
            name,
            f"h-{name}",
            draw.randint(2, 20) * 10**9,
            {"bfloat16": draw.choice([1e12, 5e12, 2e13, 8e13])},
            draw.choice([2e10, 6e10, 2e11, 5e11, 1e12]),
        )
        for name in names
    )
    links = tuple(
        Link(one, other, draw.choice([1e-6, 3e-5, 1e-4, 1e-3]), draw.choice([1e7, 1.2e8, 1.2e9, 2.5e10]))
        for one, other in permutations(names, 2)
    )
    return Cluster(tuple(Host(f"h-{name}") for name in names), devices, links)


def ways(world: World, goal: Objective) -> Iterator[Way]:
    """All there are of single devices, but for replicas."""
    layers, users, prompt = world.spec.layers, world.job.users, world.job.prompt_tokens
    sizes = {min(size, -(-prompt // 64) * 64) for size in (128, 512, 2048)}
    for count in range(1, len(world.devices) + 1):
        options = [(LAYERWISE, 1), *((PIPELINED, parts) for parts in range(1, count + 2) if count > 1)]
        for order, ends, (schedule, parts), size in product(
            permutations(world.devices, count), combinations(range(1, layers), count - 1), options, sizes
        ):
            if goal == "throughput" or parts <= users:
                there = users * parts if goal == "throughput" else users
                units = (tuple(Unit((name,)) for name in order),)
                yield Way(units, tuple(pairwise((0, *ends, layers))), schedule, parts, there, size)


@settings(max_examples=40, deadline=None)
@given(clusters(3), st.booleans(), st.integers(1, 6), st.integers(1, 4), st.sampled_from([LAYERWISE, PIPELINED]))
def test_arrays_say_what_the_closed_forms_say(
    cluster: Cluster, prefill: bool, users: int, micro_batches: int, schedule: str
) -> None:
    """The best of an ask is the best by `figures`, one by one."""
    micro_batches = 1 if schedule == LAYERWISE else min(micro_batches, users)
    job = Job(300, 64, users)
    world = world_of(cluster, job)
    ways = [
        Way((tuple(Unit((name,)) for name in order),), ((0, end), (end, 6)), schedule, micro_batches, users, 128)
        for order in permutations(world.devices, 2)
        for end in range(1, 6)
    ]
    objective: Objective = "ttft" if prefill else "latency"
    values = {(way.replicas[0], way.cut): value(objective, figures(world, way)) for way in ways if fits(world, way)}
    demand = Demand(-(-users // micro_batches), users, world.middle, 128, job.positions)
    units = tuple(Unit((name,)) for name in world.devices)
    got = list(every_cut(world, units, 2, [Ask(schedule, 1 if prefill else micro_batches, demand, prefill)]))
    assert bool(got) == bool(values)
    if got:
        assert values[got[0]] == pytest.approx(min(values.values()), rel=1e-9)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.integers(1, 6), st.integers(1, 4), st.booleans())
def test_arrays_of_tensor_groups_too(seed: int, prefill: bool, users: int, micro_batches: int, even: bool) -> None:
    """Two groups of two, and of three: exchanges, slices and the fullest of each group's devices count."""
    draw, size = Random(seed), 2 + seed % 2
    micro_batches = min(micro_batches, users)
    schedule = PIPELINED if micro_batches > 1 else LAYERWISE
    world = world_of(drawn(draw, 2 * size), Job(300, 64, users))
    names, shares = list(world.devices), () if even else tuple(draw.choice([1, 2, 5]) for _ in range(size))
    units = tuple(Unit(tuple(names[first : first + size]), shares) for first in (0, size))
    ways = [
        Way((order,), ((0, end), (end, 6)), schedule, micro_batches, users, 128)
        for order in permutations(units)
        for end in range(1, 6)
    ]
    objective: Objective = "ttft" if prefill else "latency"
    values = {(way.replicas[0], way.cut): value(objective, figures(world, way)) for way in ways if fits(world, way)}
    demand = Demand(-(-users // micro_batches), users, world.middle, 128, world.job.positions)
    got = list(every_cut(world, units, 2, [Ask(schedule, 1 if prefill else micro_batches, demand, prefill)]))
    assert bool(got) == bool(values)
    if got:
        assert values[got[0]] == pytest.approx(min(values.values()), rel=1e-9)


def test_a_group_hands_on_slices() -> None:
    """The head is better on the faster group, if a message there takes less than it saves: one row's does, two do not.

    Two users: each rank of two hands on one row.
    """
    speeds = {"a": (100, 8), "b": (100, 8), "c": (300, 8), "d": (300, 8)}
    units = (Unit(("a", "b")), Unit(("c", "d")))

    def best(bandwidth: float) -> dict[tuple[Unit, ...], float]:
        world = world_to(bandwidth)
        found: dict[tuple[Unit, ...], float] = {}
        for order, end in product(permutations(units), range(1, 30)):
            way = Way((order,), ((0, end), (end, 30)), LAYERWISE, 1, 2, 128)
            found[order] = min(found.get(order, INF), figures(world, way)["time_per_token_s"])
        return found

    def world_to(bandwidth: float) -> World:
        cluster = single(speeds)
        to_fast = {("a", "c"), ("b", "d")}
        links = (
            replace(link, bandwidth=bandwidth) if (link.source, link.target) in to_fast else link
            for link in cluster.links
        )
        changed = replace(cluster, links=tuple(links))
        return World(SMOL, changed, Job(300, 64, 2), ServingModel(SMOL, changed))

    free = best(1e15)
    saved_s = free[units[::-1]] - free[units]
    assert saved_s > 0
    slow = 576 * 2 / (saved_s / 1.5)
    shown = best(slow)
    assert shown[units] == pytest.approx(free[units] + saved_s / 1.5, rel=1e-6)
    world = world_to(slow)
    demand = Demand(2, 2, world.middle, 128, world.job.positions)
    ((order, _),) = every_cut(world, units, 2, [Ask(LAYERWISE, 1, demand, False)])
    assert order == units


@pytest.mark.parametrize("goal", OBJECTIVES)
@pytest.mark.parametrize("more", ["device", "memory", "bandwidth", "flops", "link"])
def test_more_never_makes_the_best_worse(more: str, goal: Objective) -> None:
    for seed in range(24):
        draw = Random(seed)
        cluster, which = drawn(draw, draw.choice([2, 3, 3, 4])), draw.randrange(4)
        job, which = Job(draw.choice([128, 700]), 64, draw.choice([1, 2, 3, 8])), which % len(cluster.devices)
        before = best_s(poorer(cluster, which, more), goal, job, 16)
        assert best_s(richer(cluster, which, more), goal, job, 16) <= before * (1 + 1e-9)


def poorer(cluster: Cluster, which: int, more: str) -> Cluster:
    """Without the device, where that is what is added."""
    if more != "device":
        return cluster
    name = cluster.devices[which].name
    return replace(
        cluster,
        devices=tuple(device for device in cluster.devices if device.name != name),
        links=tuple(link for link in cluster.links if name not in (link.source, link.target)),
    )


def richer(cluster: Cluster, which: int, more: str) -> Cluster:
    """One device better, or one link."""
    devices, links = list(cluster.devices), list(cluster.links)
    one, link = devices[which], links[which % len(links)]
    devices[which] = replace(
        one,
        memory_bytes=one.memory_bytes * (2 if more == "memory" else 1),
        memory_bandwidth=one.memory_bandwidth * (1.5 if more == "bandwidth" else 1),
        flops={"bfloat16": one.flops["bfloat16"] * (1.5 if more == "flops" else 1)},
    )
    if more == "link":
        links[which % len(links)] = replace(link, latency_s=link.latency_s / 3, bandwidth=link.bandwidth * 3)
    return replace(cluster, devices=tuple(devices), links=tuple(links))


def test_twice_the_memory_does_not_make_the_first_token_later() -> None:
    """Pieces of a prompt go through two stages in turn: best with a cut that neither the way nor the rate asks for."""
    cluster = single({"a": (500, 20), "b": (60, 20)}, 1e-4, 1.2e8, flops=5e12)
    small = replace(cluster, devices=(replace(cluster.devices[0], memory_bytes=5 * 10**9), cluster.devices[1]))
    job = Job(700, 64, 1)
    assert best_s(cluster, "ttft", job) <= best_s(small, "ttft", job)


def test_memory_of_every_device_is_named() -> None:
    cluster = single({"a": (100, 24), "b": (90, 23), "c": (80, 22), "d": (70, 21)}, 1e-5, 1e10)
    choice = plan_serving(plain(8, 1e9), cluster, Job(64, 64, 9), "throughput")
    assert {candidate.kind for candidate in choice.candidates} >= {"data", "pipeline", "data + tensor"}
    for candidate in choice.candidates:
        named = sorted(one.device for one in candidate.memory)
        assert named == sorted(name for stage in candidate.devices for name in stage)
