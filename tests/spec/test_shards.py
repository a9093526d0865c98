"""What every rank holds: all of it, once, whole units, near its proportion, and where the kernels can be cut."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.errors import PlanError
from plait.spec.huggingface import spec_from_config
from plait.spec.model import ModelSpec
from plait.spec.presets import model_preset, preset_names
from plait.spec.shards import (
    GRAINS,
    Piece,
    Unit,
    deal,
    even_rows,
    make_shards,
    piece_of,
    shard_tensors,
    tensor_cut,
    unit_count,
    whole_shard,
)
from plait.spec.tensors import model_tensors, stage_tensors

FAMILIES = ("gpt2", "llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3")


def small(family: str, heads: int, group: int, **changes: int) -> ModelSpec:
    """A model of a family with `heads` query heads, `group` of them to a KV head."""
    if family == "gpt2":
        sizes = {
            "vocab_size": 97,
            "n_embd": 16 * heads,
            "n_layer": 2,
            "n_head": heads,
            "n_positions": 64,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }
        return spec_from_config({"model_type": family, **sizes}, family)
    sizes = {
        "vocab_size": 97,
        "hidden_size": 16 * heads,
        "intermediate_size": 83,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // group,
        "max_position_embeddings": 64,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return spec_from_config({"model_type": family, **sizes, **changes}, family)


shares = st.lists(st.integers(1, 9), min_size=1, max_size=8)


@given(count=st.integers(0, 400), shares=shares, grain=st.sampled_from((1, 2, 16, 32)))
def test_what_is_dealt_is_all_of_it_in_order_near_the_proportions(count: int, shares: list[int], grain: int) -> None:
    dealt = deal(count, len(shares), shares, grain)
    assert dealt[0].first == 0
    assert dealt[-1].end == count
    assert all(one.end == after.first for one, after in pairwise(dealt))
    assert all(one.end % grain == 0 or one.end == count for one in dealt)
    grains = -(-count // grain)
    for one, share in zip(dealt, shares, strict=True):
        assert abs(-(-one.size // grain) - grains * share / sum(shares)) < 1


@given(shares=shares)
def test_shares_that_add_up_are_dealt_exactly(shares: list[int]) -> None:
    assert [one.size for one in deal(sum(shares), len(shares), shares)] == shares


def test_of_equal_remainders_the_lowest_ranks_get_more() -> None:
    assert [one.size for one in deal(9, 2)] == [5, 4]
    assert [one.size for one in deal(10, 4)] == [3, 3, 2, 2]
    assert [one.size for one in deal(2, 5)] == [1, 1, 0, 0, 0]
    assert even_rows(7, 3) == (3, 2, 2)


def test_the_demo_models_heads_over_two_and_three() -> None:
    spec = small("llama", 9, 3)
    two = make_shards(spec, 2)
    assert [(tuple(one.heads), tuple(one.kv_heads)) for one in two] == [((0, 5), (0, 2)), ((5, 9), (1, 3))]
    three = make_shards(spec, 3)
    assert [(tuple(one.heads), tuple(one.kv_heads)) for one in three] == [
        ((0, 3), (0, 1)),
        ((3, 6), (1, 2)),
        ((6, 9), (2, 3)),
    ]
    two_to_one = make_shards(spec, 2, (2, 1))
    assert [one.heads.size for one in two_to_one] == [6, 3]
    assert [one.part for one in two_to_one] == [2 / 3, 1 / 3]


def covered(spec: ModelSpec, tp: int, shares: list[int]) -> None:
    """Of every tensor each element is on one rank, or on all where it is whole, or is of a divided KV head."""
    shards = make_shards(spec, tp, shares)
    for name, shape in model_tensors(spec).items():
        found = [piece_of(spec, name, shape, shard) for shard in shards]
        cut = tensor_cut(spec, name)
        if cut is None or tp == 1:
            assert all(piece == Piece(shape) for piece in found), name
            continue
        axis = found[0].axis
        assert axis is not None
        width, rest = shape[axis] // unit_count(spec, cut.unit), shape[:axis] + shape[axis + 1 :]
        holders = [0] * shape[axis]
        for piece in found:
            assert piece.shape == (*rest[:axis], piece.end - piece.first, *rest[axis:]), name
            assert piece.first % width == piece.end % width == 0, name
            for at in range(piece.first, piece.end):
                holders[at] += 1
        if cut.unit is Unit.KV_HEAD:
            assert min(holders) >= 1, name
        else:
            assert set(holders) == {1}, name


@settings(max_examples=60, deadline=None)
@given(family=st.sampled_from(FAMILIES), kv=st.integers(1, 4), group=st.integers(1, 4), shares=shares)
def test_every_tensor_of_every_family_is_held_once(family: str, kv: int, group: int, shares: list[int]) -> None:
    covered(small(family, kv * group, group), len(shares), shares)


@pytest.mark.parametrize("name", sorted(preset_names()["models"]))
def test_units_of_presets_add_up(name: str) -> None:
    spec = model_preset(name)
    for tp in (1, 2, 3, 8):
        shards = make_shards(spec, tp)
        for unit in Unit:
            if unit is not Unit.KV_HEAD:
                assert sum(shard.units[unit].size for shard in shards) == unit_count(spec, unit), unit
        names = shard_tensors(spec, 0, 1, shards[-1])
        assert names.keys() == stage_tensors(spec, 0, 1).keys()
        assert all(min(piece.shape) >= 0 for piece in names.values())


@settings(max_examples=60, deadline=None)
@given(kv=st.integers(1, 4), group=st.integers(1, 4), shares=shares)
def test_a_rank_has_the_kv_heads_that_its_query_heads_read(kv: int, group: int, shares: list[int]) -> None:
    for shard in make_shards(small("llama", kv * group, group), len(shares), shares):
        wanted = {head // group for head in range(*shard.heads)}
        assert wanted == set(range(*shard.kv_heads))


@settings(max_examples=60, deadline=None)
@given(weights=st.sampled_from(("int8", "int4")), kv=st.integers(1, 4), group=st.integers(1, 4), shares=shares)
def test_packed_weights_are_cut_at_multiples(weights: str, kv: int, group: int, shares: list[int]) -> None:
    spec = small("llama", kv * group, group, intermediate_size=224)
    grain = GRAINS[weights]
    for shard in make_shards(spec, len(shares), shares, weights):
        for name, piece in shard_tensors(spec, 0, 2, shard).items():
            if piece.axis is None or "norm" in name:
                continue
            whole = model_tensors(spec)[name][piece.axis]
            multiple = grain.outputs if piece.axis == 0 else grain.inputs
            for at in (piece.first, piece.end):
                assert at % multiple == 0 or at == whole, (name, piece)


def test_one_rank_has_everything() -> None:
    spec = small("olmo2", 4, 2)
    assert {name: piece.shape for name, piece in shard_tensors(spec, 0, 2, whole_shard(spec)).items()} == model_tensors(
        spec
    )
    parts = make_shards(spec, 1, (7,))
    assert parts[0].units == whole_shard(spec).units


def test_norms_over_the_whole_projection_go_with_their_heads() -> None:
    shards = make_shards(small("olmo2", 4, 2), 2)
    full = shard_tensors(small("olmo2", 4, 2), 0, 1, shards[1])
    assert full["layers.0.q_norm.weight"] == Piece((32,), 0, 32, 64)
    one = shard_tensors(small("qwen3", 4, 2), 0, 1, shards[1])
    assert one["layers.0.q_norm.weight"].axis is None
    assert prod(full["layers.0.attn_norm.weight"].shape) == 64


def test_biases_of_what_is_summed_are_whole() -> None:
    spec = small("gpt2", 4, 1)
    pieces = shard_tensors(spec, 0, 1, make_shards(spec, 2)[1])
    assert pieces["layers.0.o.bias"].axis is pieces["layers.0.down.bias"].axis is None
    assert pieces["layers.0.up.bias"] == Piece((128,), 0, 128, 256)
    assert pieces["layers.0.q.bias"] == Piece((32,), 0, 32, 64)


@pytest.mark.parametrize(
    ("tp", "shares", "message"),
    [
        (0, (), "tp is 0, but must be at least 1"),
        (
            3,
            (2, 1),
            "shares 2, 1 do not fit a tensor group of 3 ranks: "
            "write 3 numbers above 0, in proportion to the devices' speed",
        ),
        (
            2,
            (2, 0),
            "shares 2, 0 do not fit a tensor group of 2 ranks: "
            "write 2 numbers above 0, in proportion to the devices' speed",
        ),
    ],
)
def test_groups_that_cannot_be(tp: int, shares: tuple[int, ...], message: str) -> None:
    with pytest.raises(PlanError) as caught:
        make_shards(small("llama", 4, 2), tp, shares)
    assert str(caught.value) == message
