"""Interpolation, on points that can be checked by eye."""

from __future__ import annotations

import pytest

from plait.costs.curves import Curve, Grid


def test_a_curve_is_straight_between_its_points_and_goes_on() -> None:
    curve = Curve((1.0, 2.0, 4.0), (10.0, 12.0, 20.0))
    assert [curve.value(x) for x in (1, 1.5, 2, 3, 4, 6)] == [10.0, 11.0, 12.0, 16.0, 20.0, 28.0]
    assert curve.value(0) == 10.0  # flat before the first point


def test_a_curve_that_falls_stays_above_zero() -> None:
    assert Curve((1.0, 2.0), (3.0, 1.0)).value(10) == 0.0


def test_one_point_is_a_constant() -> None:
    assert Curve((4.0,), (7.0,)).value(100) == 7.0
    assert Grid((4.0,), (1.0,), ((7.0,),)).value(1, 1) == 7.0


def test_a_grid() -> None:
    """value = 10 × x + y on its points, so everywhere."""
    grid = Grid((1.0, 3.0), (0.0, 5.0, 6.0), ((10.0, 15.0, 16.0), (30.0, 35.0, 36.0)))
    for x, y in ((1, 0), (2, 5.5), (3, 6), (1.5, 2), (4, 8)):
        assert grid.value(x, y) == pytest.approx(10 * x + y)


@pytest.mark.parametrize("at", [(), (1.0, 1.0), (2.0, 1.0)])
def test_an_axis_must_ascend(at: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="ascending points"):
        Curve(at, at)


def test_values_must_fit_the_axes() -> None:
    with pytest.raises(ValueError, match="2 points but 1 values"):
        Curve((1.0, 2.0), (1.0,))
    with pytest.raises(ValueError, match="1 × 2 points"):
        Grid((1.0,), (1.0, 2.0), ((1.0,),))
