"""Training steps of every schedule, by the real executor on a virtual clock: done to the end, and nothing mixed up."""

from __future__ import annotations

import itertools
import random
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.comm.threads import thread_mesh
from plait.executor import step_executor
from plait.executor.program import NOWHERE, Program, compile_program
from plait.executor.step_executor import StepExecutor
from plait.plans.action import Action, Kind, Lane
from plait.plans.check_step import check_training_round
from plait.plans.round import Round
from plait.schedules.training import ONE_STAGE, TRAINING_SCHEDULES, V_SHAPED
from tests.executor.steps import Case, FoldingWorker, VirtualSteps

VIRTUAL = {"interleaved": 2, "layerwise": 2}


def case_of(schedule: str, positions: int, micro_batches: int, **more: int) -> Case:
    return Case(schedule, positions, micro_batches, VIRTUAL.get(schedule, 1), **more)  # type: ignore[arg-type]


def run_threads(case: Case, steps: int, sleep: random.Random | None = None) -> list[FoldingWorker]:
    """The same on real threads, each with its own delays."""
    layout, rounds = case.layout, [case.round(number) for number in range(steps)]
    endpoints = thread_mesh(layout.ranks, layout.link_capacity)
    errors: list[BaseException] = []
    delays = [[sleep.choice((0, 0, 1e-4, 2e-3)) if sleep else 0 for _ in range(50)] for _ in endpoints]

    def pause(rank: int) -> None:
        if sleep is not None:
            time.sleep(delays[rank].pop() if delays[rank] else 0)

    workers = [FoldingWorker(case, rank, lambda _, rank=rank: pause(rank)) for rank in range(layout.ranks)]

    def body(rank: int) -> None:
        try:
            with endpoints[rank]:
                executor = StepExecutor(layout, rank, endpoints[rank], workers[rank])
                for one in rounds:
                    executor.run(one)
                    workers[rank].require_right()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(layout.ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return workers


@pytest.mark.parametrize(("schedule", "positions"), list(itertools.product(TRAINING_SCHEDULES, (1, 2, 3, 4))))
def test_every_micro_batch_goes_through_every_stage_once(schedule: str, positions: int) -> None:
    """1 to 9 micro-batches, fewer than stages too, on links of 1 to 3 messages."""
    for micro_batches in range(1, 10):
        run = VirtualSteps(case_of(schedule, positions, micro_batches, capacity=1 + micro_batches % 3))
        run.require_planned(run.run())


@pytest.mark.parametrize(("schedule", "positions"), list(itertools.product(TRAINING_SCHEDULES, (2, 3, 4))))
def test_t18_no_pipeline_hangs(schedule: str, positions: int) -> None:
    """The checker proves it free of deadlock first; then it runs on real threads, with links of one message."""
    case = case_of(schedule, positions, 5, capacity=1)
    check_training_round(case.round(), case.layout)
    run_threads(case, 2)


@pytest.mark.parametrize("schedule", TRAINING_SCHEDULES)
@pytest.mark.parametrize("micro_batches", [1, 2, 3])
def test_t23_fewer_micro_batches_than_stages(schedule: str, micro_batches: int) -> None:
    run = VirtualSteps(case_of(schedule, 4, micro_batches, capacity=1), lambda rank, action: 1.0)
    run.require_planned(run.run())


@settings(max_examples=15, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 9), st.integers(1, 3))
def test_t19_interleaved_finishes_under_any_delay(delays: random.Random, micro_batches: int, capacity: int) -> None:
    """pp 4, 2 virtual stages, random seconds of every action on every rank."""
    case = Case("interleaved", 4, micro_batches, 2, capacity=capacity)
    run = VirtualSteps(case, lambda rank, action: delays.choice((0.0, 0.1, 1.0, 7.0)))
    run.require_planned(run.run())


def test_t19_on_threads_with_random_sleeps() -> None:
    for seed in range(5):
        run_threads(Case("interleaved", 4, 6, 2, capacity=1), 2, random.Random(seed))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    schedule = draw(st.sampled_from(TRAINING_SCHEDULES))
    virtual = 1 if schedule in ONE_STAGE + V_SHAPED else draw(st.integers(1, 3))
    positions, dp, tp = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
    case = Case(
        schedule,
        positions,
        draw(st.integers(1, 9)),
        virtual,
        dp,
        tp,
        capacity=draw(st.integers(1, 3)),
        buckets=draw(st.integers(1, 4)),
        zero=draw(st.integers(0, 1)) if dp > 1 else 0,
        norm=draw(st.booleans()),
        items=draw(st.integers(0, 12)),
    )
    return replace(case, tied=len(case.layout.stages) > 1 and draw(st.booleans()))


