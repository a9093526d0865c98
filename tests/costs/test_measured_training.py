"""Costs of training from measured times: worked out by hand, and bytes that are the rule's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plait.costs.measured_training import MeasuredTrainingCosts, PassTimes, StageTimes, TrainingKernel, TrainingTimes
from plait.costs.protocol import FREE, Exchange, LinkCost
from plait.planner.training_local import local_training_plan
from plait.plans.action import Kind
from plait.plans.round import MicroBatch
from plait.plans.split import Split, TrainingSetup
from plait.plans.training_exchanges import step_bytes
from plait.schedules.step import executed_round
from plait.simulator.simulate import simulate
from plait.spec.model import ModelSpec, Rope
from plait.timeline.training_metrics import training_metrics

SPEC = ModelSpec("tiny", "llama", 4, 24, 4, 2, 6, 40, 97, 64, 1e-5, Rope(1e4, 6), (None,) * 4)
COMPUTING = StageTimes(PassTimes(1.0, 2.0, 1.25, 0.75), PassTimes(0.5, 0.25, 0.0, 0.25), PassTimes(3.0, 4.0, 2.0, 2.0))
EXCHANGING = StageTimes(PassTimes(0.1, 0.2, 0.2, 0.0), PassTimes(0.05, 0.0, 0.0, 0.0), PassTimes(0.3, 0.4, 0.4, 0.0))
NOTHING = StageTimes(*(PassTimes(0.0, 0.0, 0.0, 0.0),) * 3)
WORK = MicroBatch(())


def costs(
    split: Split,
    schedule: str = "1f1b",
    virtual: int = 1,
    *,
    spec: ModelSpec = SPEC,
    zero: int = 0,
    cores: int = 8,
    together: int = 2,
    link: LinkCost | None = None,
    sequence: bool = False,
) -> MeasuredTrainingCosts:
    setup = TrainingSetup(split, schedule, 1, 2, virtual, "none", zero, sequence)
    plan = local_training_plan(spec, setup, 2 * split.dp, 8, "float32")
    exchanging = EXCHANGING if split.tp > 1 else NOTHING
    times = TrainingTimes(together, COMPUTING, exchanging, 1e-3, 1e-4, 1e9, link)
    return MeasuredTrainingCosts(spec, plan, {TrainingKernel("float32", 1): times}, cores)


def test_a_stages_passes() -> None:
    """Layers, and the ends on the stages that have them."""
    one = costs(Split(pp=2))
    layout = one.plan.layout
    assert layout.cut == ((0, 2), (2, 4))
    kinds = (Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)
    assert [one.compute_s(layout, 0, WORK, kind) for kind in kinds] == [2.5, 4.25, 2.5, 1.75]
    assert [one.compute_s(layout, 1, WORK, kind) for kind in kinds] == [5.0, 8.0, 4.5, 3.5]
    alone = costs(Split())
    assert alone.compute_s(alone.plan.layout, 0, WORK, Kind.BACKWARD) == 4 * 2.0 + 0.25 + 4.0


def test_the_peak_is_of_the_ranks_or_of_the_cores() -> None:
    assert costs(Split(dp=2, pp=2), cores=8).peak_flops == 4e9
    assert costs(Split(dp=2, pp=2), cores=3).peak_flops == 3e9


def test_exchanges_are_some_of_a_pass() -> None:
    one = costs(Split(tp=2))
    layout = one.plan.layout
    inside = one.exchange(layout, 0, WORK, Kind.FORWARD)
    assert inside.seconds == pytest.approx(4 * 0.1 + 0.05 + 0.3)
    assert one.compute_s(layout, 0, WORK, Kind.FORWARD) == pytest.approx(4 * 1.0 + 0.5 + 3.0 + inside.seconds)
    assert one.exchange(layout, 0, WORK, Kind.OPTIMIZER) == Exchange()


def test_more_ranks_than_cores_take_turns() -> None:
    """4 ranks on 2 cores were measured as 2: all take twice as long. Measured as 4 they are as measured."""
    for together, factor in ((2, 2.0), (4, 1.0)):
        one = costs(Split(dp=4), cores=2, together=together)
        assert one.compute_s(one.plan.layout, 0, WORK) == pytest.approx(factor * (4 * 1.0 + 0.5 + 3.0))
    roomy = costs(Split(dp=4), cores=4)
    assert roomy.compute_s(roomy.plan.layout, 0, WORK) == pytest.approx(7.5)


def test_update_and_norm_by_the_numbers_that_a_rank_holds() -> None:
    """A layer has 24 × (24 + 2 × 12 + 24 + 3 × 40) + 2 × 24 numbers, an end 97 × 24; norms fill 32, and ends 2,336."""
    layer = 24 * (24 + 24 + 24 + 120) + 2 * 32
    whole = 4 * layer + 2 * 2336 + 32
    one = costs(Split())
    assert one.compute_s(one.plan.layout, 0, WORK, Kind.OPTIMIZER) == pytest.approx(1e-3 * whole)
    assert one.compute_s(one.plan.layout, 0, WORK, Kind.NORM) == pytest.approx(1e-4 * whole)
    sharded = costs(Split(dp=2), zero=1)
    assert sharded.compute_s(sharded.plan.layout, 0, WORK, Kind.OPTIMIZER) == pytest.approx(1e-3 * whole / 2)
    # each replica counts its pieces alone, sharded or not
    plain = costs(Split(dp=2))
    assert plain.compute_s(plain.plan.layout, 0, WORK, Kind.OPTIMIZER) == pytest.approx(1e-3 * whole)
    assert plain.compute_s(plain.plan.layout, 0, WORK, Kind.NORM) == pytest.approx(1e-4 * whole / 2)
    # of a position the norm is of all its stages
    v = costs(Split(pp=2), "zb-v", 2)
    assert v.compute_s(v.plan.layout, 1, WORK, Kind.NORM) == pytest.approx(1e-4 * 2 * layer)


def test_what_the_link_carries() -> None:
    """Two replicas: each sends all its gradients once; 0.5 s of latency there, and back."""
    one = costs(Split(dp=2), link=LinkCost(0.5, 1000.0))
    layout, whole = one.plan.layout, 4 * (24 * 192 + 64) + 2 * 2336 + 32
    assert one.reduce_bytes(layout, 0, Kind.REDUCE_GRADIENTS) == whole * 4
    assert one.reduce_s(layout, 0, Kind.REDUCE_GRADIENTS) == pytest.approx(1.0 + whole * 4 / 1000)
    assert one.reduce_s(layout, 0, Kind.REDUCE_GRADIENTS, 4) == pytest.approx(1.0 + whole / 1000)
    assert one.compute_s(layout, 0, WORK, Kind.NORM) == pytest.approx(1e-4 * whole / 2 + 0.5 + 56 / 1000)
    assert one.exchange(layout, 0, WORK, Kind.NORM).sent_bytes == 56
    assert one.link(layout, 0, 0) == LinkCost(0.5, 1000.0)
    alone = costs(Split())
    assert alone.link(alone.plan.layout, 0, 0) == FREE
    assert alone.reduce_s(alone.plan.layout, 0, Kind.REDUCE_GRADIENTS) == 0.0


def test_a_tied_embedding_is_exchanged_once() -> None:
    spec = replace(SPEC, tied=True)
    apart = costs(Split(pp=2), spec=spec)
    sent = [apart.reduce_bytes(apart.plan.layout, stage, Kind.REDUCE_TIED) for stage in (0, 1)]
    assert sent == [97 * 24 * 4] * 2
    v = costs(Split(dp=2, pp=2), "zb-v", 2, spec=spec)
    sent = [v.reduce_bytes(v.plan.layout, stage, Kind.REDUCE_TIED) for stage in (0, 3)]
    assert sent == [97 * 24 * 4, 0]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("split", "schedule", "virtual", "zero"),
    [
        (Split(), "1f1b", 1, 0),
        (Split(dp=2, pp=2, tp=2), "1f1b", 1, 1),
        (Split(dp=2, pp=2), "zb-v", 2, 0),
        (Split(pp=2, tp=2), "interleaved", 2, 0),
    ],
)
def test_a_predicted_step_sends_what_the_rule_says(
    split: Split, schedule: str, virtual: int, zero: int, tied: bool
) -> None:
    """But for what dividing over ranks and buckets rounds off."""
    spec = replace(SPEC, tied=tied)
    one = costs(split, schedule, virtual, spec=spec, zero=zero, link=LinkCost(1e-5, 1e9), sequence=split.tp > 1)
    timeline = simulate(one.plan.layout, [executed_round(0, one.plan, spec)], one, spec)
    found = training_metrics(timeline, one.plan.layout)
    wanted = step_bytes(spec, one.plan)
    completed = 2 * split.ranks * 4 * 1000 if split.tp > 1 else 0  # sums at the last backward are no action's
    assert sum(wanted.values()) - completed - 100 <= found["comm_bytes"] <= sum(wanted.values())
    assert found["step_s"] > 0
