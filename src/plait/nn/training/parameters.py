"""The weights of a stage, their gradients and masters: one storage each, of which every named piece is a view.

Gradients and masters are float32 where weights are narrower: products of many micro-batches add up there, and small
updates are not lost. What is frozen has a storage of its own, and no gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from plait.errors import WeightsError
from plait.nn.training.options import StageOptions
from plait.plans.storage import Block, make_storage, owned_ranges
from plait.spec.model import ModelSpec
from plait.spec.shards import Piece, Shard, shard_tensors


class Parameter:
    """A weight and its gradient, which is empty until something is added; then what it held before is overwritten.

    Without a gradient it is frozen: what is added is dropped, and callers need not compute it.
    """

    def __init__(self, weight: Tensor, gradient: Tensor | None) -> None:
        self.weight, self._gradient, self._empty = weight, gradient, True

    @property
    def learns(self) -> bool:
        """Whether anything may be added."""
        return self._gradient is not None

    def clear(self) -> None:
        """Forget the gradient."""
        self._empty = True

    def filled(self) -> Tensor:
        """The gradient, zeros where nothing was added. Only of what learns."""
        assert self._gradient is not None, "frozen"
        if self._empty:
            self._gradient.zero_()
            self._empty = False
        return self._gradient

    def add(self, gradient: Tensor) -> None:
        """Add a gradient of the same shape, of any dtype."""
        if self._gradient is None:
            return
        if self._empty:
            self._gradient.copy_(gradient)
            self._empty = False
        else:
            self._gradient.add_(gradient)

    def add_product(self, gradient: Tensor, inputs: Tensor, scale: float = 1.0) -> None:
        """Add scale · gradientᵀ · inputs: gradient [tokens, out] of a product's outputs, its inputs [tokens, in]."""
        held = self._gradient
        if held is None:
            return
        if held.dtype == inputs.dtype:
            held.addmm_(gradient.t(), inputs, beta=0.0 if self._empty else 1.0, alpha=scale)
            self._empty = False
        else:  # torch cannot add a narrow product to a wide sum at once
            self.filled().add_(torch.mm(gradient.t(), inputs), alpha=scale)


class Joined:
    """Parameters used as one, of which some are frozen. Like `Parameter`; every use of the weight copies it."""

    def __init__(self, parts: tuple[Parameter, ...]) -> None:
        self._parts = parts
        self._rows = [len(part.weight) for part in parts]
        self.learns = True

    @property
    def weight(self) -> Tensor:
        """All rows."""
        return torch.cat([part.weight for part in self._parts])

    def add(self, gradient: Tensor) -> None:
        """Add to the rows that learn."""
        for part, rows in zip(self._parts, torch.split(gradient, self._rows), strict=True):
            part.add(rows)

    def add_product(self, gradient: Tensor, inputs: Tensor, scale: float = 1.0) -> None:
        """Add scale · gradientᵀ · inputs to the rows that learn."""
        for part, columns in zip(self._parts, torch.split(gradient, self._rows, dim=1), strict=True):
            part.add_product(columns, inputs, scale)


Weight = Parameter | Joined


class Flat:
    """All that learns, one after another. `masters` are the `weights` themselves, unless those are narrower."""

    def __init__(self, items: int, dtype: torch.dtype, device: torch.device) -> None:
        wide = torch.promote_types(dtype, torch.float32)
        self.weights = torch.zeros(items, dtype=dtype, device=device)
        self.gradients = torch.zeros(items, dtype=wide, device=device)
        self.masters = self.weights if wide == dtype else torch.zeros_like(self.gradients)

    def publish(self, first: int, end: int) -> None:
        """Round masters [first, end) into weights, where they are two."""
        if self.masters is not self.weights:
            self.weights[first:end].copy_(self.masters[first:end])


class Parameters:
    """A rank's pieces of the layers [first, end); `tensors` are copied, into masters in full.

    Errors: WeightsError where tensors are missing, too many, or of another shape.
    """

    def __init__(
        self,
        spec: ModelSpec,
        first: int,
        end: int,
        tensors: Mapping[str, Tensor],
        dtype: torch.dtype,
        shard: Shard,
        options: StageOptions,
    ) -> None:
        pieces = shard_tensors(spec, first, end, shard)
        _check(tensors, pieces)
        self.storage = make_storage(spec, (first, end), pieces, shard, options.parts, options.frozen)
        self.flat = Flat(self.storage.items, dtype, next(iter(tensors.values())).device)
        self.places: dict[str, tuple[int, int]] = {}
        self._weights = dict.fromkeys(pieces, self.flat.weights)  # in the order of `plait.spec.tensors`
        self._shapes = {name: piece.shape for name, piece in pieces.items()}
        self._parts: list[list[Parameter]] = [[] for _ in range(options.parts + 1)]
        found: dict[str, list[Parameter]] = {}
        for block in self.storage.blocks:
            made = self._learning(block, tensors) if block.learns else self._frozen(block, tensors, dtype)
            found.setdefault(block.key, []).append(made)
        self._blocks = {key: made[0] if len(made) == 1 else Joined(tuple(made)) for key, made in found.items()}
        self.owned = owned_ranges(spec, self.places, pieces, shard)

    def _learning(self, block: Block, tensors: Mapping[str, Tensor]) -> Parameter:
        start, end = block.first, block.first + block.items
        for name in block.names:
            stop = start + tensors[name].numel()
            self.flat.masters[start:stop].copy_(tensors[name].flatten())
            self._weights[name] = self.flat.weights[start:stop].view(self._shapes[name])
            self.places[name], start = (start, stop), stop
        self.flat.publish(block.first, end)
        views = (held[block.first : end].view(block.shape) for held in (self.flat.weights, self.flat.gradients))
        made = Parameter(*views)
        self._parts[block.part].append(made)
        return made

    def _frozen(self, block: Block, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Parameter:
        weight = torch.cat([tensors[name] for name in block.names]).to(dtype)
        rows = [self._shapes[name][0] for name in block.names]
        self._weights.update(zip(block.names, torch.split(weight, rows), strict=True))
        return Parameter(weight, None)

    def __getitem__(self, key: str) -> Weight:
        """A block: a piece by its name, or `qkv` and `gate_up` of a layer."""
        return self._blocks[key]

    def get(self, key: str) -> Weight | None:
        """A block, where the model has it."""
        return self._blocks.get(key)

    @property
    def weights(self) -> dict[str, Tensor]:
        """All pieces, as views."""
        return dict(self._weights)

    @property
    def gradients(self) -> dict[str, Tensor]:
        """Of what learns, as views; see `fill`."""
        return {name: self.gradient(name) for name in self._weights if name in self.places}

    def gradient(self, name: str) -> Tensor:
        """Of one piece that learns, as a view."""
        first, end = self.places[name]
        return self.flat.gradients[first:end].view(self._shapes[name])

    def clear(self) -> None:
        """Forget all gradients."""
        for parameter in self._learners():
            parameter.clear()

    def fill(self, part: int) -> None:
        """Gradients of a part that nothing was added to become zeros; with the last part, those of the tied block."""
        last = part == len(self.storage.parts) - 1
        for parameter in (*self._parts[part], *(self._parts[-1] if last else ())):
            parameter.filled()

    def _learners(self) -> Iterator[Parameter]:
        for part in self._parts:
            yield from part


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
