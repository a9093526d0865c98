"""A layer's operations: bytes by hand, shapes forward and backward, what a sequence split and uneven shares change."""

from __future__ import annotations

import pytest

from plait.costs.operations import (
    Work,
    backward_input,
    backward_weight,
    embedding_operations,
    head_operations,
    layer_operations,
)
from plait.costs.shares import rank_shares, whole
from plait.spec.presets import model_preset

LLAMA = model_preset("llama3-8b")
T = 128


def test_names_in_order() -> None:
    def names(preset: str, layer: int) -> str:
        spec = model_preset(preset)
        return " ".join(one.name for one in layer_operations(spec, layer, Work(T, T * T, whole(spec))))

    assert names("gpt3-175b", 0) == ("attn_norm qkv attention o attn_residual mlp_norm up activation down mlp_residual")
    assert names("llama3-8b", 0).startswith("attn_norm qkv rope attention o attn_residual mlp_norm up")
    assert "qkv qk_norm rope attention" in names("qwen3-235b-a22b", 0)
    assert names("deepseek-v3", 3) == (
        "attn_norm q_down kv_down latent_norm q_up kv_up attention o attn_residual mlp_norm router dispatch experts_up "
        "experts_activation experts_down combine shared_up shared_activation shared_down mlp_residual"
    )
    assert names("deepseek-v3", 0).endswith("mlp_norm up activation down mlp_residual")


def test_bytes_by_hand() -> None:
    """Llama 3 8B in bfloat16: weights once, inputs and outputs once."""
    found = {one.name: one for one in layer_operations(LLAMA, 0, Work(T, T * T, whole(LLAMA)))}
    assert found["qkv"].moved_bytes == 2 * (4096 * 6144 + T * (4096 + 6144))
    assert found["up"].moved_bytes == 2 * (4096 * 28672 + T * (4096 + 28672))
    assert found["activation"].moved_bytes == 2 * T * 3 * 14336
    assert found["activation"].backward_bytes == 2 * T * 5 * 14336
    assert found["attn_norm"].moved_bytes == 2 * T * 2 * 4096
    assert found["attn_residual"].moved_bytes == 2 * T * 3 * 4096
    assert found["attention"].moved_bytes == 2 * T * (2 * 4096 + 2 * 1024)


def test_quantised_weights_move_fewer_bytes() -> None:
    work = Work(1, 1, whole(LLAMA), weight_bytes=0.5)
    down = {one.name: one for one in layer_operations(LLAMA, 0, work)}["down"]
    assert down.moved_bytes == 4096 * 14336 / 2 + 2 * (4096 + 14336)


def test_unfused_attention_moves_its_scores() -> None:
    def moved(*, fused: bool, dropout: bool) -> float:
        work = Work(T, T * T, whole(LLAMA), fused=fused, dropout=dropout)
        return next(one.moved_bytes for one in layer_operations(LLAMA, 0, work) if one.kind == "attention")

    scores = LLAMA.heads * T * T
    assert moved(fused=False, dropout=False) - moved(fused=True, dropout=False) == scores * 4 * 2
    assert moved(fused=False, dropout=True) - moved(fused=True, dropout=True) == scores * (6 * 2 + 1)


def test_backward_shapes() -> None:
    """[T, out] by [out, in] for the input, [out, T] by [T, in] for the weight: as many FLOP as the forward each."""
    up = {one.name: one for one in layer_operations(LLAMA, 0, Work(T, T * T, whole(LLAMA)))}["up"]
    (of_input,), (of_weight,) = backward_input(up), backward_weight(up)
    assert (up.rows, up.inner, up.columns) == (T, 4096, 28672)
    assert (of_input.rows, of_input.inner, of_input.columns) == (T, 28672, 4096)
    assert (of_weight.rows, of_weight.inner, of_weight.columns) == (28672, T, 4096)
    for back in (of_input, of_weight):
        assert back.flops == 2 * back.rows * back.inner * back.columns == up.flops


def test_only_weights_have_a_weight_half() -> None:
    for one in layer_operations(LLAMA, 0, Work(T, T * T, whole(LLAMA))):
        assert bool(backward_weight(one)) == (one.kind == "matmul")
        assert all(back.name == f"{one.name}_input" for back in backward_input(one))


def test_a_sequence_split_divides_norms_and_residuals_only() -> None:
    share = rank_shares(LLAMA, 4)[0]
    whole_rows = layer_operations(LLAMA, 0, Work(T, T * T, share))
    split = layer_operations(LLAMA, 0, Work(T, T * T, share, split=4))
    changed = [before.name for before, after in zip(whole_rows, split, strict=True) if before != after]
    assert changed == ["attn_norm", "attn_residual", "mlp_norm", "mlp_residual"]
    assert sum(one.moved_bytes for one in whole_rows if one.name == "mlp_norm") == 4 * sum(
        one.moved_bytes for one in split if one.name == "mlp_norm"
    )


def test_ends() -> None:
    share = rank_shares(LLAMA, 4)[0]
    norm, head, loss = head_operations(LLAMA, Work(T, 0, share))
    assert (norm.name, head.columns, head.flops) == ("final_norm", 128256 / 4, 2 * T * 4096 * 128256 / 4)
    assert loss.moved_bytes == 12 * T * 128256 / 4
    (embedding,) = embedding_operations(LLAMA, Work(T, 0, share))
    assert embedding.moved_bytes == 2 * 2 * T * 4096
    gpt = model_preset("gpt3-175b")
    assert embedding_operations(gpt, Work(T, 0, whole(gpt)))[0].moved_bytes == 3 * 2 * T * gpt.hidden


@pytest.mark.parametrize("name", ["llama3-8b", "deepseek-v3", "mixtral-8x7b", "gpt3-175b"])
def test_no_tokens_is_no_work_but_reading_weights(name: str) -> None:
    spec = model_preset(name)
    for one in layer_operations(spec, spec.layers - 1, Work(0, 0, whole(spec))):
        assert one.flops == 0
        assert (one.moved_bytes > 0) == (one.kind == "matmul")
