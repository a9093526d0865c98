"""What operations take beside FLOP and bytes: known figures come back from the seconds that they make."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.costs.forward import Rows, Sizes, forward_operations
from plait.costs.profiles import DeviceRates, profile_named
from plait.costs.shares import whole
from plait.prober.beside import (
    CACHED,
    FEW_ROWS,
    LARGE,
    MANY_ROWS,
    PROMPT_ROWS,
    SMALL,
    Layers,
    Products,
    fit,
    found_beside,
    medians,
)
from plait.spec.cluster import Beside
from plait.spec.model import ModelSpec

WEIGHTS = 2048 * 2048


def products(flops: float, bandwidth: float, reads: float, item_bytes: int) -> Products:
    """Of a device whose products are on the line exactly."""
    one_s, row_s = WEIGHTS * item_bytes / bandwidth, 2 * WEIGHTS / flops
    return Products(WEIGHTS, one_s, reads * one_s + FEW_ROWS * row_s, reads * one_s + MANY_ROWS * row_s)


def layers(flops: float, bandwidth: float, beside: Beside, item_bytes: int) -> Layers:
    """What the formulas of `costs` say that the measured layers take on a device of these figures."""
    rates = DeviceRates(profile_named("measured"), flops, bandwidth, beside)

    def layer_s(spec: ModelSpec, rows: Rows) -> float:
        operations = forward_operations(spec, 0, (rows,), whole(spec), Sizes(item_bytes, item_bytes))
        return sum(rates.operation_s(one, fused=True) for one in operations)

    one = Rows(1, 1, CACHED)
    return Layers(layer_s(SMALL, one), layer_s(LARGE, one), layer_s(LARGE, Rows(1, PROMPT_ROWS, 0)))


def test_a_known_line() -> None:
    """One row 4 ms; 24 ms for 256 rows are 2 reads of those and 16 ms of FLOP."""
    made = Products(WEIGHTS, 4e-3, 2 * 4e-3 + 2e-3, 2 * 4e-3 + 16e-3)
    assert made.row_s == pytest.approx(62.5e-6)
    assert made.flops == pytest.approx(2 * WEIGHTS / 62.5e-6)
    assert made.weight_reads == pytest.approx(2)


@given(
    st.floats(4, 60),
    st.floats(1e9, 1e12),
    st.floats(1e-6, 1e-3),
    st.floats(0.01, 5.0),
    st.floats(0.01, 0.9),
    st.sampled_from([2, 4]),
)
def test_known_figures_come_back(
    intensity: float, bandwidth: float, operation_s: float, reads: float, pace: float, item_bytes: int
) -> None:
    """`intensity` in FLOP a byte: a row is bound by its bytes, as products of one row are on what was measured."""
    flops = intensity * bandwidth
    beside = Beside(operation_s, reads, pace * bandwidth)
    found = fit(products(flops, bandwidth, reads, item_bytes), layers(flops, bandwidth, beside, item_bytes), item_bytes)
    assert found.weight_reads == pytest.approx(reads, rel=1e-6)
    assert found.operation_s == pytest.approx(operation_s, rel=1e-6)
    assert found.activation_bytes_per_s == pytest.approx(pace * bandwidth, rel=1e-6)


def test_the_middle_of_the_rounds_counts() -> None:
    """One round of three in which others had the cores changes the spread, not the figures."""
    beside = Beside(2e-5, 0.5, 3e9)
    quiet = products(4e11, 2e10, 0.5, 2), layers(4e11, 2e10, beside, 2)
    busy = tuple(type(one)(*(3 * seconds for seconds in one)) for one in quiet)
    found = found_beside([quiet[0], busy[0], quiet[0]], [quiet[1], busy[1], quiet[1]], 2)  # type: ignore[list-item]
    assert found.operation_s.value == pytest.approx(2e-5)
    assert found.weight_reads.value == pytest.approx(0.5)
    assert found.activation_bytes_per_s.value == pytest.approx(3e9)
    assert found.operation_s.spread > 0.5
    steady = found_beside([quiet[0]] * 3, [quiet[1]] * 3, 2)
    assert steady.operation_s.spread == 0.01


def test_medians_are_of_each() -> None:
    assert medians([Layers(1, 6, 7), Layers(2, 5, 9), Layers(3, 4, 8)]) == Layers(2, 5, 8)


def test_disturbed_seconds_give_figures_that_can_be() -> None:
    """Few rows slower than many, and a large layer faster than a small one: never below 0, nor without end."""
    made = Products(WEIGHTS, 1e-3, 9e-3, 8e-3)
    assert made.flops == pytest.approx(4 * 2 * WEIGHTS * MANY_ROWS / 8e-3)
    found = fit(made, Layers(3e-4, 1e-4, 1e-3), 4)
    assert found.operation_s > 0
    assert found.weight_reads > 0
    assert 0 < found.activation_bytes_per_s <= WEIGHTS * 4 / 1e-3 * (1 + 1e-9)
    assert fit(made, Layers(1e-9, 1e-3, 1e-9), 4).operation_s == 1e-9
