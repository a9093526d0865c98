"""The memory of a training step, predicted and measured, and how records keep it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plait.costs.plan_memory import PlanMemory
from plait.planner.capacity import PROCESS_BYTES
from plait.plans.action import Action, Kind
from plait.simulator.memory import memory_over_time
from plait.simulator.step import forecast_step
from plait.spec.presets import cluster_preset
from plait.timeline.record import RunRecord
from plait.timeline.span import Span
from plait.timeline.timeline import MemoryTrack, Timeline
from plait.tracer.tracer import Tracer
from plait.trainer import predicted_memory
from plait.trainer.predicted_memory import with_step_memory
from plait.trainer.protocol import Finished, Ready, StepDone
from plait.trainer.train import Following, remembered
from plait.trainer.train_figures import Prediction
from plait.trainer.train_memory import plan_memory, states_bytes
from plait.trainer.train_options import TrainOptions
from plait.trainer.train_plan import Started
from plait.trainer.train_predict import of_all_ranks
from plait.trainer.train_prepare import Prepared, prepare
from plait.trainer.train_watch import Unwatched

MODEL = "llama:layers=4,hidden=64,heads=4"


def prepared(folder: Path, **changed: Any) -> Prepared:
    text = folder / "text.txt"
    text.write_text("a text to learn from\n" * 200)
    options = TrainOptions(pp=2, batch=8, micro_batches=4, sequence_length=32, steps=3, timeline=(0, 2), threads=1)
    return prepare(MODEL, [text], replace(options, **changed), Unwatched(), Started(2))


def predicted(ready: Prepared) -> Timeline:
    """A step as a cluster of two A100 has it."""
    found = forecast_step(ready.plan, ready.beginning.spec, cluster_preset("a100", 2), executed=True, buckets=1)
    return of_all_ranks(found.timeline, ready.plan.layout)


def with_memory(ready: Prepared, timeline: Timeline, **changed: Any) -> Timeline:
    plan, settings = ready.plan, replace(ready.settings, **changed)
    made = with_step_memory(Prediction(timeline=timeline), plan, ready.beginning.spec, settings, 1, None)
    assert made.timeline is not None
    return made.timeline


def test_a_step_holds_its_states_and_what_the_schedule_keeps(tmp_path: Path) -> None:
    """1F1B: the first of two stages keeps two micro-batches, the last one, with its logits."""
    ready = prepared(tmp_path)
    timeline = with_memory(ready, predicted(ready))
    memory = plan_memory(ready.plan, ready.beginning.spec, ready.settings)
    layout, work = ready.plan.layout, ready.plan.setup.micro_batches
    assert work == 4
    for stage, count in ((0, 2), (1, 1)):
        track = timeline.memory[stage]
        states = states_bytes(ready.plan, ready.beginning.spec, ready.settings, stage)
        held = memory.held(layout, stage, ready_micro_batch(ready)).total_bytes
        working = memory.working_bytes(layout, stage, ready_micro_batch(ready), Kind.BACKWARD)
        assert min(track.used_bytes) == track.used_bytes[-1] == states
        assert max(track.used_bytes) == states + count * held + working


def ready_micro_batch(ready: Prepared) -> Any:
    from plait.schedules.step import executed_round

    return executed_round(0, ready.plan, ready.beginning.spec).work[0]


def test_what_a_cluster_is_predicted_to_hold_is_the_same(tmp_path: Path) -> None:
    """The trainer's own count and that of a far machine's costs: one formula."""
    ready = prepared(tmp_path, tp=2, recompute="selective")
    spec, plan = ready.beginning.spec, ready.plan
    far = forecast_step(plan, spec, cluster_preset("a100", 4), executed=True, buckets=1)
    own = memory_over_time(far.timeline, [far.round], plan.layout, plan_memory(plan, spec, ready.settings))
    for rank, track in far.timeline.memory.items():
        assert own[rank].peak_bytes == pytest.approx(max(track.used_bytes), rel=0.02)


def test_sgd_holds_no_moments(tmp_path: Path) -> None:
    ready = prepared(tmp_path)
    timeline = predicted(ready)
    adamw, sgd = with_memory(ready, timeline), with_memory(ready, timeline, optimizer="sgd")
    less = [adamw.memory[rank].used_bytes[-1] - sgd.memory[rank].used_bytes[-1] for rank in (0, 1)]
    states = [states_bytes(ready.plan, ready.beginning.spec, ready.settings, rank) for rank in (0, 1)]
    assert less == [size // 2 for size in states]


def test_dropout_keeps_its_masks(tmp_path: Path) -> None:
    ready = prepared(tmp_path)
    spec, plan = ready.beginning.spec, ready.plan
    kept = [
        PlanMemory(spec, plan, {}, dropout=dropout).held(plan.layout, 1, ready_micro_batch(ready)).total_bytes
        for dropout in (False, True)
    ]
    assert kept[0] < kept[1]


def test_what_a_rank_has_is_what_the_others_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicted_memory, "free_memory_here", lambda: 4 * PROCESS_BYTES)
    ready = prepared(tmp_path)
    timeline = with_memory(ready, predicted(ready))
    peaks = [max(timeline.memory[rank].used_bytes) for rank in (0, 1)]
    assert [timeline.memory[rank].limit_bytes for rank in (0, 1)] == [2 * PROCESS_BYTES - peak for peak in peaks[::-1]]


def test_what_a_clusters_devices_have(tmp_path: Path) -> None:
    ready, cluster = prepared(tmp_path), cluster_preset("a100", 2)
    found = remembered(Prediction(timeline=predicted(ready)), replace(ready, cluster=cluster))
    assert found.timeline is not None
    assert {track.limit_bytes for track in found.timeline.memory.values()} == {cluster.devices[0].memory_bytes}


def test_nothing_predicted_nothing_remembered(tmp_path: Path) -> None:
    ready = prepared(tmp_path)
    assert remembered(Prediction(note="none"), ready) == Prediction(note="none")


def test_all_ranks_of_a_position_hold_what_its_first_one_does(tmp_path: Path) -> None:
    ready = prepared(tmp_path, dp=2)
    found = forecast_step(ready.plan, ready.beginning.spec, cluster_preset("a100", 4), executed=True)
    assert len(found.timeline.memory) == 2
    spread = of_all_ranks(found.timeline, ready.plan.layout).memory
    assert sorted(spread) == [0, 1, 2, 3]
    for stage in ready.plan.layout.stages:
        assert {spread[rank] for rank in stage.ranks} == {found.timeline.memory[stage.ranks[0]]}


# --- records ------------------------------------------------------------------------------------------------


def kept(rank: int, step: int) -> bytes:
    """A forward from 10 s to 12 s, and a track that begins before it."""
    tracer = Tracer(rank)
    tracer.finished(Action(step, rank, Kind.FORWARD, 0), 10.0, 10.0, 12.0, 0)
    tracer.memory = MemoryTrack((9.0, 11.0, 12.5), (100 + step, 200 + step, 300), 1000, 50)
    return tracer.encode()


def test_memory_moves_with_the_steps_of_a_record(tmp_path: Path) -> None:
    span = Span(0, Action(0, 0, Kind.FORWARD, 0), 0, 0.0, 1.0)
    track = MemoryTrack((0.0, 0.5), (10, 20), 99)
    guess = Prediction(timeline=Timeline("predicted", (span,), {0: "localhost"}, {}, {0: track}))
    run = Following(prepared(tmp_path), guess, Unwatched())
    for rank in (0, 1):
        run.hear(Ready(rank, 0.5, 100))
    for step in range(3):
        for rank in (0, 1):
            sent = {"dp": 0, "pp": 0, "tp": 0}
            spans = None if step == 1 else kept(rank, step)
            run.hear(StepDone(rank, step, 2.5, 1.5, 0.001, 32, 30, 2.0, 1.0, sent, spans))
    for rank in (0, 1):
        run.hear(Finished(rank, 1000))
    run.result(tmp_path / "run")
    record = RunRecord.load(tmp_path / "run")
    assert record.measured is not None
    assert record.predicted is not None
    # two steps of 2 s; each with what lay there when it began
    left = 50 + 950 - (202 - 50)
    assert record.measured.memory == {
        rank: MemoryTrack((0.0, 1.0, 2.0, 3.0), (100, 200, 102, 202), left, 50) for rank in (0, 1)
    }
    assert record.predicted.memory == {0: MemoryTrack((0.0, 0.5, 1.0, 1.5), (10, 20, 10, 20), 99)}
    assert [one.start_s for one in record.predicted.spans] == [0.0, 1.0]
