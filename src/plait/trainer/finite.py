"""A guard: where numbers stopped being numbers. Every rank says what it saw, and all stop with the same error."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from plait.errors import RunError
from plait.nn.training.passed import Passed
from plait.plans.layout import Layout
from plait.spec.model import ModelSpec
from plait.spec.tensors import stage_tensors
from plait.trainer.held import HeldStage, overlaps


class Where(IntEnum):
    """What was the first to be infinite or not a number, in the order in which a step comes to it."""

    NOWHERE = 0
    WEIGHT = 1
    ACTIVATIONS = 2
    LOSS = 3
    GRADIENT = 4
    NORM = 5


class Trouble(NamedTuple):
    """What a rank saw. `tensor`: its place among the names of the stage; `value`: nan, inf or -inf."""

    where: Where = Where.NOWHERE
    stage: int = 0
    micro_batch: int = 0
    tensor: int = 0
    value: float = 0.0

    @staticmethod
    def of(numbers: Sequence[float]) -> Trouble:
        """As a rank has told it."""
        where, stage, micro_batch, tensor, value = numbers
        return Trouble(Where(int(where)), int(stage), int(micro_batch), int(tensor), value)


NOTHING = Trouble()


class Watch:
    """What leaves the stages of a rank in one step's forwards."""

    def __init__(self) -> None:
        self._left: dict[tuple[int, int], Tensor] = {}

    def see(self, stage: int, micro_batch: int, passed: Passed) -> None:
        """A micro-batch has gone through; what is kept is its loss, or two numbers."""
        if passed.loss is not None:
            self._left[stage, micro_batch] = passed.loss
        elif passed.hidden is not None and passed.hidden.numel():
            self._left[stage, micro_batch] = torch.stack(torch.aminmax(passed.hidden))

    def trouble(self, held: Sequence[HeldStage], spec: ModelSpec) -> Trouble:
        """The first, by stage and then micro-batch. Where a weight of that stage is to blame it is named."""
        for (number, micro_batch), left in sorted(self._left.items()):
            value = _not_finite(left)
            if value is None:
                continue
            one = next(one for one in held if one.number == number)
            weights = one.stage.weights
            names = tuple(stage_tensors(spec, one.stage.first, one.stage.end))
            for at, name in enumerate(names):
                bad = _not_finite(weights[name])
                if bad is not None:
                    return Trouble(Where.WEIGHT, number, micro_batch, at, bad)
            where = Where.LOSS if one.stage.end == spec.layers else Where.ACTIVATIONS
            return Trouble(where, number, micro_batch, 0, value)
        return NOTHING


def gradient_trouble(held: HeldStage, spec: ModelSpec, squares: float) -> Trouble:
    """Of a stage whose gradients' squares are not finite: the first tensor of those that this rank counts."""
    gradients = held.stage.flat.gradients
    for at, name in enumerate(stage_tensors(spec, held.stage.first, held.stage.end)):
        place = held.stage.places.get(name)
        for first, end in overlaps([place] if place else [], held.counted):
            value = _not_finite(gradients[first:end])
            if value is not None:
                return Trouble(Where.GRADIENT, held.number, 0, at, value)
    return Trouble(Where.NORM, held.number, 0, 0, squares)


def require_finite(found: Iterable[Trouble], spec: ModelSpec, layout: Layout, step: int) -> None:
    """Of what all ranks saw, in the order of ranks. Errors: RunError about where it began, the same on all ranks.

    Forwards go through stages in order, and backwards back: the first stage of a forward, or else the last one of a
    backward, is where it began.
    """
    troubles = [(rank, trouble) for rank, trouble in enumerate(found) if trouble.where is not Where.NOWHERE]
    if not troubles:
        return
    rank, trouble = min(troubles, key=lambda one: (*_order(one[1]), one[0]))
    raise RunError(
        f"step {step}: {_words(trouble, spec, layout, rank)}. All ranks stopped, and no weight was updated in this "
        "step: a lower learning rate, a longer warm-up or a clip of the gradients may help"
    )


def _order(trouble: Trouble) -> Iterator[int]:
    backward = trouble.where in (Where.GRADIENT, Where.NORM)
    yield backward
    yield -trouble.stage if backward else trouble.stage
    yield trouble.where
    yield trouble.micro_batch


def _words(trouble: Trouble, spec: ModelSpec, layout: Layout, rank: int) -> str:
    value, at = f"{trouble.value:g}", f"stage {trouble.stage} (rank {rank})"
    name = tuple(stage_tensors(spec, *layout.stages[trouble.stage].layers))[trouble.tensor]
    match trouble.where:
        case Where.WEIGHT:
            return f"the weight {name} of {at} holds {value} from before"
        case Where.ACTIVATIONS:
            return f"what {at} made of micro-batch {trouble.micro_batch} holds {value}"
        case Where.LOSS:
            return f"the loss of micro-batch {trouble.micro_batch} on {at} is {value}"
        case Where.GRADIENT:
            return f"the gradient of {name} on {at} holds {value}"
        case _:
            return f"the squares of the gradients on {at} add up to {value}, though each of them is finite"


def _not_finite(tensor: Tensor) -> float | None:
    """nan, inf or -inf where the tensor holds one."""
    if not tensor.numel():
        return None
    low, high = (float(one) for one in torch.aminmax(tensor))
    return next((one for one in (low, high) if not math.isfinite(one)), None)
