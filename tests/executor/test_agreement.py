"""What ran is what was planned: executor, checker and simulator read the same rounds the same way."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.costs.protocol import FixedCosts, LinkCost
from plait.errors import PlanError, RunError
from plait.plans.action import Lane
from plait.plans.check import check_rounds
from plait.plans.round import Round
from plait.plans.rules import waits
from plait.schedules.forecast import forecast_rounds
from plait.schedules.prove import prove_plan
from plait.simulator.simulate import simulate
from plait.spec.model import ModelSpec, Rope
from plait.timeline.timeline import Timeline
from tests.executor.world import VirtualRun, make_plan

SPEC = ModelSpec("tiny", "llama", 9, 1, 1, 1, 2, 4, 10, 4096, 1e-5, Rope(10_000.0, 2), (None,) * 9)

TP = (2, 3)
TENSOR_PIPELINES = [(2, "layerwise", 1), (2, "pipelined", 2), (3, "pipelined", 4)]

grid = list(itertools.product((1, 2, 3, 5), ("layerwise", "pipelined"), (1, 2, 3, 4), (40, 200)))


def planned(rounds: list[Round], stage: int, lane: Lane) -> list[object]:
    return [action for one in rounds for action in one.actions[stage] if action.kind.lane is lane]


def require_agreement(run: VirtualRun, timeline: Timeline) -> None:
    stages = len(run.plan.layout.stages)
    check_rounds(run.rounds, stages, run.plan.layout.link_capacity)
    ranks = [(rank, stage) for stage in range(stages) for rank in run.plan.layout.stages[stage].ranks]
    for (rank, stage), lane in itertools.product(ranks, Lane):
        recorded = [action for action in run.recorded[rank] if action.kind.lane is lane]
        assert recorded == planned(run.rounds, stage, lane)
    everything = [(rank, action) for one in run.rounds for rank, stage in ranks for action in one.actions[stage]]
    assert Counter((span.rank, span.action) for span in timeline.spans) == Counter(everything)


def require_waits(run: VirtualRun, timeline: Timeline) -> None:
    """No action begins before what it waits for has ended."""
    ends = {(span.rank, span.action): span.end_s for span in timeline.spans}
    starts = {(span.rank, span.action): span.start_s for span in timeline.spans}
    for one in run.rounds:
        for actions, stage in zip(one.actions, run.plan.layout.stages, strict=True):
            for action, waited in zip(actions, waits(actions), strict=True):
                for rank in stage.ranks:
                    assert all(ends[rank, actions[i]] <= starts[rank, action] + 1e-9 for i in waited), (rank, action)


@pytest.mark.parametrize(("stages", "schedule", "micro_batches", "prompt"), grid)
def test_what_ran_is_what_was_planned(stages: int, schedule: str, micro_batches: int, prompt: int) -> None:
    micro_batches = 1 if schedule == "layerwise" else micro_batches
    run = VirtualRun(make_plan(stages, schedule, micro_batches), [prompt] * 4, 5, latency_s=0.01)
    timeline = run.run()
    assert run.tokens == dict.fromkeys(range(4), 5)
    require_agreement(run, timeline)
    require_waits(run, timeline)


@pytest.mark.parametrize(("stages", "schedule", "micro_batches", "prompt"), grid)
def test_the_simulator_predicts_the_virtual_run(stages: int, schedule: str, micro_batches: int, prompt: int) -> None:
    """Same rules, same rounds, same times: the simulator's compute spans are the executor's to the nanosecond."""
    _, measured, predicted = both(stages, schedule, micro_batches, prompt, capacity=16)
    assert compute_spans(predicted) == compute_spans(measured)


@pytest.mark.parametrize(("stages", "schedule", "micro_batches", "prompt"), grid)
def test_a_tight_link_only_makes_the_run_later(stages: int, schedule: str, micro_batches: int, prompt: int) -> None:
    """The executor's lane moves between two computations, the simulator's at any time: a full link shows that."""
    run, measured, predicted = both(stages, schedule, micro_batches, prompt, capacity=micro_batches)
    require_agreement(run, measured)
    assert measured.makespan_s >= predicted.makespan_s - 1e-9


@pytest.mark.parametrize("tp", TP)
@pytest.mark.parametrize(("stages", "schedule", "micro_batches"), [(1, "layerwise", 1), *TENSOR_PIPELINES])
def test_tensor_groups_run_what_was_planned_and_predicted(
    stages: int, schedule: str, micro_batches: int, tp: int
) -> None:
    """Every rank of a group does the same at the same time, so a stage's spans are those of one rank."""
    run, measured, predicted = both(stages, schedule, micro_batches, 200, capacity=16, tp=tp)
    require_agreement(run, measured)
    require_waits(run, measured)
    assert Counter(dict.fromkeys(((span.rank, span.action) for span in predicted.spans), 1)) == Counter(
        (span.rank, span.action) for span in measured.spans
    )
    assert compute_spans(predicted) == compute_spans(measured)
    _, alone, _ = both(stages, schedule, micro_batches, 200, capacity=16)
    assert measured.makespan_s == alone.makespan_s


