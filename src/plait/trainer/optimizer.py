"""AdamW and SGD on the flat storage of a stage.

The arithmetic is torch's own, by the functions behind `torch.optim.AdamW` and `SGD`: what they update are a few long
slices, so that their fused kernels run at the speed of memory. Making the classes would import torch's compiler, which
takes seconds in every rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from plait.trainer.held import HeldStage, Span, joined, overlaps
from plait.trainer.settings import Settings


@dataclass(slots=True)
class Slices:
    """Runs of items that are updated alike: weights, gradients (both views) and what the optimizer remembers of them.

    `decay`: their weight decay. `moments`: by name, each [as many items] for every run.
    """

    decay: float
    spans: tuple[Span, ...]
    weights: list[Tensor]
    gradients: list[Tensor]
    moments: dict[str, list[Tensor]] = field(default_factory=dict)


class Rule(Protocol):
    """How slices are updated."""

    def begin(self, slices: Slices) -> None:
        """Make what is to be remembered."""

    def update(self, slices: Slices, rate: float) -> None:
        """One step."""


class AdamW:
    """Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2019), algorithm 2, as torch computes it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def begin(self, slices: Slices) -> None:
        """See `Rule`."""
        for name in ("exp_avg", "exp_avg_sq"):
            slices.moments[name] = [torch.zeros_like(weights) for weights in slices.weights]
        slices.moments["step"] = [torch.zeros((), device=weights.device) for weights in slices.weights]

    def update(self, slices: Slices, rate: float) -> None:
        """See `Rule`."""
        settings, moments = self._settings, slices.moments
        adamw(
            slices.weights,
            slices.gradients,
            moments["exp_avg"],
            moments["exp_avg_sq"],
            [],
            moments["step"],
            foreach=False,
            capturable=False,
            differentiable=False,
            fused=True,
            amsgrad=False,
            beta1=settings.beta1,
            beta2=settings.beta2,
            lr=rate,
            weight_decay=slices.decay,
            eps=settings.eps,
            maximize=False,
        )


class Sgd:
    """Stochastic gradient descent, with momentum where it is not 0, as torch computes it."""

    def __init__(self, settings: Settings) -> None:
        self._momentum = settings.momentum

    def begin(self, slices: Slices) -> None:
        """See `Rule`."""
        if self._momentum:
            slices.moments["momentum"] = [torch.zeros_like(weights) for weights in slices.weights]

    def update(self, slices: Slices, rate: float) -> None:
        """See `Rule`."""
        sgd(
            slices.weights,
            slices.gradients,
            list(slices.moments.get("momentum", [None] * len(slices.weights))),
            foreach=False,
            fused=True,
            weight_decay=slices.decay,
            momentum=self._momentum,
            lr=rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )


class StageOptimizer:
    """Updates what a rank updates of one stage. Matrices decay; norms and biases do not."""

    def __init__(self, held: HeldStage, settings: Settings) -> None:
        self._held = held
        self._rule: Rule = AdamW(settings) if settings.optimizer == "adamw" else Sgd(settings)
        flat = held.stage.flat
        self.slices = [
            Slices(
                decay,
                spans,
                [flat.masters[first:end] for first, end in spans],
                [flat.gradients[first:end] for first, end in spans],
            )
            for decay, spans in _spans(held, settings.weight_decay).items()
        ]
        for slices in self.slices:
            self._rule.begin(slices)

    def update(self, rate: float) -> None:
        """One step, from gradients to the weights that the next forward reads."""
        for slices in self.slices:
            self._rule.update(slices, rate)
            for span in slices.spans:
                self._held.stage.flat.publish(*span)

    def scale(self, coefficient: float) -> None:
        """Multiply the gradients that are about to be used."""
        for slices in self.slices:
            for gradients in slices.gradients:
                gradients.mul_(coefficient)


def _spans(held: HeldStage, weight_decay: float) -> Mapping[float, tuple[Span, ...]]:
    """By weight decay, what a rank updates, in as few runs as can be."""
    updated = joined(held.updated)
    decays: dict[float, list[Span]] = {}
    for decay, span in _decays(held, weight_decay):
        decays.setdefault(decay, []).append(span)
    found = {decay: tuple(overlaps(joined(spans), updated)) for decay, spans in decays.items()}
    return {decay: spans for decay, spans in found.items() if spans}


def _decays(held: HeldStage, weight_decay: float) -> Iterator[tuple[float, Span]]:
    """Weight decay of the whole storage: a tensor's goes on over the zeros behind it, to where the next one begins."""
    stage = held.stage
    places = sorted((span, name) for name, span in stage.places.items())
    starts = [first for (first, _), _ in places] + [stage.flat.masters.numel()]
    for (_, name), first, end in zip(places, starts[:-1], starts[1:], strict=True):
        yield weight_decay if stage.weights[name].dim() > 1 else 0.0, (first, end)
