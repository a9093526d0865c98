"""A stage that learns: forward, loss, backward and update of some layers, alone or as one rank of a tensor group."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from plait.nn.group import Alone, TensorGroup
from plait.nn.rope import rotations
from plait.nn.training.attention import Sequences, window_mask
from plait.nn.training.collectives import Exchange
from plait.nn.training.dropout import Dropout
from plait.nn.training.embedding import Embedding
from plait.nn.training.layer import TrainingLayer
from plait.nn.training.linear import Pass, Products
from plait.nn.training.loss import IGNORED, Head
from plait.nn.training.norms import make_norm
from plait.nn.training.options import Place, StageOptions
from plait.nn.training.parameters import Flat, Parameter, Parameters
from plait.nn.training.partial import Partial
from plait.nn.training.passed import Passed, Segment
from plait.plans.storage import layer_runs
from plait.spec.checked import require_runnable
from plait.spec.model import ModelSpec
from plait.spec.shards import Shard, whole_shard


class TrainingStage:
    """Layers [first, end) of `spec`; of them, the pieces of `shard`, beside the other ranks of `group`.

    `parameters` holds the pieces under the names of `plait.spec.tensors`; they are copied. With `sequence` activations
    between the blocks are split along the sequence. All ranks of a group make it, and call its methods, in the same
    order with the same tokens.

    A step is: `clear`, then `forward` and `backward` of each micro-batch, then `complete`, then `update`. With
    `options.parts` above 1 a backward, and `complete`, may be done part by part.

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
        options: StageOptions = StageOptions(),  # noqa: B008 (frozen)
    ) -> None:
        assert 0 <= first < end <= spec.layers, f"layers [{first}, {end}) of {spec.layers}"
        require_runnable(spec)
        shard, group = whole_shard(spec) if shard is None else shard, Alone() if group is None else group
        assert (shard.index, shard.size) == (group.index, group.size), "the shard is another rank's"
        self.spec, self.first, self.end, self.dtype, self.options = spec, first, end, dtype, options
        self._group, self._sequence = group, sequence and group.size > 1
        self._parameters = held = Parameters(spec, first, end, parameters, dtype, shard, options)
        self._embedding = self._head = None
        self._embedding_dropout = Dropout(options.dropout, options.seed, "embed")
        if first == 0:
            weight, positions = held["embed.weight"], held.get("positions.weight")
            assert isinstance(weight, Parameter)
            assert positions is None or isinstance(positions, Parameter)
            self._embedding = Embedding(weight, positions, shard.vocab)
        layers = [TrainingLayer(spec, held, layer, shard, group, options) for layer in range(first, end)]
        self._runs = [layers[start - first : stop - first] for start, stop in layer_runs(first, end, options.parts)]
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
        place: Place = Place(),  # noqa: B008 (frozen)
    ) -> Passed:
        """One micro-batch through the stage.

        `inputs`: token ids int64 [batch, length] on the first stage; elsewhere `Passed.hidden` of the stage before, and
        `shape` says (batch, length). `targets`: on the last stage, int64 [batch, length]; `IGNORED` does not count.
        `later`: products for weights wait for `weigh`. `place`: of the micro-batch, for dropout.
        """
        batch, length = inputs.shape if self._embedding is not None else shape or (0, 0)
        assert batch * length > 0, "a micro-batch of no tokens, or of unknown shape"
        assert (targets is None) == (self._head is None), "targets are for the last stage, and it needs them"
        exchange = Exchange(self._group, self._sequence, batch * length)
        again = self.options.recompute == "full"  # then what a layer keeps does not wait for its backward
        passes = [Pass(exchange, Products(later), length, place, again) for _ in self._runs]
        passed = Passed(None, None, 0, inputs if self._embedding is not None else None)
        with torch.no_grad():
            x = self._enter(inputs, passes[-1], passed)
            sequences = self._sequences(batch, length, x)
        for part in reversed(range(len(self._runs))):
            entered = x.detach().requires_grad_()
            with torch.enable_grad():
                x = self._run(part, entered, targets, sequences, passes[part])
            passed.segments.insert(0, Segment(entered, x, passes[part]))
        if targets is None:
            passed.hidden = self._leave(x.detach(), passes[0])
        else:
            passed.loss, passed.valid = x.detach(), int((targets != IGNORED).sum())
        return passed

    def _run(self, part: int, x: Tensor, targets: Tensor | None, sequences: Sequences, at: Pass) -> Tensor:
        """One part's layers; behind the last ones the loss, where `targets` are there."""
        for layer in self._runs[part]:
            x = layer(x, sequences, at)
        if part or self._head is None or targets is None:
            return x
        return self._head(self._norm(x), targets.flatten(), at)

    def backward(self, passed: Passed, gradient: Tensor | float | None, part: int | None = None) -> Tensor | None:
        """Add the micro-batch's gradients, of all layers or of one part. A micro-batch comes back once.

        `gradient`: on the last stage what the summed loss is multiplied by (1 ÷ valid tokens of the global batch);
        elsewhere what `backward` of the next stage returned. Parts come in order, from 0; only that one needs it.
        Returns the gradient of the inputs, from the last part; None on the first stage.
        """
        parts = range(len(self._runs)) if part is None else (part,)
        if parts[0] == 0:
            passed.gradient = self._given(gradient, passed)
        for one in parts:
            assert passed.gradient is not None, "parts of a backward come in order"
            passed.gradient = passed.segments[one].backward(passed.gradient)
        if parts[-1] + 1 < len(self._runs):
            return None
        inputs, passed.gradient = passed.gradient, None
        assert inputs is not None
        return self._left(inputs, passed)

    def _given(self, gradient: Tensor | float | None, passed: Passed) -> Tensor:
        """The gradient of what the stage gave, as it lies between the blocks."""
        assert gradient is not None, "the backward begins with a gradient"
        if passed.loss is not None:
            return torch.as_tensor(gradient, dtype=passed.loss.dtype, device=passed.loss.device)
        assert isinstance(gradient, Tensor)
        return gradient if self._sequence else passed.segments[0].at.exchange.gathered(gradient)

    def _left(self, inputs: Tensor, passed: Passed) -> Tensor | None:
        """Of the gradient of the first layer's inputs, what the stage before gets; or the embedding learns of it."""
        at = passed.segments[-1].at
        if self._embedding is None or passed.tokens is None:
            return self._leave(inputs, at)
        if passed.mask is not None:
            inputs, passed.mask = self._embedding_dropout.scaled(inputs, passed.mask), None
        self._embedding.backward(inputs, passed.tokens, at.exchange)
        return None

    def weigh(self, passed: Passed, part: int | None = None) -> None:
        """Add the products for weights that `forward(…, later=True)` left waiting, after `backward`; or a part's."""
        for segment in passed.segments if part is None else (passed.segments[part],):
            segment.at.products.run()

    def _enter(self, inputs: Tensor, at: Pass, passed: Passed) -> Tensor:
        if self._embedding is not None:
            x = self._embedding.forward(inputs, at.exchange)
            if not self._embedding_dropout.rate:
                return x
            passed.mask = self._embedding_dropout.mask(x, at)
            return self._embedding_dropout.scaled(x, passed.mask)
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
        return self._parameters.weights

    @property
    def gradients(self) -> dict[str, Tensor]:
        """Their gradients, but of what is frozen; views. They are whole after `complete`."""
        return self._parameters.gradients

    @property
    def flat(self) -> Flat:
        """All that learns, one after another; blocks are aligned, and what lies between them is zeros."""
        return self._parameters.flat

    @property
    def places(self) -> Mapping[str, tuple[int, int]]:
        """Where in `flat` each tensor that learns lies, [first, end)."""
        return self._parameters.places

    @property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """Where in `flat` each part of the backward adds its gradients, but to a `tied` embedding, [first, end)."""
        return tuple((part.first, part.end) for part in self._parameters.storage.parts)

    @property
    def tied(self) -> tuple[int, int] | None:
        """Where in `flat` the embedding lies, if it is tied to the head of another stage; behind all parts."""
        return self._parameters.storage.tied

    @property
    def owned(self) -> tuple[tuple[int, int], ...]:
        """The ranges of `flat` that this rank counts: together the group's are every parameter once.

        A tied embedding is among them on both its stages.
        """
        return self._parameters.owned

    def clear(self) -> None:
        """Forget all gradients: what is added next overwrites them."""
        self._parameters.clear()

    def complete(self, part: int | None = None) -> None:
        """Sum over the group what each rank has computed a part of, once a step. Copies are then equal to the bit.

        `part`: of that one's tensors only, after its last backward.
        """
        for one in range(len(self._runs)) if part is None else (part,):
            self._partial.complete(one)

    def update(self, rate: float) -> None:
        """weights −= rate × gradients."""
        self.flat.masters.add_(self.flat.gradients, alpha=-rate)
        self.flat.publish(0, len(self.flat.masters))
