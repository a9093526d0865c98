"""The arrays against the cost model, one row at a time: bytes equal, seconds a bound."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

from plait.costs.training import TrainingModel
from plait.planner.grid import Found, Grid
from plait.planner.scoring import closed
from plait.planner.selection import Selection
from plait.planner.space import SCHEDULES, TrainingLimits, divisors
from plait.plans.split import RECOMPUTE, Split, TrainingSetup
from plait.schedules.training import V_SHAPED
from plait.spec.cluster import Cluster, equal_machine
from plait.spec.job import TrainingJob
from plait.spec.model import ModelSpec

from .training_clusters import cluster, model

JOB = TrainingJob(16, 512)


def costs(spec: ModelSpec, machines: Cluster, job: TrainingJob = JOB) -> TrainingModel:
    machine = equal_machine(machines)
    assert machine is not None
    return TrainingModel(spec, job, machine)


def rows(found: Found) -> Iterator[tuple[int, float, float]]:
    yield from zip(found.rows.tolist(), found.need_bytes.tolist(), found.bound_s.tolist(), strict=True)


CASES = {
    "dense": (model(), cluster()),
    "layers that do not divide": (model(layers=7, heads=12, hidden=768), cluster(3, 2)),
    "experts": (model(layers=6, experts=8), cluster(2, 4)),
    "a heavy head": (model(layers=10, vocab=100_000), cluster(2, 4, host_bandwidth=12e9)),
}


@pytest.mark.parametrize("name", CASES)
def test_bytes_are_those_of_the_cost_model_and_seconds_a_bound(name: str) -> None:
    spec, machines = CASES[name]
    grid = Grid(costs(spec, machines), len(machines.devices), TrainingLimits(zero=(0, 1, 2, 3)))
    seen = 0
    rng = np.random.default_rng(0)
    for found in grid.search():
        for row, need, bound in rows(found):
            if rng.random() > 0.08:
                continue
            one = closed(grid.model, grid.setup(row, found.way, found.zero))
            assert need == pytest.approx(max(one.need_bytes), rel=1e-6), one.setup
            assert bound <= one.step_s * (1 + 1e-6), one.setup
            assert bound > 0.6 * one.step_s, one.setup
            seen += 1
    assert seen > 50


def every_setup(spec: ModelSpec, job: TrainingJob, devices: int, per_host: int) -> Iterator[TrainingSetup]:
    """Written out anew, by loops: all that the space's description names."""
    experts = divisors(spec.experts.count) if spec.experts else [1]
    tensor = [tp for tp in range(1, spec.heads + 1) if per_host % tp == 0 or tp in (2 * per_host, 4 * per_host)]
    for dp, pp, tp, ep in product(range(1, devices + 1), range(1, spec.layers + 1), tensor, experts):
        if dp * pp * tp * ep > devices or job.batch % (dp * ep):
            continue
        share = job.batch // (dp * ep)
        for size, recompute, zero, wide in product(divisors(share), RECOMPUTE, (0, 1), (False, True)):
            if recompute == "selective" or (zero and dp * ep == 1) or (wide and tp == 1):
                continue
            for schedule in SCHEDULES:
                for virtual in (1, 2, 3, 4, 6, 8):
                    if schedule == "interleaved":
                        stages = pp * virtual
                        even = any((spec.layers + fewer) % stages == 0 for fewer in range(3))
                        if virtual == 1 or pp == 1 or stages > spec.layers or not even:
                            continue
                    elif (
                        virtual != (2 if schedule in V_SHAPED else 1)
                        or pp * virtual > spec.layers
                        or (pp == 1 and schedule != "1f1b")
                    ):
                        continue
                    split = Split(dp, pp, tp, ep)
                    yield TrainingSetup(split, schedule, size, share // size, virtual, recompute, zero, wide)


@pytest.mark.parametrize(
    ("spec", "machines", "memory_gb"),
    [
        (model(layers=4), cluster(1, 4), 80.0),
        (model(layers=4), cluster(2, 2, memory_gb=2.0, between=1e9), 2.0),
        (model(layers=6, hidden=2048, vocab=50_000), cluster(2, 2, memory_gb=5.0), 5.0),
        (model(layers=3, experts=4), cluster(2, 2, memory_gb=4.0), 4.0),
    ],
    ids=["free", "tight and slow links", "heavy ends", "experts"],
)
def test_the_chosen_is_the_least_of_all(spec: ModelSpec, machines: Cluster, memory_gb: float) -> None:
    job = TrainingJob(8, 512)
    count = len(machines.devices)
    counting = costs(spec, machines, job)
    selection = Selection(Grid(counting, count, TrainingLimits()))
    best = selection.best(10)
    per_host = count // len(machines.hosts)
    everything = [closed(counting, setup) for setup in every_setup(spec, job, count, per_host)]
    fitting = [one for one in everything if max(one.need_bytes) <= memory_gb * 1e9]
    assert selection.looked_at == len(everything)
    expected = sorted(one.step_s for one in fitting)[:10]
    assert [one.step_s for one in best] == pytest.approx(expected, rel=1e-9)
    rejected = sum(one.count for one in selection.rejected())
    assert rejected == len(everything) - len(fitting)
    for one in selection.rejected():
        assert one.need > one.have
