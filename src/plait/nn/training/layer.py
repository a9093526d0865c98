"""One decoder layer that learns."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function
from torch.nn.functional import gelu, silu

from plait.nn.group import TensorGroup
from plait.nn.training.attention import Attention, Sequences
from plait.nn.training.dropout import Dropout
from plait.nn.training.functions import applied, run_again
from plait.nn.training.linear import Linear, Pass
from plait.nn.training.norms import HeadNorm, make_norm
from plait.nn.training.options import StageOptions
from plait.nn.training.parameters import Parameters
from plait.spec.model import ModelSpec
from plait.spec.shards import Shard


class TrainingLayer:
    """A rank's part of layer `number`, over `parameters`."""

    def __init__(
        self,
        spec: ModelSpec,
        parameters: Parameters,
        number: int,
        shard: Shard,
        group: TensorGroup,
        options: StageOptions,
    ) -> None:
        prefix = f"layers.{number}."
        self._post, self._again = spec.norm_placement == "post", options.recompute == "full"

        def linear(name: str) -> Linear:
            return Linear(parameters[f"{prefix}{name}.weight"], parameters.get(f"{prefix}{name}.bias"))

        norms = [linear(name) for name in ("attn_norm", "mlp_norm")]
        self._attn_norm, self._mlp_norm = (make_norm(spec, norm.weight, norm.bias) for norm in norms)
        self._qkv, self._o, self._gate_up, self._down = map(linear, ("qkv", "o", "gate_up", "down"))
        self._attn_dropout, self._mlp_dropout = (
            Dropout(options.dropout, options.seed, f"{prefix}{name}") for name in ("attn", "mlp")
        )
        self._head_norm = None
        if spec.qk_norm is not None:
            query, key = (parameters[f"{prefix}{name}_norm.weight"] for name in "qk")
            self._head_norm = HeadNorm(spec, query, key, shard, group)
        self._attention = Attention(spec, shard, spec.windows[number], options.recompute == "selective")
        self._activation = make_activation(spec)

    def __call__(self, x: Tensor, sequences: Sequences, at: Pass) -> Tensor:
        """What lies between the blocks, [tokens or this rank's rows, hidden], to the same."""
        whole = partial(self._whole, sequences=sequences, at=at)
        return run_again(whole, x) if self._again else whole(x)

    def _whole(self, x: Tensor, sequences: Sequences, at: Pass) -> Tensor:
        if self._post:
            x = self._attn_dropout.added(self._attn_norm(self._attend(x, None, sequences, at)), x, at)
            return self._mlp_dropout.added(self._mlp_norm(self._think(x, None, at)), x, at)
        x = self._attend(self._attn_norm(x), x, sequences, at)
        return self._think(self._mlp_norm(x), x, at)

    def _attend(self, x: Tensor, residual: Tensor | None, sequences: Sequences, at: Pass) -> Tensor:
        qkv = self._qkv.by_outputs(x, at)
        if self._head_norm is not None:
            qkv = self._head_norm(qkv)
        return self._out(self._o, self._attention(qkv, sequences), residual, self._attn_dropout, at)

    def _think(self, x: Tensor, residual: Tensor | None, at: Pass) -> Tensor:
        inner = self._activation(self._gate_up.by_outputs(x, at))
        return self._out(self._down, inner, residual, self._mlp_dropout, at)

    def _out(self, linear: Linear, x: Tensor, residual: Tensor | None, dropout: Dropout, at: Pass) -> Tensor:
        if residual is None or not dropout.rate:
            return linear.by_inputs(x, residual, at)
        return dropout.added(linear.by_inputs(x, None, at), residual, at)


class Activation:
    """What stands between the products of an MLP."""

    def __init__(self, spec: ModelSpec) -> None:
        self._smooth = spec.activation == "silu"
        self._how = "tanh" if spec.activation == "gelu_tanh" else "none"
        self.forward = silu if self._smooth else partial(gelu, approximate=self._how)

    def backward(self, gradient: Tensor, x: Tensor, out: Tensor) -> None:
        """The gradient of `x`, from that of ``forward(x)``, into `out`."""
        aten = torch.ops.aten
        if self._smooth:
            aten.silu_backward.grad_input(gradient, x, grad_input=out)
        else:
            aten.gelu_backward.grad_input(gradient, x, approximate=self._how, grad_input=out)


class Gated(Activation):
    """act(gate) · up of [tokens, 2 × columns]."""

    def __call__(self, both: Tensor) -> Tensor:
        """[tokens, 2 × columns] to [tokens, columns]."""
        return applied(_Gated, both, self)


class Plain(Activation):
    """act of [tokens, columns]."""

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, columns] to the same."""
        return self.forward(x)


def make_activation(spec: ModelSpec) -> Gated | Plain:
    """That of the model."""
    return Gated(spec) if spec.mlp == "gated" else Plain(spec)


class _Gated(Function):
    @staticmethod
    def forward(ctx: Any, both: Tensor, activation: Activation) -> Tensor:
        ctx.save_for_backward(both)
        ctx.activation = activation
        gate, up = both.chunk(2, dim=1)
        return activation.forward(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (both,) = ctx.saved_tensors
        activation: Activation = ctx.activation
        gate, up = both.chunk(2, dim=1)
        inputs = torch.empty_like(both)
        of_gate, of_up = inputs.chunk(2, dim=1)
        activation.backward(gradient * up, gate, of_gate)
        torch.mul(activation.forward(gate), gradient, out=of_up)
        return inputs, None
