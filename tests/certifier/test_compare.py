"""The error of a tensor as the design defines it, the bounds, and what one process is off itself."""

from __future__ import annotations

import pytest
import torch

from plait.certifier.case import Case
from plait.certifier.compare import BROKEN, WHATS, Measured, bounds, off, relative, whole_steps
from plait.certifier.reference import work_of


def test_errors_are_against_the_largest_entry() -> None:
    measured = Measured.of({"a": torch.tensor([4.0, -8.0]), "b": torch.tensor([0.5])}, "float64")
    assert measured.scales == {"a": 8.0, "b": 0.5}
    assert measured.off("a", torch.tensor([4.0, -7.0])) == 1 / 8
    assert measured.off("b", torch.tensor([0.25])) == 1 / 2


@pytest.mark.parametrize(("dtype", "least"), [("float64", 8e-3), ("float32", 0.8), ("bfloat16", 0.8)])
def test_a_gradient_that_is_noise_is_measured_against_a_share_of_the_largest(dtype: str, least: float) -> None:
    tensors = {"a": torch.tensor([8.0]), "noise": torch.tensor([1e-9])}
    assert Measured.of(tensors, dtype).scales["noise"] == pytest.approx(least)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_is_the_largest_error(value: float) -> None:
    assert off(torch.tensor([1.0, value]), torch.tensor([1.0, 2.0]), 1.0) == BROKEN
    assert relative(value, 1.0) == BROKEN


def test_nothing_has_no_error() -> None:
    assert off(torch.zeros(0, 3), torch.zeros(0, 3), 0.0) == 0
    assert off(torch.zeros(2), torch.zeros(2), 0.0) == 0
    assert relative(0.0, 0.0) == 0
    assert relative(0.0, 2.0) == 1


def test_the_bound_of_float64_is_the_design_s() -> None:
    found = bounds(work_of(Case()))
    assert [found.of(what) for what in WHATS] == [1e-10] * 4


def test_the_bound_of_float32_says_when_it_is_one_process_s_own_rounding() -> None:
    deep = work_of(Case(model="olmo2", dtype="float32", layers=(13,), seed=3))
    fine, broken = dict.fromkeys(WHATS, 1e-5), {**dict.fromkeys(WHATS, 0.0), "grad": 1e-4}
    found = bounds(deep, fine)
    assert ([found.of(what) for what in WHATS], found.why) == ([1e-5] * 4, "the design's bound for float32")
    found = bounds(deep, broken)
    assert (found.loss, found.weights) == (1e-5, 1e-5)
    assert 1e-5 < found.grad < 1e-3
    assert found.why == (
        "the design's bound for float32; for grad 4 × what one float32 process is off its float64 self"
    )
    shallow = work_of(Case(dtype="float32"))
    assert [bounds(shallow, broken).of(what) for what in WHATS] == [1e-5] * 4


def test_the_bound_of_bfloat16_is_of_the_size_of_its_rounding() -> None:
    found = bounds(work_of(Case(dtype="bfloat16", pp=2)))
    assert 2**-8 <= found.loss < 0.2
    assert 2**-8 <= found.grad < 0.5
    assert found.weights < 0.05
    assert found.why == "4 × what one bfloat16 process is off its float64 self"


def test_float64_is_not_off_itself() -> None:
    steps = whole_steps(work_of(Case(pp=2)))
    assert len(steps) == 2
    for one in steps:
        assert max(one.gradients.off(name, tensor) for name, tensor in one.expected.gradients.items()) == 0
