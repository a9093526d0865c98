"""Shares of a tensor group: nothing is lost, KV heads lie where they are read, and uneven counts work."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.costs.shares import Share, held_values, largest_share, rank_shares, whole
from plait.errors import PlanError
from plait.spec.model import ModelSpec, Rope
from plait.spec.presets import model_preset
from plait.spec.shards import Unit, make_shards, piece_of, tensor_cut, unit_count
from plait.spec.tensors import layer_tensors

SMOL = ModelSpec(
    "smol", "llama", 30, 576, 9, 3, 64, 1536, 49152, 2048, 1e-5, Rope(1e4, 64), (None,) * 30, tied=True
)  # fmt: skip


def test_nine_heads_over_two_ranks() -> None:
    """P7: query heads 0 to 4 read KV heads 0 and 1, query heads 5 to 8 read 1 and 2."""
    assert rank_shares(SMOL, 2) == (Share(5, 2, 0.5), Share(4, 2, 0.5))
    assert rank_shares(SMOL, 2, (6, 3)) == (Share(6, 2, 6 / 9), Share(3, 1, 3 / 9))
    assert rank_shares(SMOL, 3) == (Share(3, 1, 1 / 3),) * 3
    assert largest_share(SMOL, 2, (3, 6)) == Share(6, 2, 6 / 9)
    assert largest_share(SMOL, 1) == whole(SMOL) == Share(9, 3, 1.0)


def test_more_ranks_than_kv_heads_copy_them() -> None:
    assert set(rank_shares(model_preset("llama3-70b"), 16)) == {Share(4, 1, 1 / 16)}


@given(st.integers(1, 4), st.integers(1, 6), st.data())
def test_nothing_is_lost(kv_heads: int, group: int, data: st.DataObject) -> None:
    heads = kv_heads * group
    spec = ModelSpec("m", "llama", 1, 64, heads, kv_heads, 8, 96, 100, 64, 1e-5, Rope(1e4, 8), (None,))
    tp = data.draw(st.integers(1, heads))
    found = rank_shares(spec, tp)
    assert sum(share.heads for share in found) == heads
    assert max(share.heads for share in found) - min(share.heads for share in found) <= 1
    first = 0
    for share in found:
        assert share.kv_heads == len({head // group for head in range(first, first + share.heads)})
        first += share.heads
    largest = largest_share(spec, tp)
    assert all(mine <= most for share in found for mine, most in zip(share, largest, strict=True))


@given(st.integers(1, 1000), st.integers(1, 64))
def test_a_part_is_rounded_up(size: int, tp: int) -> None:
    assert Share(1, 1, 1 / tp).of(size) == -(-size // tp)


def test_more_ranks_than_heads() -> None:
    """Some have no head, and a part of everything else all the same."""
    assert rank_shares(SMOL, 10) == (*(Share(1, 1, 0.1),) * 9, Share(0, 0, 0.1))


def test_shares_are_proportions() -> None:
    assert rank_shares(SMOL, 2, (2, 1)) == (Share(6, 2, 2 / 3), Share(3, 1, 1 / 3))
    assert rank_shares(SMOL, 2, (4, 4)) == rank_shares(SMOL, 2)


@pytest.mark.parametrize(
    ("tp", "shares", "message"),
    [
        (0, (), "tp is 0, but must be at least 1"),
        (
            2,
            (9, 0),
            "shares 9, 0 do not fit a tensor group of 2 ranks: write 2 numbers above 0, "
            "in proportion to the devices' speed",
        ),
    ],
)
def test_shares_that_fit_no_group(tp: int, shares: tuple[int, ...], message: str) -> None:
    with pytest.raises(PlanError) as caught:
        rank_shares(SMOL, tp, shares)
    assert str(caught.value) == message


@pytest.mark.parametrize("family", ["smollm2-135m", "gpt2", "deepseek-v3", "mixtral-8x7b", "qwen3-0.6b"])
@given(tp=st.integers(1, 12))
def test_what_is_held_are_the_pieces(family: str, tp: int) -> None:
    """Of equal parts exactly those of the shards, but for what a part of a finer unit is rounded up by."""
    spec = model_preset(family)
    for shard, share in zip(make_shards(spec, tp), rank_shares(spec, tp), strict=True):
        for name, shape in layer_tensors(spec, spec.layers - 1).items():
            piece, held = prod(piece_of(spec, name, shape, shard).shape), held_values(spec, name, shape, share)
            cut = tensor_cut(spec, name)
            row = 0 if cut is None else prod(shape) // unit_count(spec, cut.unit)
            assert 0 <= held - piece <= (row if cut and cut.unit not in (Unit.HEAD, Unit.KV_HEAD) else 0)