def both(
    stages: int, schedule: str, micro_batches: int, prompt: int, capacity: int, tp: int = 1
) -> tuple[VirtualRun, Timeline, Timeline]:
    micro_batches = 1 if schedule == "layerwise" else micro_batches
    plan = make_plan(stages, schedule, micro_batches, capacity=capacity, tp=tp)
    run = VirtualRun(plan, [prompt] * 4, 5, lambda stage, one, micro_batch: 1.0 + stage / 3, latency_s=0.125)
    measured = run.run()
    costs = FixedCosts({stage: 1.0 + stage / 3 for stage in range(stages)}, any_link=LinkCost(0.125, float("inf")))
    return run, measured, simulate(plan.layout, run.rounds, costs, SPEC)


def compute_spans(timeline: Timeline) -> dict[object, tuple[float, float]]:
    return {
        (span.rank, span.action): (round(span.start_s - timeline.start_s, 9), round(span.end_s - timeline.start_s, 9))
        for span in timeline.spans
        if span.action.kind.lane is Lane.COMPUTE
    }


@pytest.mark.parametrize(("stages", "schedule", "micro_batches", "prompt"), grid)
def test_the_forecast_is_the_run(stages: int, schedule: str, micro_batches: int, prompt: int) -> None:
    micro_batches = 1 if schedule == "layerwise" else micro_batches
    run = VirtualRun(make_plan(stages, schedule, micro_batches), [prompt, prompt + 30, 64], 4)
    run.run()
    assert forecast_rounds(run.plan, run.prompts, 4) == run.rounds


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 4),
    st.lists(st.integers(1, 150), min_size=1, max_size=7),
    st.integers(1, 5),
    st.integers(0, 2),
    st.integers(1, 3),
    st.randoms(use_true_random=False),
)
def test_any_delays_and_early_ends(stages, micro_batches, prompts, slots, room, tp, random) -> None:  # type: ignore[no-untyped-def]
    """Random seconds per action and rank, requests that end when they like, fewer slots than requests, a tight link."""
    run = VirtualRun(
        make_plan(stages, "pipelined", micro_batches, capacity=micro_batches + room, slots=slots, tp=tp),
        prompts,
        6,
        lambda stage, one, micro_batch: random.choice((0.0, 0.1, 1.0, 7.0)),
        ends_early=lambda request, count: random.random() < 0.3,
    )
    timeline = run.run()
    assert set(run.tokens) == set(range(len(prompts)))
    assert all(1 <= count <= 6 for count in run.tokens.values())
    require_agreement(run, timeline)
    require_waits(run, timeline)


@pytest.mark.parametrize("tp", [1, 2, 3])
def test_links_of_one_message_suffice_a_tensor_group(tp: int) -> None:
    """Every rank of the first stage takes tokens when rank 0 does: else they would fill the links of the others."""
    run = VirtualRun(make_plan(2, "pipelined", 1, capacity=1, slots=3, tp=tp), [1, 1, 1], 6, lambda *_: 1.0)
    require_agreement(run, run.run())


def test_layerwise_has_one_stage_at_work() -> None:
    run = VirtualRun(make_plan(3, "layerwise", 1), [130, 70], 4)
    timeline = run.run()
    spans = sorted((s for s in timeline.spans if s.action.kind.lane is Lane.COMPUTE), key=lambda s: s.start_s)
    assert all(before.end_s <= after.start_s for before, after in itertools.pairwise(spans))
    assert timeline.makespan_s == (3 + 2 + 3) * 3  # chunks of both prompts, then 3 tokens for both together


def test_as_many_micro_batches_as_stages_fill_the_pipeline() -> None:
    """Two users on two equal stages: after the first round no stage ever waits again."""
    run = VirtualRun(make_plan(2, "pipelined", 2), [10, 10], 9)
    timeline = run.run()
    assert timeline.makespan_s == 2 + 8 * 2 + 1  # two prompts, eight further tokens each, one second to fill


def test_a_wrong_order_is_caught() -> None:
    """The seeded fault: an executor that takes the micro-batches in another order than the plan's."""
    run = VirtualRun(make_plan(2, "pipelined", 2), [10, 10], 3)
    original = run.executors[1].run

    def swapped(one: Round, skip: int = 0) -> None:
        actions = tuple(sorted(one.actions[1], key=lambda action: -action.micro_batch))
        original(Round(one.number, one.work, (one.actions[0], actions), one.carried_in, one.carried_out), skip)

    run.executors[1].run = swapped  # type: ignore[method-assign]
    timeline = run.run()
    with pytest.raises(AssertionError):
        require_agreement(run, timeline)


def test_a_plan_whose_links_are_too_small_is_refused_and_does_hang() -> None:
    plan = make_plan(2, "pipelined", 4, capacity=1)
    with pytest.raises(PlanError) as error:
        prove_plan(plan)
    assert str(error.value) == (
        "link_capacity = 1 is too small for 4 micro-batches (deadlock: 1:1ST1 waits for room on link 1→0, "
        "which holds 1 unreceived): link_capacity = 4 is enough"
    )
    with pytest.raises(RunError) as broken:
        VirtualRun(plan, [40] * 4, 5).run()
    assert str(broken.value) == "deadlock: ranks [0, 1] wait for messages that nobody sends"


@pytest.mark.parametrize(("stages", "micro_batches"), list(itertools.product((1, 2, 3, 5), (1, 2, 3, 4, 8))))
def test_as_many_messages_as_micro_batches_are_enough(stages: int, micro_batches: int) -> None:
    prove_plan(make_plan(stages, "pipelined", micro_batches, capacity=micro_batches))
    prove_plan(make_plan(stages, "layerwise", 1, capacity=1))
