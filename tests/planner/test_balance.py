from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.planner.balance import Weights, best_shape, position_layers, stage_layers


def weights(layer: float, first: float, last: float) -> Weights:
    return Weights(np.float64(layer), np.float64(first), np.float64(last))


def loads(counts: list[int], layer: float, first: float, last: float, folded: bool) -> list[float]:
    extras = [0.0] * len(counts)
    extras[0] += first
    extras[0 if folded else -1] += last
    return [count * layer + extra for count, extra in zip(counts, extras, strict=True)]


def brute_force(layers: int, positions: int, virtual: int, figures: tuple[float, float, float], folded: bool) -> float:
    best = float("inf")
    for ends in itertools.combinations(range(1, layers), positions - 1):
        counts = [end - start for start, end in itertools.pairwise((0, *ends, layers))]
        if min(counts) >= virtual:
            best = min(best, max(loads(counts, *figures, folded)))
    return best


@given(
    st.integers(1, 12),
    st.integers(1, 5),
    st.sampled_from([1, 2, 3]),
    st.tuples(st.floats(0.5, 2.0), st.floats(-0.4, 4.0), st.floats(0.0, 6.0)),
    st.booleans(),
)
def test_no_cut_has_a_faster_slowest_position(
    layers: int, positions: int, virtual: int, figures: tuple[float, float, float], folded: bool
) -> None:
    expected = brute_force(layers, positions, virtual, figures, folded)
    found = float(best_shape(layers, np.array(float(positions)), virtual, weights(*figures), folded).slowest_s)
    assert found == pytest.approx(expected, rel=1e-6)
    if found < float("inf"):
        counts = position_layers(layers, positions, virtual, weights(*figures), folded)
        assert sum(counts) == layers
        assert min(counts) >= virtual
        assert max(loads(counts, *figures, folded)) == pytest.approx(expected, rel=1e-6)
        stages = stage_layers(counts, virtual, folded)
        assert sum(stages) == layers
        assert min(stages) >= 1


def test_one_layer_fewer_on_the_first_and_the_last() -> None:
    """Llama 3 405B has 126 layers for 16 positions, one less on the first and on the last (arXiv 2407.21783)."""
    assert position_layers(126, 16, 1, weights(1.0, 0.1, 0.9)) == [7, *[8] * 14, 7]


def test_a_heavy_head_gets_fewer_layers() -> None:
    assert position_layers(30, 2, 1, weights(1.0, 0.0, 8.0)) == [19, 11]


def test_equal_where_nothing_is_heavier() -> None:
    assert position_layers(128, 64, 1, weights(1.0, 0.0, 0.0)) == [2] * 64


def test_what_is_left_over_goes_to_late_positions_in_the_middle() -> None:
    assert position_layers(10, 4, 1, weights(1.0, 0.5, 0.5)) == [2, 3, 3, 2]
    assert position_layers(13, 5, 1, weights(1.0, 0.5, 0.5)) == [2, 3, 3, 3, 2]
    assert position_layers(12, 5, 1, weights(1.0, 0.5, 0.5)) == [2, 2, 3, 3, 2]
    assert position_layers(11, 5, 1, weights(1.0, 0.5, 0.5)) == [2, 2, 2, 3, 2]


def test_stages_of_interleaved_positions_go_round() -> None:
    assert stage_layers([3, 4, 3], 2) == [1, 2, 2, 2, 2, 1]


def test_stages_of_folded_positions_go_down_and_up() -> None:
    assert stage_layers([3, 4, 5], 2, folded=True) == [1, 2, 2, 3, 2, 2]
