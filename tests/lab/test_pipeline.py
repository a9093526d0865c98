"""The lab's pipeline: its formula, its short form, and that a wrong formula makes it fail."""

from __future__ import annotations

import pytest

from plait.lab import pipeline
from plait.lab.pipeline import Case, bubbles, formula
from plait.lab.run import run_experiments


@pytest.mark.parametrize(
    ("schedule", "positions", "micro_batches", "share"),
    [
        ("gpipe", 4, 4, 3 / 7),  # (p - 1) / (m + p - 1)
        ("1f1b", 4, 16, 3 / 19),
        ("1f1b", 2, 2, 1 / 3),
        ("interleaved", 4, 8, 3 / 19),  # v = 2: (p - 1) / (v m + p - 1)
        ("zb-h1", 4, 8, 3 / 27),  # (p - 1) (F + I - W) beside 3 m
        ("zb-h2", 4, 8, 3 / 27),  # (p - 1) F
        ("zb-v", 4, 8, 1.5 / 25.5),  # (p - 1) I of half stages
    ],
)
def test_formula_and_executor_give_the_published_bubble(
    schedule: str, positions: int, micro_batches: int, share: float
) -> None:
    found = bubbles(Case(schedule, positions, micro_batches), "short")
    assert found.formula == pytest.approx(100 * share, abs=1e-9)
    assert found.simulated == pytest.approx(100 * share, abs=1e-9)
    assert found.measured == pytest.approx(100 * share, abs=1e-9)


def test_where_the_formula_is_only_a_bound_the_simulator_predicts() -> None:
    case = Case("zb-h2", 4, 4)
    found = bubbles(case, "short")
    assert formula(case, 1) is None
    assert found.predicted == found.simulated == pytest.approx(25.0)


def test_every_bubble_lies_between_the_bounds_of_the_page() -> None:
    for case in pipeline.cases("short"):
        virtual = 2 if case.schedule in ("interleaved", "zb-v") else 1
        others = case.positions - 1
        lower = 100 * others / (3 * virtual * case.micro_batches + others)
        upper = 100 * others / case.positions
        assert lower - 1e-9 <= bubbles(case, "short").measured <= upper + 1e-9, case


def test_the_short_form_holds_and_says_what_it_found() -> None:
    found = run_experiments(["pipeline"], "short")
    (outcome,) = found.outcomes
    assert found.holds
    assert len(outcome.checks) == 25
    assert outcome.sentence == (
        "Of 4 stages with 1F1B, 60.0 % of the time was idle with 2 micro-batches and 42.9 % with 4; with 4, zb-h1 left "
        "least idle, 20.0 %. No bubble of 24 was further than 0.0 points from its prediction."
    )
    assert outcome.table.rows[1] == ("1f1b", "2", "33.3 % (predicted 33.3 %)", "20.0 % (predicted 20.0 %)")
    assert [chart.title for chart in outcome.charts] == ["The bubble of 2 stages", "The bubble of 4 stages"]


def test_a_wrong_formula_makes_it_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    right = pipeline.step_s

    def wrong(schedule: str, positions: int, *others: float) -> float:
        return right(schedule, positions - 1, *others)  # type: ignore[arg-type]  # p for p - 1

    monkeypatch.setattr(pipeline, "step_s", wrong)
    found = run_experiments(["pipeline"], "short")
    failed = {check.what for check in found.outcomes[0].checks if not check.holds}
    assert "simulator from formula, furthest apart" in failed
    assert "bubble of 1f1b, 4 stages, 4 micro-batches" in failed
    assert "bubble of zb-h1, 4 stages, 2 micro-batches" not in failed  # the simulator's
