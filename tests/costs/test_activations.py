"""Activations against the published formulas, exactly, and other layers counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.costs.activations import (
    embedding_kept_bytes,
    head_kept_bytes,
    head_weight_half_bytes,
    layer_kept,
    layer_kept_bytes,
    layer_recomputed_bytes,
    layer_weight_half_bytes,
)
from plait.costs.operations import Work
from plait.costs.shares import largest_share, whole
from plait.plans.split import RECOMPUTE
from plait.spec.model import ModelSpec
from plait.spec.presets import model_preset

GPT = model_preset("gpt3-175b")


def gpt(hidden: int, heads: int, vocab: int = 100) -> ModelSpec:
    return replace(
        GPT,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        intermediate=4 * hidden,
        vocab=vocab,
    )


@st.composite
def gpt_work(draw: st.DrawFn) -> tuple[ModelSpec, Work, int, int, int, int, int]:
    """A GPT as published: dropout, unfused attention, bfloat16; and b, s, h, a, t."""
    t = draw(st.sampled_from([1, 2, 4, 8]))
    a = t * draw(st.integers(1, 4))
    h = a * 8 * draw(st.integers(1, 4))
    b, s = draw(st.integers(1, 4)), draw(st.integers(1, 64))
    spec = gpt(h, a, vocab=t * draw(st.integers(1, 50)))
    split = draw(st.sampled_from([1, t]))
    work = Work(b * s, b * s * s, largest_share(spec, t), split=split, fused=False, dropout=True)
    return spec, work, b, s, h, a, t


@given(gpt_work())
def test_the_published_formulas(case: tuple[ModelSpec, Work, int, int, int, int, int]) -> None:
    """Korthikanti et al. 2022, equations 1, 2 and 4, section 5, and full recompute."""
    spec, work, b, s, h, a, t = case
    n = work.split
    none = s * b * h * (10 / n + 24 / t + 5 * a * s / (h * t))
    assert layer_kept_bytes(spec, 0, work) == pytest.approx(none, rel=1e-12)
    assert layer_kept_bytes(spec, 0, work, "selective") == pytest.approx(s * b * h * (10 / n + 24 / t), rel=1e-12)
    assert layer_kept_bytes(spec, 0, work, "full") == 2 * s * b * h / n
    if n == t:
        assert none == pytest.approx(s * b * h / t * (34 + 5 * a * s / h), rel=1e-12)


@given(gpt_work())
def test_the_published_ends(case: tuple[ModelSpec, Work, int, int, int, int, int]) -> None:
    """Korthikanti et al. 2022, section 4.3: dropout's mask, and 4 s b h / t (1 + v / h) with sequence split."""
    spec, work, b, s, h, _, t = case
    work = replace(work, split=t)
    assert embedding_kept_bytes(spec, work) == s * b * h / t
    assert embedding_kept_bytes(spec, replace(work, dropout=False)) == 0
    assert head_kept_bytes(spec, work) == pytest.approx(4 * s * b * h / t * (1 + spec.vocab / h), rel=1e-12)
    assert head_weight_half_bytes(spec, work) == pytest.approx(head_kept_bytes(spec, work) - 2 * s * b * h / t)


@given(gpt_work())
def test_between_the_halves_of_a_backward(case: tuple[ModelSpec, Work, int, int, int, int, int]) -> None:
    """Qi et al. 2023, table 1: 32 s b h; of them the inputs and gradients of [tokens, hidden] are 8."""
    spec, work, b, s, h, _, t = case
    counted = layer_weight_half_bytes(spec, 0, work)
    assert counted == pytest.approx(s * b * h * (8 / work.split + 24 / t), rel=1e-12)


def test_published_shares_of_the_scores() -> None:
    """Korthikanti et al. 2022, section 5: 5as/h is 80 for GPT-3 and 64 for MT-NLG, 70 % and 65 % of a layer's bytes."""
    for spec, term, percent in ((gpt(12288, 96), 80, 70), (gpt(20480, 128), 64, 65)):
        work = Work(2048, 2048 * 2048, whole(spec), fused=False, dropout=True)
        kept = layer_kept(spec, 0, work)
        assert kept.scores_bytes / (2048 * spec.hidden) == term
        assert round(100 * kept.scores_bytes / kept.total_bytes) == percent


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("name", ["gpt3-175b", "llama3-8b", "mixtral-8x7b", "deepseek-v3"])
def test_kept_and_made_anew_are_the_whole(name: str, recompute: str, fused: bool) -> None:
    spec = model_preset(name)
    work = Work(512, 512 * 512, largest_share(spec, 4), ep=2, split=4, fused=fused)
    layer = spec.layers - 1
    kept = layer_kept_bytes(spec, layer, work, recompute)  # type: ignore[arg-type]
    anew = layer_recomputed_bytes(spec, layer, work, recompute)  # type: ignore[arg-type]
    assert kept + anew == pytest.approx(layer_kept_bytes(spec, layer, work))
    assert (anew == 0) == (recompute == "none" or (recompute == "selective" and fused))


