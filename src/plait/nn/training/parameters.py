"""The weights of a stage and their gradients: one storage each, of which every named piece is a view.

Queries, keys and values of a layer lie one after another, and so do gate and up: the stage multiplies by them at once,
while readers see the names of `plait.spec.tensors`. In front lie the pieces of which a rank may compute only a part of
the gradient, so that one sum over the group completes them (`partial.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from plait.errors import WeightsError
from plait.spec.model import ModelSpec
from plait.spec.shards import Piece, Shard, shard_tensors

_FUSED: Mapping[str, str] = MappingProxyType({"q": "qkv", "k": "qkv", "v": "qkv", "gate": "gate_up", "up": "gate_up"})
_ALIGNED = 16
"""Items that blocks begin at a multiple of: a cache line of float32."""


class Parameter:
    """A weight and its gradient, which is empty until something is added; then what it held before is overwritten."""

    def __init__(self, weight: Tensor, gradient: Tensor) -> None:
        self.weight, self.gradient, self._empty = weight, gradient, True

    def clear(self) -> None:
        """Forget the gradient."""
        self._empty = True

    def filled(self) -> Tensor:
        """The gradient, zeros where nothing was added."""
        if self._empty:
            self.gradient.zero_()
            self._empty = False
        return self.gradient

    def add(self, gradient: Tensor) -> None:
        """Add a gradient of the same shape."""
        if self._empty:
            self.gradient.copy_(gradient)
            self._empty = False
        else:
            self.gradient.add_(gradient)

    def add_product(self, gradient: Tensor, inputs: Tensor, scale: float = 1.0) -> None:
        """Add scale · gradientᵀ · inputs: gradient [tokens, out] of a product's outputs, its inputs [tokens, in]."""
        self.gradient.addmm_(gradient.t(), inputs, beta=0.0 if self._empty else 1.0, alpha=scale)
        self._empty = False


class _Block(NamedTuple):
    """Pieces that lie one after another and are used as one."""

    key: str
    names: tuple[str, ...]
    shape: tuple[int, ...]


class Parameters:
    """A rank's pieces of the layers [first, end); `tensors` are copied.

    `weights` and `gradients` are flat. Of the gradients, the first `by_head` items belong to norms of single heads, and
    with those the first `whole` to all that no rank has a piece of, but learned positions.

    Errors: WeightsError where tensors are missing, too many, or of another shape.
    """

    def __init__(
        self, spec: ModelSpec, first: int, end: int, tensors: Mapping[str, Tensor], dtype: torch.dtype, shard: Shard
    ) -> None:
        pieces = shard_tensors(spec, first, end, shard)
        _check(tensors, pieces)
        kinds = [_kind(spec, name, piece, shard) for name, piece in pieces.items()]
        blocks = [
            _blocks(name for name, kind in zip(pieces, kinds, strict=True) if kind == wanted) for wanted in range(3)
        ]
        self._blocks: dict[str, Parameter] = {}
        self._places: dict[str, tuple[int, tuple[int, ...]]] = {}
        starts, at = [], 0
        for block in (_Block(key, names, _shape(pieces, names)) for kind in blocks for key, names in kind.items()):
            starts.append((block, at))
            at += -(-math.prod(block.shape) // _ALIGNED) * _ALIGNED
        device = next(iter(tensors.values())).device
        self.weights = torch.zeros(at, dtype=dtype, device=device)
        self.gradients = torch.zeros(at, dtype=dtype, device=device)
        self.by_head = _end_of(starts, blocks[0], at)
        self.whole = _end_of(starts, {**blocks[0], **blocks[1]}, at)
        for block, start in starts:
            self._place(block, start, pieces, tensors)

    def _place(self, block: _Block, start: int, pieces: Mapping[str, Piece], tensors: Mapping[str, Tensor]) -> None:
        end = start + math.prod(block.shape)
        views = (flat[start:end].view(block.shape) for flat in (self.weights, self.gradients))
        self._blocks[block.key] = Parameter(*views)
        for name in block.names:
            self._places[name] = start, pieces[name].shape
            self.weight(name).copy_(tensors[name])
            start += math.prod(pieces[name].shape)

    def __getitem__(self, key: str) -> Parameter:
        """A block: a piece by its name, or `qkv` and `gate_up` of a layer."""
        return self._blocks[key]

    def get(self, key: str) -> Parameter | None:
        """A block, where the model has it."""
        return self._blocks.get(key)

    @property
    def names(self) -> tuple[str, ...]:
        """Of all pieces."""
        return tuple(self._places)

    def weight(self, name: str) -> Tensor:
        """A piece, as a view."""
        return self._view(self.weights, name)

    def gradient(self, name: str) -> Tensor:
        """The gradient of a piece, as a view; see `fill`."""
        return self._view(self.gradients, name)

    def _view(self, flat: Tensor, name: str) -> Tensor:
        start, shape = self._places[name]
        return flat[start : start + math.prod(shape)].view(shape)

    def clear(self) -> None:
        """Forget all gradients."""
        for block in self._blocks.values():
            block.clear()

    def fill(self) -> None:
        """Gradients that nothing was added to become zeros."""
        for block in self._blocks.values():
            block.filled()


def _kind(spec: ModelSpec, name: str, piece: Piece, shard: Shard) -> int:
    """0: a norm of single heads; 1: whole on every rank; 2: a piece, or learned positions."""
    if spec.qk_norm == "head" and name.endswith(("q_norm.weight", "k_norm.weight")):
        return 0
    cut = piece.axis is not None or shard.size == 1
    return 2 if cut or name == "positions.weight" else 1


def _blocks(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for name in names:
        *prefix, short, kind = name.split(".")
        key = ".".join((*prefix, _FUSED.get(short, short), kind))
        found[key] = (*found.get(key, ()), name)
    return found


def _shape(pieces: Mapping[str, Piece], names: tuple[str, ...]) -> tuple[int, ...]:
    shapes = [pieces[name].shape for name in names]
    return (sum(shape[0] for shape in shapes), *shapes[0][1:])


def _end_of(starts: list[tuple[_Block, int]], blocks: Mapping[str, object], total: int) -> int:
    return next((start for block, start in starts if block.key not in blocks), total)


def _check(tensors: Mapping[str, Tensor], pieces: Mapping[str, Piece]) -> None:
    wrong = [f"{name} is missing" for name in pieces if name not in tensors]
    wrong += [
        f"{name} is {list(tensors[name].shape)}, not {list(piece.shape)}"
        for name, piece in pieces.items()
        if name in tensors and tuple(tensors[name].shape) != piece.shape
    ]
    wrong += [f"{name} is not a tensor of this stage" for name in tensors if name not in pieces]
    if wrong:
        raise WeightsError("the weights do not fit the model:\n  " + "\n  ".join(wrong))
