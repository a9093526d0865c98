"""Why the other ways of a local plan lost: the figures of the simulations that chose it, by hand, and in words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.planner.local import Candidate, LocalChoice, choose_local
from plait.planner.local_words import ONE_PROCESS, beaten_ways
from tests.planner.test_local import SPEC, Weighing, wishes


def chosen(costs: Weighing, **changes: object) -> LocalChoice:
    return choose_local(SPEC, wishes(**changes), lambda plan: costs)


def test_by_hand() -> None:
    """12 layers of 1 ms on one thread, 4 users, 20 tokens, of which 12 are simulated.

    Layer-wise, and one process, on two threads: 6 ms a pass, 4 × 6 + 19 × 6 = 138 ms. One thread a stage: 258 ms. Of
    12 tokens: layer-wise computes 4 × 6 + 11 × 6 = 90 ms in all, one stage at a time, so that both wait as long.
    Pipelined stages compute 6 ms each for each of 4 + 11 passes, 180 ms, in 5 × 6 + 11 × 12 = 162 ms; two micro-batches
    of two users each compute 22 passes in place of 11, 4 × 12 + 22 × 12 = 312 ms, and keep both stages at work.
    """
    choice = chosen(Weighing())
    ways = beaten_ways(choice)
    assert [one.name for one in ways] == ["pipelined with 1 micro-batch", "pipelined with 2 micro-batches", ONE_PROCESS]
    assert [one.predicted["job_s"] for one in ways] == pytest.approx([0.258, 0.258, 0.138])
    assert [one.predicted["compute_s"] for one in ways] == pytest.approx([0.180, 0.312, 0.090])
    assert choice.best.figures["compute_s"] == pytest.approx(0.090)
    assert [one.loses for one in ways] == [
        "120 ms more for the job; its stages compute on 1 thread each, to run at the same time, and not on 2 (of all "
        "ranks' time in 12 tokens of each answer: compute +90 ms, transfer +0, wait +54 ms)",
        "120 ms more for the job; its stages compute on 1 thread each, to run at the same time, and not on 2; weights "
        "are read for each of 2 micro-batches, not of 1 (of all ranks' time in 12 tokens of each answer: compute "
        "+222 ms, transfer +0, wait -78 ms)",
        "no faster (of all ranks' time in 12 tokens of each answer: compute +0, transfer +0, wait -90 ms)",
    ]


def test_one_process_that_would_be_faster_says_so() -> None:
    """Pipelined was asked for, beside which nothing is known of one process on all threads; layer-wise tells it."""
    assert chosen(Weighing(), schedule="pipelined").alone is None
    assert chosen(Weighing(), tp=2).alone is None
    assert chosen(Weighing(), stages=1).alone is None
    choice = chosen(Weighing(), schedule="layerwise")
    assert choice.alone is not None
    faster = replace(choice, alone=replace(choice.alone, job_s=choice.best.job_s - 0.02))
    (one,) = beaten_ways(faster)
    assert one.loses.startswith("20 ms less for the job, but 2 stages were asked for (of all ranks' time")


def test_other_chunks_of_the_same_way_are_told() -> None:
    """A long prompt through a pipeline, every row costing the same: smaller chunks fill both stages."""
    choice = chosen(Weighing(base_s=0.0, row_s=1e-5), prompts=(500,), schedule="pipelined", max_tokens=2, context=512)
    ways = beaten_ways(choice)
    assert choice.plan.chunk == 64
    assert [one.name for one in ways] == [
        f"pipelined with 1 micro-batch, chunks of {chunk}" for chunk in (128, 256, 500 // 64 * 64 + 64)
    ]
    assert all("prompts go in chunks of " in one.loses for one in ways)


@given(st.floats(0, 0.01), st.floats(1e-4, 0.01), st.integers(1, 6), st.integers(2, 3))
@settings(max_examples=25, deadline=None)
def test_nothing_that_lost_is_faster(base_s: float, row_s: float, users: int, stages: int) -> None:
    """But one process, which was not among what was asked for; every way is told once."""
    choice = chosen(Weighing(base_s, row_s), prompts=(40,) * users, stages=stages)
    ways = beaten_ways(replace(choice, alone=None))
    assert [one.predicted["job_s"] for one in ways] == sorted(one.predicted["job_s"] for one in ways)
    assert all(one.predicted["job_s"] >= choice.best.job_s for one in ways)
    told = {(one.plan.schedule, one.plan.micro_batches) for one in choice.candidates}
    assert len({one.name for one in ways}) == len(ways) >= len(told) - 1


def test_a_candidate_without_figures_is_told_by_its_seconds() -> None:
    choice = chosen(Weighing())
    bare = [Candidate(one.plan, one.job_s, one.time_per_token_s) for one in choice.candidates]
    best = bare[choice.candidates.index(choice.best)]
    ways = beaten_ways(LocalChoice(choice.plan, best, tuple(bare)))
    assert ways[0].loses == (
        "120 ms more for the job (of all ranks' time in 0 tokens of each answer: compute +0, transfer +0, wait +0)"
    )