def test_llama_by_hand() -> None:
    """No dropout, fused: 4 inputs of 4096; queries and their result 4096, keys and values 1024; gate, up, product."""
    spec = model_preset("llama3-8b")
    kept = layer_kept(spec, 0, Work(1, 1, whole(spec)))
    assert kept.whole_bytes == 4 * 4096 * 2
    assert kept.inner_bytes == (2 * 4096 + 2 * 1024 + 3 * 14336) * 2 + 32 * 4
    assert kept.scores_bytes == 0


def test_query_and_key_norms_keep_their_inputs() -> None:
    spec = model_preset("qwen3-8b")
    without = replace(spec, qk_norm=None)
    work = Work(10, 100, whole(spec))
    more = layer_kept_bytes(spec, 0, work) - layer_kept_bytes(without, 0, work)
    assert more == 10 * (spec.heads + spec.kv_heads) * spec.head_dim * 2


def test_kv_heads_that_are_read_unevenly_are_copied_for_every_query_head() -> None:
    """9 query heads read 3 KV heads; of two ranks the first has 5 query heads, which read 2."""
    spec = replace(model_preset("llama3-8b"), heads=9, kv_heads=3)
    share = largest_share(spec, 2)
    assert (share.heads, share.kv_heads) == (5, 2)
    even, uneven = (layer_kept(spec, 0, Work(10, 55, one)) for one in (share._replace(heads=4), share))
    assert even.scores_bytes == 0
    assert uneven.scores_bytes == 2 * 10 * (5 - 2) * spec.head_dim * 2
    assert layer_recomputed_bytes(spec, 0, Work(10, 55, share), "selective") == uneven.scores_bytes


def test_experts_by_hand() -> None:
    """Mixtral: two experts a token, each with its input and result, gate, up and product; eight probabilities."""
    spec = model_preset("mixtral-8x7b")
    dense = replace(spec, experts=None)
    work = Work(1, 1, whole(spec))
    routed = layer_kept_bytes(spec, 0, work) - layer_kept_bytes(dense, 0, work)
    one = 3 * 14336 * 2
    assert routed == 2 * (2 * 4096 * 2 + one) + 8 * 4 - one
    assert layer_weight_half_bytes(spec, 0, work) == (
        3 * 4096 * 2 + (2 * 4096 + 2 * 1024) * 2 + 2 * (2 * 4096 * 2 + one) + 8 * 4
    )


def test_latents_and_shared_experts_by_hand() -> None:
    """DeepSeek-V3: latents of 1536 and 512 before and after their norms, whole on every rank."""
    spec = model_preset("deepseek-v3")
    kept = layer_kept(spec, 0, Work(1, 1, largest_share(spec, 8)))
    assert kept.whole_bytes == (4 * 7168 + 2 * 1536 + 2 * 512 + 64) * 2
    assert kept.inner_bytes == (128 / 8 * 2 * (128 + 64 + 128) + 3 * 18432 / 8) * 2 + 128 / 8 * 4
    with_experts = layer_kept(spec, 3, Work(1, 1, whole(spec)))
    routed = 8 * (2 * 7168 * 2 + 3 * 2048 * 2) + 256 * 4
    shared = 3 * 2048 * 2
    attention = (4 * 7168 + 2 * 1536 + 2 * 512 + 64 + 128 * 2 * 320) * 2 + 128 * 4
    assert with_experts.total_bytes == attention + routed + shared


@given(st.integers(1, 6), st.booleans(), st.booleans())
def test_a_larger_group_never_keeps_more(power: int, fused: bool, split: bool) -> None:
    spec = model_preset("llama3-70b")
    t = 2**power

    def kept(tp: int) -> float:
        work = Work(256, 256 * 256, largest_share(spec, tp), split=tp if split else 1, fused=fused)
        return layer_kept_bytes(spec, 0, work)

    assert kept(t) < kept(t // 2)
    assert kept(t) >= kept(t // 2) / 2


def test_float32_takes_twice_as_much() -> None:
    spec = gpt(64, 4)
    half, full = (Work(8, 64, whole(spec), fused=False, item_bytes=item) for item in (2, 4))
    assert layer_kept_bytes(spec, 0, full) == 2 * layer_kept_bytes(spec, 0, half)
