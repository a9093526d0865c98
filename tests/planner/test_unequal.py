from __future__ import annotations

from itertools import combinations, pairwise, permutations

import pytest

from plait.errors import CapacityError
from plait.planner.cut import Cut
from plait.planner.placement import cut_of
from plait.planner.result import Choice
from plait.planner.space import TrainingLimits
from plait.planner.training import plan_training
from plait.planner.unequal_costs import Machines, Way, counted
from plait.plans.split import Split, TrainingSetup
from plait.plans.training import TrainingPlan
from plait.spec.cluster import Cluster, Device, Host, Link
from plait.spec.job import TrainingJob

from .training_clusters import gpu, model, unequal

JOB = TrainingJob(16, 512)


def used(choice: Choice) -> set[str]:
    return {name for names in choice.chosen.devices for name in names}


def test_a_slow_machine_is_left_out() -> None:
    """Public case P4, for training: B is so much slower that it only makes A wait."""
    choice = plan_training(model(layers=4), unequal((300, 80), (3, 80)), JOB)
    assert choice.chosen.kind == "one device"
    assert used(choice) == {"m0"}
    assert "m1 is left out, with all 2 it takes " in choice.reason
    pipeline = next(one for one in choice.candidates if one.kind == "pipeline")
    assert pipeline.predicted["step_s"] > choice.chosen.predicted["step_s"]
    assert pipeline.loses.startswith("m")


def test_a_faster_machine_has_more_layers() -> None:
    choice = plan_training(model(layers=12), unequal((300, 80), (150, 80), bandwidth=100e9), TrainingJob(64, 512))
    assert choice.chosen.kind == "pipeline"
    layers = {
        names[0]: end - first for names, (first, end) in zip(choice.chosen.devices, choice.chosen.cut, strict=True)
    }
    assert layers["m0"] >= 1.5 * layers["m1"]


def test_memory_is_counted_position_by_position() -> None:
    choice = plan_training(model(layers=8), unequal((300, 1.6), (250, 1.6), (200, 1.6)), JOB)
    assert choice.chosen.split.pp > 1
    for one in choice.candidates:
        for memory in one.memory:
            assert memory.need_bytes <= memory.free_bytes == 1_600_000_000
    alone = next(one for one in choice.rejected if dict(one.split) == {"dp": 1, "pp": 1})
    assert alone.need > alone.have == 1.6e9
    assert alone.reason.startswith("memory: it would need at least ")
    assert alone.reason.endswith(", the largest device has 1.5 GiB")


def test_replicas_of_unequal_pipelines() -> None:
    """Two fast and two slow machines, none of which holds the model: two pipelines of a fast and a slow one."""
    choice = plan_training(model(), unequal((300, 1.9), (300, 1.9), (200, 1.9), (200, 1.9)), TrainingJob(64, 512))
    both = [one for one in choice.candidates if one.split == Split(dp=2, pp=2)]
    assert both
    for names in both[0].devices:
        assert len(names) == 2
        assert len({int(name[1:]) // 2 for name in names}) == 1  # a stage's replicas are equal machines
    assert isinstance(both[0].plan, TrainingPlan)
    assert [stage.ranks for stage in both[0].plan.layout.stages] == [(0, 1), (2, 3)]


def brute_force(cluster: Cluster, layers: int, size: int, schedule: str) -> float:
    """The best pipeline of all, by every order of every set of machines and every cut."""
    machines = Machines(model(layers=layers), JOB, cluster)
    best = float("inf")
    for pp in range(1, len(cluster.devices) + 1):
        for order in permutations(cluster.devices, pp):
            for ends in combinations(range(1, layers), pp - 1):
                setup = TrainingSetup(Split(pp=pp), schedule if pp > 1 else "1f1b", size, JOB.batch // size)
                cut = cut_of([b - a for a, b in zip((0, *ends), (*ends, layers), strict=True)])
                (one,) = counted(machines, [way(setup, order, cut)])
                if one.over_bytes <= 0:
                    best = min(best, one.figures["step_s"])
    return best


def way(setup: TrainingSetup, order: tuple[Device, ...], cut: Cut) -> Way:
    return Way(setup, tuple((device,) for device in order), cut)


@pytest.mark.parametrize(
    ("machines", "bandwidth"),
    [
        (((300, 80), (200, 80), (100, 80)), 1e11),
        (((300, 80), (200, 80), (100, 80)), 1e9),
        (((300, 1.7), (200, 80), (90, 80)), 1e10),
    ],
)
def test_as_good_as_every_order_and_cut(machines: tuple[tuple[float, float], ...], bandwidth: float) -> None:
    cluster = unequal(*machines, bandwidth=bandwidth)
    limits = TrainingLimits(micro_batch=2, schedules=("1f1b",), recompute=("none",), dp=1)
    choice = plan_training(model(layers=6), cluster, JOB, limits=limits)
    expected = brute_force(cluster, 6, 2, "1f1b")
    assert choice.chosen.predicted["step_s"] == pytest.approx(expected)


def test_directed_links_decide_the_order() -> None:
    """Between m0 and m1 it is slow, so that they are no neighbours; m2 may stand between them."""
    devices = tuple(gpu(f"m{i}", f"h{i}", 1.9, 300 - i) for i in range(3))
    slow = {("m0", "m1"), ("m1", "m0")}
    links = tuple(
        Link(one.name, other.name, 1e-5, 1e7 if (one.name, other.name) in slow else 1e11)
        for one in devices
        for other in devices
        if one is not other
    )
    cluster = Cluster(tuple(Host(device.host) for device in devices), devices, links)
    choice = plan_training(model(), cluster, JOB)
    order = [names[0] for names in choice.chosen.devices]
    assert {"m0", "m1"} not in [set(pair) for pair in pairwise(order)]
    assert "m2" in order


def test_break_even_is_in_times_the_links() -> None:
    def over(bandwidth: float) -> Choice:
        return plan_training(model(layers=12), unequal((300, 80), (150, 80), bandwidth=bandwidth), TrainingJob(64, 512))

    choice = over(1e10)
    (one,) = (each for each in choice.break_even if each.kind == "one device")
    assert one.quantity == "bandwidth of all links, × what it is"
    assert one.text == f"one device wins below {one.value:.3g} × the bandwidth of these links, in place of pipeline"
    assert 0 < one.value < 1
    assert over(1e10 * one.value * 0.95).chosen.kind == "one device"
    assert over(1e10 * one.value * 1.05).chosen.kind == choice.chosen.kind == "pipeline"


def test_nothing_fits() -> None:
    with pytest.raises(CapacityError) as error:
        plan_training(model(), unequal((300, 0.5), (200, 0.5)), JOB)
    assert str(error.value) == (
        "tiny does not fit on these 2 devices: weights, gradients and optimizer states alone take 2.6 GiB, "
        "all devices together have 953.7 MiB, 1.7 GiB are missing"
    )