def require_any_delays(case: Case, delays: random.Random, latency_s: float) -> None:
    """Two steps one after the other, with random seconds of every action on every rank."""
    run = VirtualSteps(
        case,
        lambda rank, action: delays.choice((0.0, 0.1, 1.0, 7.0)),
        lambda source, to, size: (size / 100, latency_s),
    )
    run.require_planned(run.run(case.round(0), case.round(1)))


MESHES = (cases(), st.randoms(use_true_random=False), st.sampled_from((0.0, 0.3, 5.0)))


@settings(max_examples=20, deadline=None)
@given(*MESHES)
def test_any_mesh_any_delays(case: Case, delays: random.Random, latency_s: float) -> None:
    """Replicas and tensor groups too, gradients in parts, ZeRO, tied ends, the norm."""
    require_any_delays(case, delays, latency_s)


@pytest.mark.soak
@settings(max_examples=250, deadline=None)
@given(*MESHES)
def test_many_meshes_any_delays(case: Case, delays: random.Random, latency_s: float) -> None:
    require_any_delays(case, delays, latency_s)


def test_parts_and_whole_are_told_apart() -> None:
    """A position's lanes in full: two stages, the last backward of each in two parts."""
    run = VirtualSteps(Case("zb-v", 1, 1, dp=2, buckets=2, zero=1, norm=True, tied=True))
    run.run()
    lanes = {
        lane: " ".join(
            f"{a.stage}{a.kind.value}{'' if a.part is None else a.part}"
            for a in (event[0] for event in run.tracers[0].events)
            if a.kind.lane is lane
        )
        for lane in Lane
    }
    assert lanes == {
        Lane.COMPUTE: "0F 1F 1I 1W0 1W1 0I 0W0 0W1 0N 1O 0O",
        Lane.P2P: "",
        Lane.REDUCE: "1G0 1G1 0G0 0G1 1T 0T 1A 0A",
    }


def test_a_program_is_compiled_once_for_all_steps() -> None:
    case = Case("1f1b", 2, 4)
    run = VirtualSteps(case)
    run.run(*[case.round(number) for number in range(4)])
    assert [len(executor._programs) for executor in run.executors] == [1, 1]


def test_tensors_that_change_places_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seeded fault: two forwards of a stage take each other's message."""

    def swapped(*arguments: Any) -> Program:
        made = compile_program(*arguments)
        first, second, *others = made.computes
        if first.source == NOWHERE:
            return made
        computes = (first._replace(source=second.source), second._replace(source=first.source), *others)
        return made._replace(computes=computes)

    monkeypatch.setattr(step_executor, "compile_program", swapped)
    with pytest.raises(AssertionError):
        VirtualSteps(Case("gpipe", 2, 2)).run()


def test_messages_are_matched_by_name_and_not_by_order() -> None:
    """Two receives change places in a plan that is right all the same: the data stays with its micro-batch."""
    case = Case("gpipe", 2, 2)
    one = case.round()
    actions = list(one.actions[1])
    first, second = (actions.index(Action(0, 1, Kind.RECEIVE_FORWARD, number)) for number in (0, 1))
    actions[first], actions[second] = actions[second], actions[first]
    changed = Round(0, one.work, (one.actions[0], tuple(actions)))
    check_training_round(changed, case.layout)
    run = VirtualSteps(case)
    run.require_planned(run.run(changed))


def test_no_tensor_is_kept() -> None:
    """What was handed on is free: the executor holds no activation after its consumer has it."""
    run = VirtualSteps(Case("zb-v", 2, 4))
    run.run()
    assert all(value is None for executor in run.executors for value in executor._values)


def test_only_what_is_next_is_received() -> None:
    """A position in the middle takes a message off its link when it is first in the lane, not before: k means k."""
    seen: list[int] = []
    case = Case("gpipe", 2, 6, capacity=2)

    def seconds(rank: int, action: Action) -> float:
        seen.append(len(run.world.link(0, 1).messages))
        return 1.0 if rank == 0 else 3.0

    run = VirtualSteps(case, seconds)
    run.run()
    assert max(seen) == 2
