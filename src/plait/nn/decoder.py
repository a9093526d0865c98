"""A stage of a decoder: some layers, the embedding on the first stage, the LM head on the last."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding

from plait.errors import WeightsError
from plait.nn.attention import Seen, seen, spans
from plait.nn.batch import Batch
from plait.nn.cache import KVCache
from plait.nn.ends import own_rows, part_of_embedding
from plait.nn.group import TensorGroup
from plait.nn.layer import Layer, Places, Step, Wanted, Weights
from plait.nn.linear import make_linear, packs
from plait.nn.norms import make_norm
from plait.nn.rope import rotations
from plait.nn.sharded import ShardedLayer, SplitLayer
from plait.plans.round import Row
from plait.spec.checked import require_runnable
from plait.spec.model import ModelSpec
from plait.spec.shards import Shard, even_rows, shard_tensors, whole_shard


class StageModel:
    """Layers [first, end) of `spec`.

    `tensors` holds the stage's weights under the names of `plait.spec.tensors`; they are taken out of it and laid out
    anew, one layer at a time. `rows` is how many rows a decoding micro-batch usually has: it decides how float32
    weights are laid out, and with that the last bits, never more.

    With `shard` and `group` it is one rank's part of the stage, and `tensors` are the pieces that the shard names. With
    `sequence` each rank has its rows of the activations between the blocks.

    Raises:
        SpecError: the model has experts or latent attention, which can be planned only.
        WeightsError: tensors are missing or have another shape.
    """

    def __init__(
        self,
        spec: ModelSpec,
        first: int,
        end: int,
        tensors: dict[str, Tensor],
        dtype: torch.dtype,
        rows: int = 1,
        shard: Shard | None = None,
        group: TensorGroup | None = None,
        sequence: bool = False,
    ) -> None:
        assert 0 <= first < end <= spec.layers, f"layers [{first}, {end}) of {spec.layers}"
        require_runnable(spec)
        shard = whole_shard(spec) if shard is None else shard
        self._group = group if shard.size > 1 else None
        self._split = sequence and self._group is not None
        _check_group(shard, group)
        _check(tensors, {name: piece.shape for name, piece in shard_tensors(spec, first, end, shard).items()})
        self.shard = shard
        self.spec, self.first, self.end, self.dtype = spec, first, end, dtype
        self.device = next(iter(tensors.values())).device
        packed = packs(dtype, self.device, rows)
        self.is_last = end == spec.layers
        self._windows = tuple(spec.windows[first:end])
        self._windows_once = set(self._windows)
        self._rotations: Tensor | None = None
        with torch.no_grad():
            self._layers = tuple(
                self._make_layer(Weights(tensors, layer, dtype), layer, packed) for layer in range(first, end)
            )
            self._load_ends(tensors, packed)  # last: a tied embedding is copied into the head

    def _make_layer(self, weights: Weights, number: int, packed: bool) -> Layer:
        place = number - self.first
        if self._group is None:
            return Layer(self.spec, self.shard, weights, number, place, packed)
        kind = SplitLayer if self._split else ShardedLayer
        return kind(self.spec, self.shard, weights, number, place, packed, self._group)

    def _load_ends(self, tensors: dict[str, Tensor], packed: bool) -> None:
        spec, dtype = self.spec, self.dtype
        embed, head = tensors.pop("embed.weight", None), tensors.pop("head.weight", None)
        places = tensors.pop("positions.weight", None)
        self._embed = embed.to(dtype) if embed is not None and self.first == 0 else None
        self._places = None if places is None else places.to(dtype)
        if self.is_last:
            weight, bias = tensors.pop("norm.weight"), tensors.pop("norm.bias", None)
            bias = None if bias is None else bias.to(dtype)
            self._norm = make_norm(weight.to(dtype), bias, spec.norm_eps, spec.norm == "layer")
            head = embed if spec.tied else head
            assert head is not None
            self._head = make_linear(head.to(dtype), None, packed)

    @torch.inference_mode()
    def forward(self, batch: Batch, inputs: Tensor, cache: KVCache) -> Tensor:
        """One pass of `batch` through the stage.

        `inputs` are token ids int64 [T] on the first stage, hidden states [T, hidden] elsewhere. Returns hidden states
        [T, hidden], or on the last stage float32 logits [sampled rows, vocab]. Hidden states that come and go are a
        rank's rows of them (`even_rows`), logits those of its rows of the vocabulary.
        """
        if self._group is not None:
            return self._forward_shared(batch, inputs, cache, self._group)
        assert inputs.shape[0] == batch.tokens, f"{inputs.shape[0]} inputs for {batch.tokens} tokens"
        assert batch.longest <= cache.context, f"{batch.longest} positions in a cache of {cache.context}"
        x = self._enter(inputs, batch)
        step = self._step(batch, cache, x)
        for layer in self._layers[:-1]:
            x = layer(x, step)
        return self._leave(x, step, batch, cache)

    def _enter(self, inputs: Tensor, batch: Batch) -> Tensor:
        if self._embed is None:
            return inputs.to(self.dtype)
        x = embedding(inputs, self._embed)  # [T, hidden]
        return x if self._places is None else x + embedding(batch.positions, self._places)

    def _forward_shared(self, batch: Batch, inputs: Tensor, cache: KVCache, group: TensorGroup) -> Tensor:
        """`forward` of one rank of a tensor group."""
        sizes = even_rows(batch.tokens, group.size)
        wanted = batch.tokens if self._embed is not None else sizes[group.index]
        assert inputs.shape[0] == wanted, f"{inputs.shape[0]} inputs for {wanted} tokens"
        assert batch.longest <= cache.context, f"{batch.longest} positions in a cache of {cache.context}"
        x = self._enter_shared(inputs, batch, group, sizes)
        step = self._step(batch, cache, x, sizes)
        for layer in self._layers[:-1]:
            x = layer(x, step)
        x = self._leave(x, step, batch, cache)
        return x if self.is_last or self._split else own_rows(x, sizes, group.index)

    def _enter_shared(self, inputs: Tensor, batch: Batch, group: TensorGroup, sizes: tuple[int, ...]) -> Tensor:
        """All activations on every rank, or with `sequence` each rank's rows."""
        if self._embed is None:
            x = inputs.to(self.dtype)
            return x if self._split else group.all_gather(x, sizes)
        x = part_of_embedding(inputs, self._embed, self.shard.vocab)
        x = group.reduce_scatter(x, sizes) if self._split else group.all_reduce(x)
        if self._places is None:
            return x
        positions = own_rows(batch.positions, sizes, group.index) if self._split else batch.positions
        return x + embedding(positions, self._places)

    def _leave(self, x: Tensor, step: Step, batch: Batch, cache: KVCache) -> Tensor:
        """The last layer; on the last stage for sampled tokens alone, then the head."""
        layer = self._layers[-1]
        if not self.is_last:
            return layer(x, step)
        if batch.sampled is not None and len(batch.sampled) == 0:
            layer.store(x, step)
            return torch.empty(0, self.shard.vocab.size, dtype=torch.float32, device=x.device)
        wanted = self._wanted(batch, cache, x)
        x = self._norm(layer.last(x, step, wanted) if isinstance(layer, SplitLayer) else layer(x, step, wanted))
        logits = self._head(x)  # [sampled rows, vocab]
        return logits if self.dtype == torch.float64 else logits.float()

    def _wanted(self, batch: Batch, cache: KVCache, x: Tensor) -> Wanted | None:
        if batch.sampled is None:
            return None
        return Wanted(batch.sampled, self._seen(batch.ends, self._windows[-1], cache, x))

    def _step(self, batch: Batch, cache: KVCache, x: Tensor, sizes: tuple[int, ...] = ()) -> Step:
        return Step(
            rotation=self._rotation(batch, cache.context),
            seen={window: self._seen(batch.rows, window, cache, x) for window in self._windows_once},
            places=Places(batch.slots, batch.positions, cache.layers, _one_row(batch, cache)),
            sizes=sizes,
        )

    def _seen(self, rows: tuple[Row, ...], window: int | None, cache: KVCache, x: Tensor) -> list[Seen]:
        return seen(spans(rows, window, cache.context, x), cache.data)

    def _rotation(self, batch: Batch, context: int) -> Tensor | None:
        """The rotary factors of the batch's positions, complex [T, 1, head_dim / 2]."""
        rope = self.spec.rope
        if rope is None:
            return None
        if self._rotations is None or len(self._rotations) < context:
            self._rotations = rotations(rope, self.spec.head_dim, context, self.dtype).to(self.device)
        return self._rotations[batch.positions].unsqueeze(1)


def _one_row(batch: Batch, cache: KVCache) -> tuple[Tensor, ...] | None:
    """Where the only row of a batch puts its keys and values in every layer, [T, 2 × kv_heads, head_dim]."""
    if len(batch.rows) > 1:
        return None
    row = batch.rows[0]
    return cache.data[:, row.slot, :, row.start : row.start + row.length].transpose(1, 2).unbind(0)


def _check_group(shard: Shard, group: TensorGroup | None) -> None:
    """A shard of several needs the group that it is of."""
    place = None if group is None else (group.index, group.size)
    assert shard.size == 1 or place == (shard.index, shard.size), f"shard {shard.index} of {shard.size} in {place}"


def _check(tensors: dict[str, Tensor], shapes: dict[str, tuple[int, ...]]) -> None:
    wrong = [f"{name} is missing" for name in shapes if name not in tensors]
    wrong += [
        f"{name} is {list(tensors[name].shape)}, not {list(shape)}"
        for name, shape in shapes.items()
        if name in tensors and tuple(tensors[name].shape) != shape
    ]
    wrong += [f"{name} is not a tensor of this stage" for name in tensors if name not in shapes]
    if wrong:
        raise WeightsError("the weights do not fit the model:\n  " + "\n  ".join(wrong))
