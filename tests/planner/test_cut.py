from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.errors import PlanError
from plait.planner.cut import balanced_cut, cut_by_hand, proportional_layers


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
        "2 too many (--pp 4 is the most)"
    )


class TestProportions:
    """Public case P6: a split given by hand is ignored, or drifts. Asked for is realised, to the nearest layer."""

    @pytest.mark.parametrize(
        ("shares", "layers", "realised"),
        [
            ((3, 3, 2), 30, (11, 11, 8)),  # 11.25, 22.5, 30
            ((3, 3, 2), 32, (12, 12, 8)),
            ((3, 3, 2), 7, (3, 2, 2)),  # 2.625, 5.25, 7
            ((1, 1), 7, (4, 3)),  # 3.5 to even
            ((1, 100), 4, (1, 3)),
            ((100, 1, 1), 4, (2, 1, 1)),
        ],
    )
    def test_known(self, shares: tuple[int, ...], layers: int, realised: tuple[int, ...]) -> None:
        assert proportional_layers(shares, layers) == realised

    @given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(1, 100))
    def test_every_cut_is_within_half_a_layer_unless_a_stage_would_be_empty(
        self, shares: list[int], layers: int
    ) -> None:
        layers = max(layers, len(shares))
        counts = proportional_layers(shares, layers)
        assert sum(counts) == layers
        assert min(counts) >= 1
        for index in range(len(shares)):
            wanted = layers * sum(shares[: index + 1]) / sum(shares)
            drift = abs(sum(counts[: index + 1]) - wanted)
            assert drift <= 0.5 + 1e-9 or 1 in counts

    def test_no_share(self) -> None:
        with pytest.raises(PlanError) as error:
            proportional_layers((3, 0), 9)
        assert str(error.value) == "--layers 3:0 gives a stage no share, but every stage needs one"
