"""The count of activations against torch: what autograd really saves of one layer, tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear, rms_norm, scaled_dot_product_attention, silu

from plait.costs.activations import layer_kept_bytes
from plait.costs.operations import Work
from plait.costs.shares import whole
from plait.spec.model import ModelSpec
from plait.spec.presets import model_preset

B, S, H, HEADS, KV, INNER = 2, 16, 64, 4, 2, 96
D = H // HEADS
GPT = replace(
    model_preset("gpt3-175b"), layers=1, hidden=H, heads=HEADS, kv_heads=HEADS, head_dim=D, intermediate=4 * H
)
LLAMA = replace(model_preset("llama3-8b"), layers=1, hidden=H, heads=HEADS, kv_heads=KV, head_dim=D, intermediate=INNER)


class Fused(torch.autograd.Function):
    """Saves its inputs alone, as fused kernels do; on a CPU torch does them in several operations."""

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise NotImplementedError


class SwiGLU(Fused):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return silu(gate) * up


class RMSNorm(Fused):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(x, scale)
        return rms_norm(x, (H,), scale, 1e-5)


class Weights:
    """Makes a layer's weights, and knows their storages."""

    def __init__(self) -> None:
        self.made: list[Tensor] = []

    def __call__(self, *shape: int) -> Tensor:
        self.made.append(torch.full(shape, 0.01, dtype=torch.bfloat16, requires_grad=True))
        return self.made[-1]

    def holds(self, tensor: Tensor) -> bool:
        mine = {each.untyped_storage().data_ptr() for each in self.made}
        return tensor.untyped_storage().data_ptr() in mine


Layer = Callable[[Tensor, Weights], Tensor]


def saved_bytes(layer: Layer) -> int:
    """Bytes of all storages that autograd keeps of a forward on [B, S, H], but weights and statistics of a row."""
    weights = Weights()
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if not weights.holds(tensor) and tensor.numel() > B * S * HEADS:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    x = torch.randn(B, S, H, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = layer(x, weights)
    assert out.shape == x.shape
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def heads(x: Tensor) -> Tensor:
    return x.view(B, S, -1, D).transpose(1, 2)


def dropped(x: Tensor) -> Tensor:
    return torch.native_dropout(x, 0.1, True)[0]


def unfused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.transpose(-1, -2)) * D**-0.5
    return dropped(scores.softmax(-1)) @ v


def gpt_layer(attend: Callable[[Tensor, Tensor, Tensor], Tensor], drop: Callable[[Tensor], Tensor]) -> Layer:
    def layer(x: Tensor, weight: Weights) -> Tensor:
        normed = layer_norm(x, (H,), weight(H), weight(H))
        q, k, v = (linear(normed, weight(H, H)) for _ in range(3))
        mixed = attend(heads(q), heads(k), heads(v)).transpose(1, 2).reshape(B, S, H)
        x = x + drop(linear(mixed, weight(H, H)))
        normed = layer_norm(x, (H,), weight(H), weight(H))
        return x + drop(linear(gelu(linear(normed, weight(4 * H, H))), weight(H, 4 * H)))

    return layer


def llama_layer(x: Tensor, weight: Weights) -> Tensor:
    normed = RMSNorm.apply(x, weight(H))
    q, k, v = (linear(normed, weight(out * D, H)) for out in (HEADS, KV, KV))
    mixed = fused(heads(q), heads(k), heads(v)).transpose(1, 2).reshape(B, S, H)
    x = x + linear(mixed, weight(H, H))
    normed = RMSNorm.apply(x, weight(H))
    inner = SwiGLU.apply(linear(normed, weight(INNER, H)), linear(normed, weight(INNER, H)))
    return x + linear(inner, weight(H, INNER))


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=k.shape[1] != q.shape[1])


def predicted(spec: ModelSpec, *, fused: bool, dropout: bool) -> float:
    """Without fused attention's statistics: one float32 a head and position."""
    work = Work(B * S, B * S * S, whole(spec), fused=fused, dropout=dropout)
    return layer_kept_bytes(spec, 0, work) - (4 * HEADS * B * S if fused else 0)


CASES: dict[str, tuple[Layer, float]] = {
    "GPT as published": (gpt_layer(unfused, dropped), predicted(GPT, fused=False, dropout=True)),
    "GPT, fused, no dropout": (gpt_layer(fused, lambda x: x), predicted(GPT, fused=True, dropout=False)),
    "Llama, fused": (llama_layer, predicted(LLAMA, fused=True, dropout=False)),
}


@pytest.mark.parametrize("name", CASES)
def test_what_autograd_saves(name: str) -> None:
    layer, expected = CASES[name]
    assert saved_bytes(layer) == expected
