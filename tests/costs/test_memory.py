"""Bytes of a stage, against figures counted by hand for the demo model's shape."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.costs.memory import FORMAT_BYTES, kv_bytes, need_bytes, weights_bytes, workspace_bytes
from plait.errors import PlanError, SpecError
from plait.plans.layout import Layout, Stage
from plait.spec.model import ModelSpec, Rope
from plait.spec.presets import model_preset

SMOL = ModelSpec(
    "smol", "llama", 30, 576, 9, 3, 64, 1536, 49152, 2048, 1e-5, Rope(1e4, 64), (None,) * 30, tied=True
)  # fmt: skip
LAYER = 576 * (576 + 192 + 192 + 576) + 3 * 576 * 1536 + 2 * 576  # q k v o, gate up down, two norms
EMBEDDING = 49152 * 576


def test_weights_of_the_whole_model() -> None:
    """134,515,008 parameters: the published size of SmolLM2-135M."""
    assert weights_bytes(Stage((0, 30), (0,)), SMOL) == 134_515_008 * 4
    assert 30 * LAYER + EMBEDDING + 576 == 134_515_008


def test_a_tied_embedding_is_counted_on_both_stages_that_hold_it() -> None:
    stages = (Stage((0, 10), (0,), weights="bfloat16"), Stage((10, 20), (1,)), Stage((20, 30), (2,)))
    assert weights_bytes(stages[0], SMOL) == 2 * (10 * LAYER + EMBEDDING)
    assert weights_bytes(stages[1], SMOL) == 4 * 10 * LAYER
    assert weights_bytes(stages[2], SMOL) == 4 * (10 * LAYER + EMBEDDING + 576)


def test_an_untied_head_is_the_last_stages() -> None:
    assert weights_bytes(Stage((20, 30), (2,)), replace(SMOL, tied=False)) == 4 * (10 * LAYER + EMBEDDING + 576)
    whole = weights_bytes(Stage((0, 30), (0,)), replace(SMOL, tied=False))
    assert whole == 4 * (134_515_008 + EMBEDDING)


def test_kv_cache() -> None:
    """SmolLM2 in bfloat16: 2 × 3 heads × 64 × 2 bytes × 30 layers = 23,040 bytes a position."""
    assert kv_bytes(Stage((0, 30), (0,), dtype="bfloat16"), SMOL, 1, 1) == 23_040
    assert kv_bytes(Stage((0, 15), (0,)), SMOL, 8, 1024) == 23_040 * 8 * 1024


def test_need_per_stage() -> None:
    layout = Layout({"pp": 2}, (Stage((0, 12), (0,)), Stage((12, 30), (1,))))
    needs = need_bytes(layout, SMOL, 4, 512)
    assert [need.kv_bytes for need in needs] == [kv_bytes(stage, SMOL, 4, 512) for stage in layout.stages]
    assert needs[1].total_bytes == needs[1].weights_bytes + needs[1].kv_bytes + needs[1].workspace_bytes
    assert needs[1].workspace_bytes - needs[0].workspace_bytes == 2 * 4 * 49152 * 4


def test_an_unknown_format_names_the_nearest() -> None:
    with pytest.raises(SpecError, match="unknown weight format 'bfloat61': did you mean 'bfloat16'"):
        weights_bytes(Stage((0, 30), (0,), weights="bfloat61"), SMOL)


def test_published_sizes_of_quantised_models() -> None:
    """Llama 3 70B at 4.5 bits is 39.7 GB (P8); DeepSeek-V3 in float8 671 GB; Llama 3 8B at q8_0 8.53 GB."""

    def whole(name: str, weights: str) -> float:
        spec = model_preset(name)
        return weights_bytes(Stage((0, spec.layers), (0,), "bfloat16", weights), spec) / 1e9

    assert whole("llama3-70b", "q4_0") == whole("llama3-70b", "q4_k") == pytest.approx(70.5537 * 4.5 / 8, rel=1e-5)
    assert whole("deepseek-v3", "float8") == pytest.approx(671.03, rel=1e-4)
    assert whole("llama3-8b", "q8_0") == pytest.approx(8.5322, rel=1e-4)


def test_bits_of_the_formats() -> None:
    bits = {name: 8 * size for name, size in FORMAT_BYTES.items()}
    blocks = {"q8_0": 8.5, "q5_1": 6.0, "q5_0": 5.5, "q4_1": 5.0, "q4_0": 4.5, "mxfp4": 4.25}
    supers = {"q6_k": 6.5625, "q5_k": 5.5, "q4_k": 4.5, "q4_k_m": 4.84}
    rows = {"int8": 8.25, "int4": 4.25}
    assert {name: bits[name] for name in (blocks | supers | rows)} == pytest.approx(blocks | supers | rows)


def test_uneven_tensor_shares() -> None:
    """P7: 9 and 3 heads over two ranks, by hand for the larger share: 5 query heads, 2 KV heads, half of the rest."""
    layout = Layout({"tp": 2}, (Stage((0, 30), (0, 1)),))
    (need,) = need_bytes(layout, SMOL, 4, 512)
    layer = 2 * 5 * 64 * 576 + 2 * 2 * 64 * 576 + 3 * 768 * 576 + 2 * 576
    assert need.weights_bytes == 4 * (30 * layer + EMBEDDING // 2 + 576)
    assert need.kv_bytes == 30 * 4 * 512 * 2 * 2 * 64 * 4
    given = replace(layout, stages=(replace(layout.stages[0], shares=(6, 3)),))
    assert need_bytes(given, SMOL, 4, 512)[0].weights_bytes > need.weights_bytes


def test_more_ranks_than_heads() -> None:
    """The fullest of ten ranks for 9 heads: one head and its KV head, 154 of 1536 columns, 4916 of 49152 rows."""
    (need,) = need_bytes(Layout({"tp": 10}, (Stage((0, 30), tuple(range(10))),)), SMOL, 4, 512)
    layer = 4 * 64 * 576 + 3 * 154 * 576 + 2 * 576
    assert need.weights_bytes == 4 * (30 * layer + 4916 * 576 + 576)
    assert need.kv_bytes == 30 * 4 * 512 * 2 * 64 * 4


@given(tp=st.integers(1, 12), ep=st.sampled_from([1, 2]), sizes=st.lists(st.integers(1, 9), min_size=12, max_size=12))
def test_weights_are_dealt_and_none_is_lost(tp: int, ep: int, sizes: list[int]) -> None:
    """The fullest rank holds at least its even part of all, and never more than all."""
    spec = model_preset("mixtral-8x7b")
    stage = Stage((0, 2), tuple(range(tp)), "bfloat16", "bfloat16", shares=tuple(sizes[:tp]))
    alone = weights_bytes(Stage((0, 2), (0,), "bfloat16", "bfloat16"), spec, 1, ep)
    assert alone / tp <= weights_bytes(stage, spec, tp, ep) <= alone


def test_shares_that_fit_nothing() -> None:
    layout = Layout({"tp": 2}, (Stage((0, 30), (0, 1), shares=(9, 0)),))
    with pytest.raises(PlanError) as caught:
        need_bytes(layout, SMOL, 1, 64)
    assert str(caught.value) == (
        "shares 9, 0 do not fit a tensor group of 2 ranks: write 2 numbers above 0, in proportion to the devices' speed"
    )


def test_slots_are_of_each_replica() -> None:
    stage = Stage((0, 30), (0, 1, 2))
    three, one = (need_bytes(Layout({"dp": dp}, (stage,)), SMOL, 10, 512)[0] for dp in (3, 1))
    assert three == one
    assert one.kv_bytes == kv_bytes(stage, SMOL, 10, 512)


def test_latents_are_cached_whole_on_every_rank() -> None:
    """DeepSeek-V3 in bfloat16: 70,272 bytes a token whatever tp is; experts are dealt over ep."""
    spec = model_preset("deepseek-v3")
    stage = Stage((0, 61), tuple(range(64)), "bfloat16", "float8", device="h200")
    alone, dealt = (need_bytes(Layout({"ep": ep, "tp": 8}, (stage,)), spec, 8, 1000)[0] for ep in (1, 8))
    assert alone.kv_bytes == 8 * 1000 * 70_272
    assert dealt.kv_bytes == 8 * 1000 * 70_272
    experts = 58 * 256 * 3 * 7168 * 2048 // 8
    assert alone.weights_bytes - dealt.weights_bytes == experts - experts // 8


def test_only_a_cpu_stores_scores() -> None:
    cpu, gpu = (Stage((0, 30), (0,), device=device) for device in ("cpu", "rtx4090"))
    more = workspace_bytes(cpu, SMOL, 64, 1, 2048) - workspace_bytes(gpu, SMOL, 64, 1, 2048)
    assert more == 2 * 9 * 64 * 2048 * 4


@pytest.mark.parametrize("name", ["llama3-8b", "mixtral-8x7b", "deepseek-v3", "gpt3-175b"])
def test_a_tensor_group_needs_less_on_each_rank(name: str) -> None:
    spec = model_preset(name)

    def need(tp: int) -> int:
        stage = Stage((0, spec.layers), tuple(range(tp)), "bfloat16", "bfloat16", device="h100")
        return need_bytes(Layout({"tp": tp}, (stage,)), spec, 4, 2048)[0].total_bytes

    assert need(1) > need(2) > need(4) > need(8) > need(1) / 8
