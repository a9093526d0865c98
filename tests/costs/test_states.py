"""Optimizer states against the published figures, and parameters on ranks against the tensors."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.costs.shares import Share, rank_shares, whole
from plait.costs.states import (
    RECIPES,
    RankParameters,
    end_rank_parameters,
    layer_rank_parameters,
    rank_parameters,
    recipe_for,
    recipe_named,
    state_bytes,
)
from plait.costs.work import layer_parameters, model_parameters
from plait.errors import SpecError
from plait.plans.split import Split
from plait.spec.model import ModelSpec, Rope
from plait.spec.presets import model_preset
from plait.spec.tensors import layer_tensors, stage_tensors

SMOL = ModelSpec(
    "smol", "llama", 30, 576, 9, 3, 64, 1536, 49152, 2048, 1e-5, Rope(1e4, 64), (None,) * 30, tied=True
)  # fmt: skip
MODELS = ("gpt3-175b", "llama3-8b", "mixtral-8x7b", "qwen3-235b-a22b", "deepseek-v3")


def test_the_published_stages_of_zero() -> None:
    """Rajbhandari et al. 2020, figure 1: 7.5 billion parameters over 64 ranks take 120, 31.4, 16.6 and 1.9 GB."""
    parameters = RankParameters(7_500_000_000, 0)
    found = [state_bytes(parameters, RECIPES["mixed"], zero, Split(dp=64)).total_bytes / 1e9 for zero in (0, 1, 2, 3)]
    assert [round(each, 1) for each in found] == [120.0, 31.4, 16.6, 1.9]


def test_bytes_a_parameter() -> None:
    """16 as in ZeRO; 18 with Megatron-LM's float32 gradients, and 6 + 12 / d with its distributed optimizer."""
    assert {name: recipe.total_bytes for name, recipe in RECIPES.items()} == {
        "mixed": 16,
        "mixed-float32-gradients": 18,
        "float32": 16,
        "float32-sgd": 8,
    }
    sharded = state_bytes(RankParameters(100, 0), RECIPES["mixed-float32-gradients"], 1, Split(dp=4))
    assert sharded.total_bytes == 100 * (6 + 12 / 4)
    assert recipe_for("bfloat16").name == "mixed-float32-gradients"
    assert recipe_for("float32").name == "float32"


def test_every_recipe_has_a_source() -> None:
    assert all(recipe.source for recipe in RECIPES.values())


def test_an_unknown_recipe() -> None:
    with pytest.raises(SpecError) as caught:
        recipe_named("mixd")
    assert str(caught.value) == "unknown optimizer recipe 'mixd': did you mean 'mixed'?"


def test_experts_are_sharded_over_fewer_ranks() -> None:
    """Dense parameters lie on all of dp × ep × cp, an expert on dp × cp."""
    found = state_bytes(RankParameters(240, 120), RECIPES["mixed"], 1, Split(dp=2, ep=4, cp=3))
    assert found == (2 * 360, 2 * 360, 12 * 240 / 24 + 12 * 120 / 6)


@given(st.integers(0, 3), st.integers(1, 8), st.integers(1, 4))
def test_more_sharding_never_takes_more(zero: int, dp: int, ep: int) -> None:
    parameters = RankParameters(1000, 500)
    split = Split(dp=dp, ep=ep)
    found = [state_bytes(parameters, RECIPES["mixed"], level, split).total_bytes for level in range(zero + 1)]
    assert found == sorted(found, reverse=True)
    assert found[0] == 1500 * 16


@pytest.mark.parametrize("name", MODELS)
def test_one_rank_holds_everything(name: str) -> None:
    spec = model_preset(name)
    found = rank_parameters(spec, [(0, spec.layers)])
    counted = model_parameters(spec)
    assert found.total == counted.total
    assert found.experts == sum(layer.experts for layer in counted.layers)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("tp", [2, 4])
