from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.errors import PlanError
from plait.planner.cut import balanced_cut, cut_by_hand


def brute_force(layers: int, stages: int, head: int) -> float:
    best = float("inf")
    for ends in itertools.combinations(range(1, layers), stages - 1):
        cut = list(itertools.pairwise((0, *ends, layers)))
        best = min(best, max(end - first + head * (end == layers) for first, end in cut))
    return best


@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 6))
def test_no_cut_has_a_faster_slowest_stage(layers: int, stages: int, head: int) -> None:
    stages = min(stages, layers)
    cut = balanced_cut(layers, stages, lambda first, end: end - first + head * (end == layers))
    assert cut[0][0] == 0
    assert cut[-1][1] == layers
    assert all(a[1] == b[0] for a, b in itertools.pairwise(cut))
    assert max(end - first + head * (end == layers) for first, end in cut) == brute_force(layers, stages, head)


def test_a_heavy_head_gets_fewer_layers() -> None:
    assert balanced_cut(30, 2, lambda first, end: end - first + 8 * (end == 30)) == ((0, 19), (19, 30))


def test_by_hand() -> None:
    assert cut_by_hand((12, 18), 30) == ((0, 12), (12, 30))


@pytest.mark.parametrize(
    ("counts", "stages", "message"),
    [
        (
            (12, 17),
            None,
            "--layers 12,17 adds up to 29, but the model has 30 layers: 1 too few (--layers 12,18 would be nearest)",
        ),
        (
            (3, 3, 2),
            None,
            "--layers 3,3,2 adds up to 8, but the model has 30 layers: 22 too few (--layers 11,11,8 would be nearest)",
        ),
        (
            (20, 20),
            None,
            "--layers 20,20 adds up to 40, but the model has 30 layers: 10 too many (--layers 15,15 would be nearest)",
        ),
        ((30, 0), None, "--layers 30,0 gives a stage no layer, but every stage needs at least one"),
        ((12, 18), 3, "--layers 12,18 makes 2 stages, but --pp asks for 3"),
    ],
)
def test_cuts_that_cannot_be(counts: tuple[int, ...], stages: int | None, message: str) -> None:
    with pytest.raises(PlanError) as error:
        cut_by_hand(counts, 30, stages)
    assert str(error.value) == message


def test_more_stages_than_layers() -> None:
    with pytest.raises(PlanError) as error:
        balanced_cut(4, 6, lambda first, end: 1.0)
    assert str(error.value) == (
        "6 stages were asked for, but the model has 4 layers and every stage needs at least one: "
        "2 stages too many (--pp 4 is the most)"
    )
