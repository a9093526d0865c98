"""The lab's layer-wise: a wrong prediction is found, and the short form holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plait.lab.experiment import Outcome
from plait.lab.layer_wise import Found, Taken, judged, measure

from .figures import broken, figures

ONE = Taken(figures(0.040), figures(0.044))
TWO = Taken(figures(0.042, 2312, 0.020, 0.020), figures(0.046, 2312, 0.024, 0.020))
THREE = Taken(figures(0.043, 4624, 0.014, 0.014, 0.012), figures(0.047, 4624, 0.016, 0.015, 0.013))
NEAR = TWO, Taken(figures(0.028, 281_120, 0.020), figures(0.030, 281_120, 0.022))
FAR = (
    Taken(figures(0.043, 2312, 0.020, 0.020), figures(0.047, 2312, 0.024, 0.020)),
    Taken(figures(0.071, 281_120, 0.020), figures(0.072, 281_120, 0.022)),
)
FOUND = Found(ONE, {2: TWO, 3: THREE}, NEAR, FAR)


def measured(taken: Taken, round_s: float, *computed_s: float) -> Taken:
    return Taken(taken.predicted, figures(round_s, taken.measured.sent_bytes, *computed_s))


def test_what_is_as_predicted_holds_and_is_said() -> None:
    outcome = judged(FOUND, "full")

    assert outcome.holds
    assert outcome.sentence == (
        "A token takes 46.0 ms through 2 and 47.0 ms through 3 stages, 44.0 ms in one process; of the machines' time "
        "52 % with 2 and 69 % with 3 stages is idle. Over 100 Mb/s the pipeline of two keeps 98 % of its speed, and a "
        "tensor group of two 42 %."
    )
    assert outcome.table.rows[1] == ("2 stages", "42.0 ms", "46.0 ms", "52 %", "52 %", "48 %, 57 %")


def test_the_chart_has_the_lower_bound_beside_what_was_measured() -> None:
    (chart,) = judged(FOUND, "full").charts

    assert chart.series[0].ys == pytest.approx((0, 50, 200 / 3))
    assert all(idle >= bound for idle, bound in zip(chart.series[-1].ys, chart.series[0].ys, strict=True))


@pytest.mark.parametrize(
    ("wrong", "fails"),
    [
        (
            replace(FOUND, stages={2: measured(TWO, 0.056, 0.024, 0.022), 3: THREE}),
            ["2 stages: their sum and the hops"],
        ),
        (
            replace(FOUND, one=measured(ONE, 0.022)),
            ["2 stages: one process and the hops", "3 stages: one process and the hops"],
        ),
        (
            replace(FOUND, stages={2: TWO._replace(predicted=figures(0.042, 2312, 0.026, 0.026)), 3: THREE}),
            ["2 stages: their sum and the hops", "idle share of 2 stages"],
        ),
        (
            replace(FOUND, far=(measured(FAR[0], 0.070, 0.024, 0.020), FAR[1])),
            ["speed that a pipeline keeps over 100 Mb/s"],
        ),
        (
            replace(FOUND, far=(FAR[0], measured(FAR[1], 0.050, 0.022))),
            ["speed that a tensor group keeps over 100 Mb/s"],
        ),
    ],
    ids=[
        "waits between stages",
        "stages that are twice as slow",
        "stages at the same time",
        "a hop too long",
        "a link too fast",
    ],
)
def test_a_wrong_prediction_is_found(wrong: Found, fails: list[str]) -> None:
    assert broken(judged(wrong, "full")) == fails


def run(size: str = "short") -> Outcome:
    said: list[str] = []
    outcome = measure(size, said.append)  # type: ignore[arg-type]
    assert said[-1] == "a pipeline and a tensor group over 100 Mb/s, beside shared memory"
    return outcome


def test_the_short_form_holds() -> None:
    outcome = run()

    assert broken(outcome) == []
    assert [check.what for check in outcome.checks] == [
        "2 stages: their sum and the hops",
        "idle share of 2 stages",
        "3 stages: their sum and the hops",
        "idle share of 3 stages",
        "speed that a pipeline keeps over 100 Mb/s",
        "speed that a tensor group keeps over 100 Mb/s",
    ]
