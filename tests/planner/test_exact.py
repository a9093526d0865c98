"""The exact search against brute force: never a worse value, and the value is the assignment's own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.planner.cut import Cut
from plait.planner.exact import Assignment, Problem, best_in_order, best_latency, best_throughput

Best = Callable[..., Assignment | None]


def stage_s(problem: Problem, machine: int, layers: tuple[int, int]) -> float:
    """Seconds of a stage, or infinitely many where it does not fit, straight from the definition."""
    first, end = layers
    held = problem.layer_bytes[first:end].sum() + problem.fixed_bytes[machine]
    held += problem.first_bytes * (first == 0) + problem.last_bytes * (end == problem.layers)
    if held > problem.free_bytes[machine]:
        return float("inf")
    seconds = problem.layer_s[machine, first:end].sum() + problem.fixed_s[machine]
    return float(seconds + problem.first_s[machine] * (first == 0) + problem.last_s[machine] * (end == problem.layers))


def throughput_value(problem: Problem, machines: tuple[int, ...], cut: Cut) -> float:
    stages = [stage_s(problem, machine, layers) for machine, layers in zip(machines, cut, strict=True)]
    return max([*stages, *(float(problem.hand_over_s[pair]) for pair in itertools.pairwise(machines))])


def latency_value(problem: Problem, machines: tuple[int, ...], cut: Cut) -> float:
    stages = [stage_s(problem, machine, layers) for machine, layers in zip(machines, cut, strict=True)]
    links = [problem.hand_over_s[pair] + problem.latency_s[pair] for pair in itertools.pairwise(machines)]
    back = problem.back_s[machines[-1], machines[0]] if len(machines) > 1 else 0.0
    return float(sum(stages) + sum(links) + back)


def everything(problem: Problem, stages: int | None) -> Iterator[tuple[tuple[int, ...], Cut]]:
    counts = range(1, min(problem.machines, problem.layers) + 1) if stages is None else [stages]
    for count in counts:
        for ends in itertools.combinations(range(1, problem.layers), count - 1):
            cut = tuple(itertools.pairwise((0, *ends, problem.layers)))
            for machines in itertools.permutations(range(problem.machines), count):
                yield machines, cut


WAYS: dict[str, tuple[Best, Callable[[Problem, tuple[int, ...], Cut], float]]] = {
    "throughput": (best_throughput, throughput_value),
    "latency": (best_latency, latency_value),
}


@st.composite
def problems(draw: st.DrawFn, machines: int = 4, layers: int = 6) -> Problem:
    """Small whole numbers, so that equals, narrow memory, missing links and equal machines are common."""
    n, count = draw(st.integers(1, machines)), draw(st.integers(1, layers))

    def numbers(*shape: int, most: int = 6, missing: bool = False) -> Any:
        one = st.integers(0, most) | st.just(np.inf) if missing else st.integers(0, most)
        size = int(np.prod(shape))
        return np.array(draw(st.lists(one, min_size=size, max_size=size)), dtype=float).reshape(shape)

    alike = draw(st.booleans())
    layer_s = np.repeat(numbers(n, 1), count, axis=1) + 1 if alike else numbers(n, count, most=9)
    if draw(st.booleans()) and n > 1:
        layer_s[1] = layer_s[0]
    problem = Problem(
        layer_s=layer_s,
        fixed_s=numbers(n, most=2),
        first_s=numbers(n, most=2),
        last_s=numbers(n, most=4),
        layer_bytes=numbers(count, most=3),
        fixed_bytes=numbers(n, most=1),
        first_bytes=draw(st.integers(0, 2)),
        last_bytes=draw(st.integers(0, 2)),
        free_bytes=numbers(n, most=12) + 1,
        hand_over_s=numbers(n, n, most=8, missing=True),
        latency_s=numbers(n, n, most=3),
        back_s=numbers(n, n, most=4, missing=draw(st.booleans())),
    )
    if draw(st.booleans()):  # a plain network: equal machines are one class
        problem = replace(
            problem,
            fixed_s=np.zeros(n),
            first_s=np.zeros(n),
            last_s=np.ones(n),
            fixed_bytes=np.zeros(n),
            free_bytes=np.full(n, problem.free_bytes[0]),
            hand_over_s=np.full((n, n), problem.hand_over_s[0, 0]),
            latency_s=np.full((n, n), 1.0),
            back_s=np.full((n, n), 1.0),
        )
    return problem


@pytest.mark.parametrize("first", range(0, 200, 100))
def test_in_order_no_cut_is_better(first: int) -> None:
    for seed in range(first, first + 100):
        problem = rough(seed)
        order = tuple(range(problem.machines))
        cuts = (cut for machines, cut in everything(problem, problem.machines) if machines == order)
        least = min((throughput_value(problem, order, cut) for cut in cuts), default=np.inf)
        found = best_in_order(problem)
        assert (found.value_s if found else np.inf) == pytest.approx(least, rel=1e-12), f"seed {seed}"
        assert found is None or throughput_value(problem, order, found.cut) == pytest.approx(least, rel=1e-12)


def rough(seed: int) -> Problem:
    """Unlike `problems` nothing is small or plain: layers that some machine can hardly hold, many links missing."""
    one = np.random.default_rng(seed)
    n, layers = one.integers(2, 6), one.integers(1, 7)

    def numbers(most: int, *shape: int) -> Any:
        return one.integers(0, most + 1, shape).astype(float)

    layer_s, hand_over_s = numbers(9, n, layers), numbers(6, n, n)
    layer_s[one.random((n, layers)) < 0.15] = 30
    hand_over_s[one.random((n, n)) < 0.4] = np.inf
    return Problem(
        layer_s,
        numbers(2, n),
        numbers(2, n),
        numbers(4, n),
        numbers(3, layers),
        numbers(1, n),
        float(one.integers(0, 3)),
        float(one.integers(0, 3)),
        numbers(12, n) + 2,
        hand_over_s,
        numbers(3, n, n),
        numbers(4, n, n),
    )


@pytest.mark.parametrize("objective", WAYS)
@pytest.mark.parametrize("first", range(0, 400, 100))
def test_no_assignment_is_better_on_rough_problems(objective: str, first: int) -> None:
    best, value_of = WAYS[objective]
    for seed in range(first, first + 100):
        problem = rough(seed)
        stages = None if seed % 2 else 1 + seed // 2 % problem.machines
        found = best(problem, stages)
        least = min((value_of(problem, *one) for one in everything(problem, stages)), default=np.inf)
        assert (found.value_s if found else np.inf) == pytest.approx(least, rel=1e-12), f"seed {seed}"
        assert found is None or value_of(problem, found.machines, found.cut) == pytest.approx(least, rel=1e-12)


def test_a_stage_leaves_a_layer_for_each_that_follows() -> None:
    """Four machines for four layers: the first one may not take two, however fast it is. Found by a random search."""
    problem = Problem(
        layer_s=np.array([[3, 2, 9, 4], [5, 5, 1, 7], [6, 7, 5, 8], [1, 4, 7, 5]], dtype=float),
        fixed_s=np.array([0.0, 2, 0, 0]),
        first_s=np.array([0.0, 2, 2, 2]),
        last_s=np.array([2.0, 3, 1, 1]),
        layer_bytes=np.array([0.0, 0, 1, 3]),
        fixed_bytes=np.array([1.0, 0, 1, 1]),
        first_bytes=0,
        last_bytes=0,
        free_bytes=np.array([10.0, 10, 3, 13]),
        hand_over_s=np.array([[6, 4, 3, 1], [np.inf, 0, 0, 1], [4, 1, 2, 2], [6, 3, 1, 5]], dtype=float),
        latency_s=np.zeros((4, 4)),
        back_s=np.zeros((4, 4)),
    )
    found = best_throughput(problem, 4)
    assert found is not None
    assert found.value_s == min(throughput_value(problem, *one) for one in everything(problem, 4)) == 7
    assert found.cut == ((0, 1), (1, 2), (2, 3), (3, 4))


def test_a_longer_way_that_is_little_faster_is_not_given_up() -> None:
    """Two machines take 4 + 6 × 1.1 s, three 8 + 2 × 1.1 s: a bound that is a little too high would miss it."""
    found = best_latency(plain([1.0, 1.0, 1.1], 10, [4, 4, 10]))
    assert found is not None
    assert found.value_s == pytest.approx(10.2)
    assert len(found.machines) == 3


def test_no_machine_passes_on_what_it_does_not_compute() -> None:
    """The only way from 0 to 2 leads through 1, which would be slow for any layer: it must hold one all the same."""
    links = np.full((3, 3), np.inf)
    links[0, 1] = links[1, 2] = 0.0
    problem = replace(plain([1.0, 5.0, 1.0], 6, [3, 6, 3]), hand_over_s=links)
    found = best_throughput(problem)
    assert found == Assignment((0, 1, 2), ((0, 2), (2, 3), (3, 6)), 5.0, True)


@pytest.mark.parametrize("objective", WAYS)
@settings(max_examples=250, deadline=None)
@given(problems(), st.none() | st.integers(1, 4))
def test_no_assignment_is_better(objective: str, problem: Problem, stages: int | None) -> None:
    best, value_of = WAYS[objective]
    found = best(problem, stages)
    least = min((value_of(problem, *one) for one in everything(problem, stages)), default=np.inf)
    if found is None:
        assert least == np.inf
        return
    assert found.exact
    assert found.value_s == pytest.approx(least, rel=1e-12)
    assert value_of(problem, found.machines, found.cut) == pytest.approx(found.value_s, rel=1e-12)
    assert len(set(found.machines)) == len(found.machines) == len(found.cut)
    assert stages in (None, len(found.cut))


@pytest.mark.parametrize("objective", WAYS)
@settings(max_examples=100, deadline=None)
@given(problems())
def test_equals_are_the_fewest_machines(objective: str, problem: Problem) -> None:
    best, value_of = WAYS[objective]
    found = best(problem)
    if found is not None:
        ways = everything(problem, None)
        fewest = min(len(cut) for machines, cut in ways if value_of(problem, machines, cut) <= found.value_s + 1e-9)
        assert len(found.machines) == fewest


@pytest.mark.parametrize("objective", WAYS)
@settings(max_examples=60, deadline=None)
@given(problems(machines=5, layers=8), st.integers(0, 4), st.sampled_from(["machine", "memory", "link", "speed"]))
def test_more_never_makes_the_best_worse(objective: str, problem: Problem, which: int, more: str) -> None:
    best, _ = WAYS[objective]
    which %= problem.machines
    if more == "machine":
        richer, problem = problem, without(problem, which)
    elif more == "memory":
        free = problem.free_bytes.copy()
        free[which] *= 2
        richer = replace(problem, free_bytes=free)
    elif more == "link":
        links = problem.hand_over_s.copy()
        links[which] /= 2
        richer = replace(problem, hand_over_s=links)
    else:
        layer_s = problem.layer_s.copy()
        layer_s[which] /= 2
        richer = replace(problem, layer_s=layer_s)
    before, after = (best(one).value_s if best(one) else np.inf for one in (problem, richer))  # type: ignore[union-attr]
    assert after <= before * (1 + 1e-12)


def without(problem: Problem, which: int) -> Problem:
    """One machine too large to be of use becomes one without memory: as if it were not there."""
    free = problem.free_bytes.copy()
    free[which] = -1
    return replace(problem, free_bytes=free)


def plain(speeds_s: list[float], layers: int, free: list[float], hand_over: float = 0.0) -> Problem:
    """Equal layers of one unit of memory; every link the same."""
    n = len(speeds_s)
    zeros, none = np.zeros(n), np.zeros((n, n))
    layer_s = np.repeat(np.array(speeds_s)[:, None], layers, axis=1)
    return Problem(
        layer_s, zeros, zeros, zeros, np.ones(layers), zeros, 0, 0, np.array(free), none + hand_over, none, none
    )


class TestP1:
    """Public case P1: five machines, 40 layers of 1 GB, decoding bound by memory bandwidth, links free."""

    BANDWIDTHS = (264.4, 344.0, 308.7, 351.2, 177.6)
    PROBLEM = plain([1 / bandwidth for bandwidth in BANDWIDTHS], 40, [36, 96, 64, 96, 36])

    def test_many_users(self) -> None:
        found = best_throughput(self.PROBLEM)
        assert found is not None
        assert found.machines == (0, 1, 2, 3, 4)
        assert [end - first for first, end in found.cut] == [7, 10, 8, 10, 5]
        assert found.value_s == pytest.approx(0.02907, abs=5e-6)

    def test_one_user(self) -> None:
        found = best_latency(self.PROBLEM)
        assert found == Assignment((3,), ((0, 40),), pytest.approx(0.1139, abs=5e-5), True)

    def test_what_other_cuts_take(self) -> None:
        min_max = ((0, 7), (7, 17), (17, 25), (25, 35), (35, 40))
        by_memory = ((0, 4), (4, 16), (16, 24), (24, 36), (36, 40))
        assert latency_value(self.PROBLEM, (0, 1, 2, 3, 4), min_max) == pytest.approx(0.1381, abs=5e-5)
        assert latency_value(self.PROBLEM, (0, 1, 2, 3, 4), by_memory) == pytest.approx(0.1326, abs=5e-5)
        assert throughput_value(self.PROBLEM, (0, 1, 2, 3, 4), by_memory) == pytest.approx(0.03488, abs=5e-6)


def test_a_machine_that_slows_the_rest_is_left_out() -> None:
    found = best_throughput(plain([1.0, 1.0, 100.0], 10, [10, 10, 10]))
    assert found is not None
    assert found.machines == (0, 1)
    assert found.cut == ((0, 5), (5, 10))


def test_the_slow_machine_is_used_where_memory_forces_it() -> None:
    found = best_latency(plain([1.0, 4.0], 10, [8, 10], hand_over=0.5))
    assert found is not None
    assert found.value_s == pytest.approx(8 + 2 * 4 + 0.5)
    assert sorted(zip(found.machines, found.cut, strict=True))[0][1] in ((0, 8), (2, 10))


def test_directed_links_decide_the_order() -> None:
    problem = plain([1.0, 1.0, 1.0], 9, [4, 4, 4])
    links = np.full((3, 3), 50.0)
    links[2, 0] = links[0, 1] = 1.0
    for best in (best_throughput, best_latency):
        found = best(replace(problem, hand_over_s=links))
        assert found is not None
        assert found.machines == (2, 0, 1)


def test_it_does_not_fit() -> None:
    problem = plain([1.0, 1.0], 9, [4, 4])
    assert best_throughput(problem) is None
    assert best_latency(problem) is None


@pytest.mark.parametrize("best", [best_throughput, best_latency])
def test_more_stages_than_machines_or_layers(best: Best) -> None:
    assert best(plain([1.0, 1.0], 9, [9, 9]), 3) is None
    assert best(plain([1.0, 1.0, 1.0], 2, [9, 9, 9]), 3) is None


@pytest.mark.parametrize("best", [best_throughput, best_latency])
def test_a_hundred_equal_machines_are_one_class(best: Best) -> None:
    found = best(plain([1.0] * 100, 60, [7.0] * 100))
    assert found is not None
    assert found.exact
    assert found.value_s == (1.0 if best is best_throughput else 60.0)


def random_problem(machines: int, layers: int, seed: int) -> Problem:
    one = np.random.default_rng(seed)
    return Problem(
        layer_s=one.uniform(1, 5, (machines, 1)) * one.uniform(0.9, 1.1, (1, layers)) * 1e-3,
        fixed_s=one.uniform(0, 1e-3, machines),
        first_s=one.uniform(0, 1e-3, machines),
        last_s=one.uniform(0, 1e-3, machines),
        layer_bytes=np.full(layers, 1e9),
        fixed_bytes=np.zeros(machines),
        first_bytes=1e9,
        last_bytes=1e9,
        free_bytes=one.uniform(5e9, 30e9, machines),
        hand_over_s=one.uniform(0, 60e-3, (machines, machines)),
        latency_s=one.uniform(0, 1e-3, (machines, machines)),
        back_s=one.uniform(0, 1e-3, (machines, machines)),
    )


@pytest.mark.parametrize(("objective", "machines"), [("throughput", 16), ("latency", 10)])
def test_many_unequal_machines(objective: str, machines: int) -> None:
    """No brute force here: a lower bound by hand, and no neighbour (two machines exchanged) is better."""
    best, value_of = WAYS[objective]
    problem = random_problem(machines, 128, 7)
    found = best(problem)
    assert found is not None
    assert found.exact
    assert value_of(problem, found.machines, found.cut) == pytest.approx(found.value_s, rel=1e-9)
    for one, other in itertools.combinations(range(machines), 2):
        swapped = {one: other, other: one}
        order = tuple(swapped.get(machine, machine) for machine in found.machines)
        assert value_of(problem, order, found.cut) >= found.value_s * (1 - 1e-9)


@pytest.mark.parametrize(("objective", "machines"), [("throughput", 70), ("latency", 30)])
def test_beyond_the_limits_the_answer_is_real_and_says_that_it_proves_nothing(objective: str, machines: int) -> None:
    best, value_of = WAYS[objective]
    problem = random_problem(machines, 40, 3)
    found = best(problem)
    assert found is not None
    assert not found.exact
    assert value_of(problem, found.machines, found.cut) == pytest.approx(found.value_s, rel=1e-9)
    part = np.arange(10)
    few = best(replace(restricted(problem, part)))
    assert few is None or found.value_s <= few.value_s * 1.02


def restricted(problem: Problem, machines: Any) -> Problem:
    square = np.ix_(machines, machines)
    rows = ("layer_s", "fixed_s", "first_s", "last_s", "fixed_bytes", "free_bytes")
    changes: dict[str, Any] = {name: getattr(problem, name)[machines] for name in rows}
    changes |= {name: getattr(problem, name)[square] for name in ("hand_over_s", "latency_s", "back_s")}
    return replace(problem, **changes)
