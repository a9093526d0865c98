"""The lab's data parallelism: bytes, when they go, what buckets hide, and that a wrong formula makes it fail."""

from __future__ import annotations

import pytest

from plait.lab import data_parallel
from plait.lab.data_parallel import made_plan, parameters, read_step, ring_bytes, sync_s, waited
from plait.lab.run import run_experiments
from plait.lab.trained import some_text
from plait.plans.action import Action, Kind
from plait.plans.layout import Layout, Stage
from plait.plans.training_exchanges import reduced_bytes
from plait.spec.cluster import Wire
from plait.spec.inline import inline_spec
from plait.timeline.span import Span
from plait.timeline.timeline import Timeline

SMALL = "llama:layers=2,hidden=16,heads=2,vocab=10,intermediate=24"


def test_the_formula_counts_what_the_model_learns() -> None:
    # a layer: four squares of 16, three of 16 × 24, two norms; and a norm, an embedding and a head of 10 × 16
    expected = 2 * (4 * 16 * 16 + 3 * 16 * 24 + 2 * 16) + 16 + 2 * 10 * 16
    spec = inline_spec(SMALL)
    assert parameters(spec) == expected
    assert ring_bytes(spec, 2) == 2 * expected * 4
    assert ring_bytes(spec, 4) == 6 * expected * 4
    assert sync_s(spec, 2, Wire(0.5, 1000.0)) == pytest.approx(0.5 + expected * 4 / 1000)


def test_the_formula_and_the_rule_of_the_plan_are_the_same() -> None:
    spec = inline_spec(data_parallel.MODEL)
    plan = made_plan(spec)
    assert reduced_bytes(spec, plan.layout, plan.setup, 0) == ring_bytes(spec, 2)


def test_figures_are_read_off_a_timeline() -> None:
    def spans(rank: int, late_s: float) -> list[Span]:
        def at(
            kind: Kind, micro_batch: int, start_s: float, end_s: float, size: int = 0, part: int | None = None
        ) -> Span:
            return Span(0, Action(0, 0, kind, micro_batch, part), rank, start_s + late_s, end_s + late_s, size)

        return [
            at(Kind.FORWARD, 0, 0.0, 1.0),
            at(Kind.BACKWARD, 0, 1.0, 3.0),
            at(Kind.FORWARD, 1, 3.0, 4.0),
            at(Kind.BACKWARD, 1, 4.0, 5.0, part=0),
            at(Kind.BACKWARD, 1, 5.0, 6.0, part=1),
            at(Kind.REDUCE_GRADIENTS, 0, 5.0, 6.5, 100, part=0),
            at(Kind.REDUCE_GRADIENTS, 0, 6.5, 8.0, 100, part=1),
        ]

    layout = Layout({"dp": 2}, (Stage((0, 1), (0, 1)),))
    found = read_step(Timeline("measured", tuple(spans(0, 0.0) + spans(1, 1.0))), layout)
    assert found == (9.0, 6.0, 3.0, 2.0, 400, 0)
    early = spans(0, 0.0)
    early[1] = early[1]._replace(payload_bytes=7)
    assert read_step(Timeline("measured", tuple(early + spans(1, 1.0))), layout).early_bytes == 7


def test_buckets_hide_a_part_of_the_sum_and_move_as_many_bytes() -> None:
    (_, whole), (_, cut) = waited(1), waited(4)
    assert whole.sent_bytes == cut.sent_bytes
    assert whole.step_s == pytest.approx(whole.compute_s + whole.sync_s)
    assert max(whole.compute_s, whole.sync_s) < cut.step_s < whole.step_s
    assert cut.exposed_s >= whole.sync_s / 4  # the last bucket at least


def test_the_short_form_holds_and_says_what_it_found() -> None:
    found = run_experiments(["data-parallel"], "short")
    (outcome,) = found.outcomes
    assert found.holds
    assert len(outcome.checks) == 7
    assert outcome.sentence == (
        "Two replicas send 26.8 MB of gradients a step, and not a byte before the last backward. Behind it the sum "
        "takes 215 ms, beside 360 ms of computing, and a step 575 ms; in 4 buckets, sent while that backward still "
        "runs, a step takes 495 ms: 37 % of the sum was hidden."
    )


def test_a_wrong_formula_makes_it_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    right = data_parallel.ring_bytes
    monkeypatch.setattr(data_parallel, "ring_bytes", lambda spec, replicas: right(spec, replicas) // 2)
    found = run_experiments(["data-parallel"], "short")
    failed = {check.what for check in found.outcomes[0].checks if not check.holds}
    assert failed >= {"gradients sent, 1 bucket", "gradients sent, 4 buckets", "sum of the gradients, 1 bucket"}


def test_a_replica_that_talks_too_early_makes_it_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    right = data_parallel.read_step
    monkeypatch.setattr(
        data_parallel, "read_step", lambda timeline, layout: right(timeline, layout)._replace(early_bytes=1)
    )
    found = run_experiments(["data-parallel"], "short")
    failed = [check.what for check in found.outcomes[0].checks if not check.holds]
    assert failed == ["sent before the last backward, 1 bucket", "sent before the last backward, 4 buckets"]


def test_the_text_is_long_enough_and_always_the_same() -> None:
    text = some_text(4 * data_parallel.BATCH * data_parallel.SEQUENCE)
    assert len(text) >= 4 * data_parallel.BATCH * data_parallel.SEQUENCE
    assert text == some_text(4 * data_parallel.BATCH * data_parallel.SEQUENCE)
    assert len(set(text.split())) == 10
