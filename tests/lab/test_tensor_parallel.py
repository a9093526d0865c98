"""The lab's tensor parallelism: a wrong prediction is found, and the short form holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plait.lab import benches, tensor_parallel
from plait.lab.experiment import Outcome
from plait.lab.tensor_parallel import Found, Measured, judged, measure

from .figures import broken, figures

ONE, NEAR = figures(0.040), figures(0.025, 281_120)


def measured(link: str, predicted_s: float, taken_s: float, sent_bytes: float = 281_120) -> Measured:
    """`predicted_s`: at most; 3 ms less are predicted at least."""
    pipeline, predicted = figures(0.042, 2312), figures(predicted_s, 281_120)
    link_s = predicted_s - NEAR.round_s
    return Measured(link, ONE, NEAR, figures(taken_s, sent_bytes, 0.022), pipeline, predicted, link_s)


def found(*links: Measured, near_s: float = 0.026) -> Found:
    fast = measured("10 Gb/s", 0.031, 0.032)
    return Found(
        (fast, *(links or (measured("100 Mb/s", 0.070, 0.072),))), figures(0.042), figures(near_s, 281_120), 62
    )


def test_what_is_as_predicted_holds_and_is_said() -> None:
    outcome = judged(found(), "full")

    assert outcome.holds
    assert outcome.sentence == (
        "Two ranks exchange 62 times and 281 kB a token: 40.0 tokens/s over shared memory where one process makes "
        "25.0, and 13.9 over 100 Mb/s, where a pipeline of the same two makes 23.8. They are slower than one of them "
        "alone over 100 Mb/s, and slower than the pipeline over 100 Mb/s. Here an exchange may take 242 µs longer than "
        "over shared memory until two are no faster than one."
    )
    assert [row[0] for row in outcome.table.rows] == ["shared memory", "10 Gb/s", "100 Mb/s"]
    assert {len(row) for row in outcome.table.rows} == {len(outcome.table.headings)}


@pytest.mark.parametrize(
    ("wrong", "fails"),
    [
        (found(measured("100 Mb/s", 0.070, 0.072, 281_124)), "bytes a token, 100 Mb/s"),
        (found(measured("100 Mb/s", 0.070, 0.094)), "tensor parallelism over 100 Mb/s"),
        (found(measured("100 Mb/s", 0.070, 0.053)), "tensor parallelism over 100 Mb/s"),
        (found(near_s=0.045), "gain of two ranks over shared memory"),
    ],
    ids=["one item more is sent", "a third longer", "a fifth shorter", "no gain was predicted"],
)
def test_a_wrong_prediction_is_found(wrong: Found, fails: str) -> None:
    assert broken(judged(wrong, "full")) == [fails]


def test_between_what_is_computed_and_what_shared_memory_takes_is_as_predicted() -> None:
    one = measured("100 Mb/s", 0.070, 0.068)

    assert (one.least_s, one.most_s) == pytest.approx((0.067, 0.070))
    assert one.predicted_tokens_per_s == one.tensor.tokens_per_s
    assert measured("100 Mb/s", 0.070, 0.060).predicted_tokens_per_s == pytest.approx(1 / 0.067)
    assert measured("100 Mb/s", 0.070, 0.080).predicted_tokens_per_s == pytest.approx(1 / 0.070)


def test_where_others_use_the_host_the_gain_is_shown_and_not_held_against_the_plan() -> None:
    outcome = judged(replace(found(near_s=0.045), others=0.5), "full")

    assert outcome.holds
    assert outcome.notes[-1] == "As others used this host, the gain over shared memory is not held against the plan's."


def test_links_that_slow_nobody_down_are_said_to() -> None:
    quick = measured("1 Gb/s", 0.030, 0.030)

    assert (
        "They are slower than one of them alone over none of these links, and slower than the pipeline over none of "
        "these links."
    ) in judged(found(quick), "full").sentence


def test_two_ranks_that_are_slower_than_one_have_no_break_even() -> None:
    slow = measured("100 Mb/s", 0.070, 0.072)._replace(near=figures(0.041, 281_120))

    assert judged(Found((slow,), figures(0.042), figures(0.041, 281_120), 62), "full").sentence.endswith(
        "slower than the pipeline over 100 Mb/s."
    )


def run(size: str = "short") -> Outcome:
    said: list[str] = []
    outcome = measure(size, said.append)  # type: ignore[arg-type]
    assert said[-1] == "tensor parallelism and a pipeline over " + ("Wi-Fi" if size == "full" else "100 Mb/s")
    return outcome


def test_the_short_form_holds() -> None:
    outcome = run()

    assert broken(outcome) == []
    assert [check.what for check in outcome.checks] == [
        "bytes a token, 1 Gb/s",
        "bytes a token, 100 Mb/s",
        "tensor parallelism over 1 Gb/s",
        "tensor parallelism over 100 Mb/s",
    ]


def test_a_latency_that_nobody_predicted_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benches, "_longer", lambda curve, wire, share: curve)
    monkeypatch.setattr(tensor_parallel, "SHORT_LINKS", ("100 Mb/s",))

    assert broken(run()) == ["tensor parallelism over 100 Mb/s"]
