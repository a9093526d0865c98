"""A stage that learns: forward, loss, backward and update of some layers, alone or as one rank of a tensor group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from plait.nn.group import Alone, TensorGroup
from plait.nn.rope import rotations
from plait.nn.training.attention import Sequences, window_mask
from plait.nn.training.collectives import Exchange
from plait.nn.training.embedding import Embedding
from plait.nn.training.layer import TrainingLayer
from plait.nn.training.linear import Pass, Products
from plait.nn.training.loss import IGNORED, Head
from plait.nn.training.norms import make_norm
from plait.nn.training.parameters import Parameters
from plait.nn.training.partial import Partial
from plait.spec.checked import require_runnable
from plait.spec.model import ModelSpec
from plait.spec.shards import Shard, whole_shard


@dataclass(frozen=True, slots=True)
class Passed:
    """A micro-batch that went forward through a stage, and has still to come back.

    `hidden`: for the next stage, this rank's `even_rows` of all tokens; None on the last stage. `loss`: there, the sum
    over the `valid` tokens, the same on every rank; a mean over a global batch is the caller's to divide.
    """

    hidden: Tensor | None
    loss: Tensor | None
    valid: int
    tokens: Tensor | None
    entered: Tensor
    left: Tensor
    at: Pass


class TrainingStage:
    """Layers [first, end) of `spec`; of them, the pieces of `shard`, beside the other ranks of `group`.

    `parameters` holds the pieces under the names of `plait.spec.tensors`; they are copied. With `sequence` activations
    between the blocks are split along the sequence. All ranks of a group make it, and call its methods, in the same
    order with the same tokens.

    A step is: `clear`, then `forward` and `backward` of each micro-batch, then `complete`, then `update`.

    Errors: SpecError where the model has experts or latent attention, which can be planned only; WeightsError where
    tensors are missing or have another shape.
    """

    def __init__(
        self,
        spec: ModelSpec,
        first: int,
        end: int,
        parameters: Mapping[str, Tensor],
        dtype: torch.dtype,
        shard: Shard | None = None,
        group: TensorGroup | None = None,
        sequence: bool = False,
    ) -> None:
        assert 0 <= first < end <= spec.layers, f"layers [{first}, {end}) of {spec.layers}"
        require_runnable(spec)
        shard, group = whole_shard(spec) if shard is None else shard, Alone() if group is None else group
        assert (shard.index, shard.size) == (group.index, group.size), "the shard is another rank's"
        self.spec, self.first, self.end, self.dtype = spec, first, end, dtype
        self._group, self._sequence = group, sequence and group.size > 1
        self._parameters = held = Parameters(spec, first, end, parameters, dtype, shard)
        self._embedding = self._head = None
        if first == 0:
            self._embedding = Embedding(held["embed.weight"], held.get("positions.weight"), shard.vocab)
        self._layers = tuple(TrainingLayer(spec, held, layer, shard, group) for layer in range(first, end))
        if end == spec.layers:
            self._norm = make_norm(spec, held["norm.weight"], held.get("norm.bias"))
            self._head = Head(held["embed.weight" if spec.tied else "head.weight"], shard.vocab)
        self._partial = Partial(spec, held, shard, group, self._sequence)
        self._rotations: Tensor | None = None

    # --- a micro-batch ----------------------------------------------------------------------------------

    def forward(
        self,
        inputs: Tensor,
        targets: Tensor | None = None,
        shape: tuple[int, int] | None = None,
        *,
        later: bool = False,
    ) -> Passed:
        """One micro-batch through the stage.

        `inputs`: token ids int64 [batch, length] on the first stage; elsewhere `Passed.hidden` of the stage before, and
        `shape` says (batch, length). `targets`: on the last stage, int64 [batch, length]; `IGNORED` does not count.
        `later`: products for weights wait for `weigh`.
        """
        batch, length = inputs.shape if self._embedding is not None else shape or (0, 0)
        assert batch * length > 0, "a micro-batch of no tokens, or of unknown shape"
        assert (targets is None) == (self._head is None), "targets are for the last stage, and it needs them"
        at = Pass(Exchange(self._group, self._sequence, batch * length), Products(later))
        with torch.no_grad():
            entered = self._enter(inputs, at).requires_grad_()
            sequences = self._sequences(batch, length, entered)
        with torch.enable_grad():
            x = entered
            for layer in self._layers:
                x = layer(x, sequences, at)
            if self._head is not None and targets is not None:
                x = self._head(self._norm(x), targets.flatten(), at)
        tokens = inputs if self._embedding is not None else None
        if targets is None:
            return Passed(self._leave(x.detach(), at), None, 0, tokens, entered, x, at)
        valid = int((targets != IGNORED).sum())
        return Passed(None, x.detach(), valid, tokens, entered, x, at)

    def backward(self, passed: Passed, gradient: Tensor | float) -> Tensor | None:
        """Add the micro-batch's gradients. A micro-batch comes back once.

        `gradient`: on the last stage what the summed loss is multiplied by (1 ÷ valid tokens of the global batch);
        elsewhere what `backward` of the next stage returned. Returns the gradient of the inputs; None on the first.
        """
        if isinstance(gradient, Tensor):
            given = gradient if self._sequence else passed.at.exchange.gathered(gradient)
        else:
            given = torch.full_like(passed.left, gradient)
        (inputs,) = torch.autograd.grad(passed.left, passed.entered, given)
        if self._embedding is None or passed.tokens is None:
            return self._leave(inputs, passed.at)
        self._embedding.backward(inputs, passed.tokens, passed.at.exchange)
        return None

    def weigh(self, passed: Passed) -> None:
        """Add the products for weights that `forward(…, later=True)` left waiting, after `backward`."""
        passed.at.products.run()

    def _enter(self, inputs: Tensor, at: Pass) -> Tensor:
        if self._embedding is not None:
            return self._embedding.forward(inputs, at.exchange)
        x = inputs.to(self.dtype)
        return x.detach() if self._sequence else at.exchange.gathered(x).detach()

    def _leave(self, x: Tensor, at: Pass) -> Tensor:
        """This rank's rows."""
        return x if self._sequence else at.exchange.mine(x)

    def _sequences(self, batch: int, length: int, like: Tensor) -> Sequences:
        windows = set(self.spec.windows[self.first : self.end])
        masks = {window: window_mask(length, window, like) for window in windows}
        return Sequences(batch, length, self._rotation(length, like), masks)

    def _rotation(self, length: int, like: Tensor) -> Tensor | None:
        rope = self.spec.rope
        if rope is None:
            return None
        if self._rotations is None or len(self._rotations) < length:
            factors = rotations(rope, self.spec.head_dim, length, self.dtype)[:, : rope.dims // 2]
            self._rotations = factors.unsqueeze(1).to(like.device)  # [length, 1, rotated dims / 2]
        return self._rotations[:length]

    # --- weights ----------------------------------------------------------------------------------------

    @property
    def weights(self) -> dict[str, Tensor]:
        """This rank's pieces by name; views, not copies."""
        return {name: self._parameters.weight(name) for name in self._parameters.names}

    @property
    def gradients(self) -> dict[str, Tensor]:
        """Their gradients; views. They are whole after `complete`."""
        return {name: self._parameters.gradient(name) for name in self._parameters.names}

    def clear(self) -> None:
        """Forget all gradients: what is added next overwrites them."""
        self._parameters.clear()

    def complete(self) -> None:
        """Sum over the group what each rank has computed a part of, once a step. Copies are then equal to the bit."""
        self._partial.complete()

    def update(self, rate: float) -> None:
        """weights −= rate × gradients."""
        self._parameters.weights.add_(self._parameters.gradients, alpha=-rate)