def test_ranks_hold_a_layer_together(name: str, tp: int) -> None:
    """Every tensor is divided, or whole on all ranks; nothing else, and nothing is lost."""
    spec = model_preset(name)
    layer = spec.layers - 1
    ranks = [layer_rank_parameters(spec, layer, share, ep=4) for share in rank_shares(spec, tp)]
    words = ("attn_norm", "mlp_norm", "q_norm", "k_norm", "router", "q_down", "kv_down", "q_down_norm", "kv_down_norm")
    tensors = layer_tensors(spec, layer)
    whole_ones = sum(
        prod(shape)
        for tensor, shape in tensors.items()
        if tensor.split(".")[0] in words or tensor in ("o.bias", "down.bias")
    )
    total = layer_parameters(spec, layer)
    assert sum(rank.dense for rank in ranks) == total.total - total.experts + (tp - 1) * whole_ones
    assert sum(rank.experts for rank in ranks) == total.experts / 4


def test_uneven_shares_by_hand() -> None:
    """P7: SmolLM2's 9 and 3 heads over two ranks; KV head 1 lies on both, the MLP divides evenly."""
    first, second = (layer_rank_parameters(SMOL, 0, share).dense for share in rank_shares(SMOL, 2))
    mlp, norms = 3 * 768 * 576, 2 * 576
    assert first == 2 * 5 * 64 * 576 + 2 * 2 * 64 * 576 + mlp + norms
    assert second == 2 * 4 * 64 * 576 + 2 * 2 * 64 * 576 + mlp + norms
    stage = rank_parameters(SMOL, [(0, 30)], tp=2).dense
    assert stage == 30 * first + 49152 * 576 / 2 + 576


def test_experts_that_do_not_divide() -> None:
    spec = model_preset("mixtral-8x7b")
    one = 3 * 4096 * 14336
    assert [layer_rank_parameters(spec, 0, whole(spec), ep).experts // one for ep in (1, 2, 3, 8)] == [8, 4, 3, 1]


def test_a_tied_embedding_lies_on_both_ends() -> None:
    table = 49152 * 576
    ends = [rank_parameters(SMOL, ranges).dense for ranges in ([(0, 15)], [(15, 30)], [(0, 15), (15, 30)])]
    layers = 15 * layer_parameters(SMOL).total
    assert ends == [layers + table, layers + table + 576, 2 * layers + table + 576]
    untied = replace(SMOL, tied=False)
    assert rank_parameters(untied, [(0, 30)]).dense - rank_parameters(SMOL, [(0, 30)]).dense == table


@pytest.mark.parametrize("name", MODELS)
def test_a_position_of_several_stages(name: str) -> None:
    """By the stages' tensors, a tied embedding once: first, middle and last of the layers, dense ones among them."""
    spec = model_preset(name)
    ranges = [(0, 2), (5, 9), (spec.layers - 2, spec.layers)]
    found = rank_parameters(spec, ranges)
    tensors = {name: shape for one in ranges for name, shape in stage_tensors(spec, *one).items()}
    assert found.total == sum(map(prod, tensors.values()))


def test_ends_are_divided_over_the_vocabulary() -> None:
    spec = model_preset("llama3-8b")
    table = spec.vocab * spec.hidden // 4
    share = Share(8, 2, 0.25)
    assert end_rank_parameters(spec, share, first=True, last=False).dense == table
    assert end_rank_parameters(spec, share, first=False, last=True).dense == table + spec.hidden
    assert end_rank_parameters(spec, share, first=True, last=True).dense == 2 * table + spec.hidden


def test_more_ranks_than_heads() -> None:
    """One of ten has no head; the fullest has one of nine, with its KV head, and a tenth of the rest, rounded up."""
    layer = 4 * 64 * 576 + 3 * 154 * 576 + 2 * 576
    assert rank_parameters(SMOL, [(0, 30)], tp=10).dense == 30 * layer + 4916 * 576 + 576
