"""Learning rates have the values that their formulas give."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.errors import UsageError
from plait.trainer.rates import check_rate, learning_rate
from plait.trainer.settings import Rate

CONSTANT = Rate(0.8, warmup=3)
LINEAR = Rate(0.8, "linear", warmup=3, steps=7, floor=0.25)
COSINE = Rate(0.8, "cosine", warmup=0, steps=4, floor=0.25)


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (Rate(0.8), [0.8, 0.8, 0.8]),
        (CONSTANT, [0.2, 0.4, 0.6, 0.8, 0.8, 0.8]),
        # up by 0.2, down by (0.8 - 0.2) / 4
        (LINEAR, [0.2, 0.4, 0.6, 0.8, 0.65, 0.5, 0.35, 0.2, 0.2]),
        # 0.2 + 0.6 (1 + cos(pi s / 4)) / 2
        (COSINE, [0.8, 0.7121320343559643, 0.5, 0.2878679656440357, 0.2, 0.2]),
        (Rate(0.8, "linear", steps=2), [0.8, 0.4, 0.0, 0.0]),
    ],
)
def test_known_values(rate: Rate, expected: list[float]) -> None:
    assert [learning_rate(rate, step) for step in range(len(expected))] == pytest.approx(expected, abs=1e-15)


@given(
    decay=st.sampled_from(("constant", "linear", "cosine")),
    warmup=st.integers(0, 20),
    more=st.integers(1, 50),
    floor=st.floats(0, 1),
)
def test_a_rate_rises_to_its_peak_and_falls_to_its_floor(decay: str, warmup: int, more: int, floor: float) -> None:
    rate = Rate(0.3, decay, warmup, warmup + more, floor)  # type: ignore[arg-type]
    check_rate(rate)
    values = [learning_rate(rate, step) for step in range(warmup + more + 3)]
    assert values[: warmup + 1] == sorted(values[: warmup + 1])
    assert values[warmup] == pytest.approx(0.3)
    assert all(a >= b - 1e-15 for a, b in zip(values[warmup:], values[warmup + 1 :], strict=False))
    assert values[-1] == pytest.approx(0.3 if decay == "constant" else 0.3 * floor, abs=1e-15)
    assert all(value > 0 for value in values[:warmup])


@pytest.mark.parametrize(
    ("rate", "message"),
    [
        (Rate(-0.1), "the learning rate is -0.1, but must be a number from 0 on"),
        (Rate(float("nan")), "the learning rate is nan, but must be a number from 0 on"),
        (Rate(float("inf")), "the learning rate is inf, but must be a number from 0 on"),
        (Rate(0.1, floor=1.5), "the floor of the learning rate is 1.5 of its peak, but must be from 0 to 1"),
        (Rate(0.1, warmup=-1), "the learning rate warms up over -1 steps, but must over 0 or more"),
        (
            Rate(0.1, "cosine", warmup=10, steps=10),
            "a cosine learning rate falls until step 10, but its warm-up takes 10 steps: give it more than 10 steps",
        ),
    ],
)
def test_what_no_rate_can_be(rate: Rate, message: str) -> None:
    with pytest.raises(UsageError) as error:
        check_rate(rate)
    assert str(error.value) == message
