"""Bytes that a device needs in training: states, activations in flight by schedule, and what one action works in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from plait.costs.activations import (
    embedding_kept_bytes,
    head_kept_bytes,
    head_weight_half_bytes,
    layer_kept_bytes,
    layer_recomputed_bytes,
    layer_weight_half_bytes,
)
from plait.costs.operations import Work
from plait.costs.protocol import Held
from plait.costs.states import RankParameters, Recipe, state_bytes
from plait.plans.action import Kind
from plait.plans.split import Recompute, TrainingSetup
from plait.schedules.closed import heads_in_flight, in_flight
from plait.schedules.training import V_SHAPED
from plait.spec.model import ModelSpec
from plait.spec.tensors import has_experts

Cut = tuple[tuple[int, int], ...]


class LayerBytes:
    """What every layer keeps of a micro-batch until its backward, summed over the layers before each."""

    def __init__(self, spec: ModelSpec, work: Callable[[int], Work], recompute: Recompute) -> None:
        kept: dict[tuple[bool, int | None], tuple[float, float, float]] = {}
        each = []
        for layer in range(spec.layers):
            kind = has_experts(spec, layer), spec.windows[layer]
            if kind not in kept:
                mine = work(layer)
                kept[kind] = (
                    layer_kept_bytes(spec, layer, mine, recompute),
                    layer_weight_half_bytes(spec, layer, mine),
                    layer_recomputed_bytes(spec, layer, mine, recompute),
                )
            each.append(kept[kind])
        self.layers = spec.layers
        self.before = tuple(accumulate((one[0] for one in each), initial=0.0))
        self.halves_before = tuple(accumulate((one[1] for one in each), initial=0.0))
        self.recomputed = max(one[2] for one in each)
        self._positions: dict[tuple[int, bool, Cut], tuple[tuple[float, float], ...]] = {}
        self.first = embedding_kept_bytes(spec, work(0))
        self.last = head_kept_bytes(spec, work(0))
        self.last_half = head_weight_half_bytes(spec, work(0))

    def stage(self, layers: tuple[int, int]) -> float:
        """What a stage's forward of one micro-batch keeps, but for the head's part of it, which is `last`."""
        kept = self.before[layers[1]] - self.before[layers[0]]
        return kept + (self.first if layers[0] == 0 else 0.0)

    def half(self, layers: tuple[int, int]) -> float:
        """What lies between the two halves of a stage's backward, but for the head's part of it, `last_half`."""
        return self.halves_before[layers[1]] - self.halves_before[layers[0]]

    def held(self, layers: tuple[int, int], *, split: bool) -> Held:
        """What a stage's forward leaves; where the backward is `split` in two, W needs its part of it.

        The last stage computes the loss and its gradient with the forward: the logits' memory lies there until then.
        """
        kept = self.stage(layers)
        half = min(kept, self.half(layers)) if split else 0.0
        if layers[1] == self.layers:
            kept += self.last
            half += self.last_half if split else 0.0
        return Held(round(kept - half), round(half))

    def working_bytes(self, kind: Kind) -> int:
        """What one layer recomputes, in B and I."""
        return round(self.recomputed) if kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT) else 0

    def positions(self, count: int, folded: bool, cut: Cut) -> tuple[tuple[float, float], ...]:
        """For each of `count` positions the mean of what its stages keep, and the head's part where it has that.

        `folded`: it holds a stage on the way down and one on the way up.
        """
        key = count, folded, cut
        found = self._positions.get(key)
        if found is None:
            found = self._positions[key] = tuple(self._position(count, folded, cut, each) for each in range(count))
        return found

    def _position(self, count: int, folded: bool, cut: Cut, position: int) -> tuple[float, float]:
        stages = (position, 2 * count - 1 - position) if folded else range(position, len(cut), count)
        kept = sum(self.stage(cut[stage]) for stage in stages) / len(stages)
        return kept, self.last if cut[stages[-1]][1] == self.layers else 0.0


def position_bytes(
    setup: TrainingSetup,
    cut: Cut,
    layers: LayerBytes,
    parameters: Sequence[RankParameters],
    recipe: Recipe,
) -> tuple[int, ...]:
    """Each position's need. Activations in flight are `closed.in_flight`'s times the mean of the position's stages."""
    split, count = setup.split, setup.micro_batches
    flying = in_flight(setup.schedule, split.pp, setup.virtual, count)
    heads = [heads_in_flight(setup.schedule, setup.virtual, one, float(count)) for one in flying]
    parts = layers.positions(split.pp, setup.schedule in V_SHAPED, cut)
    states = {one: state_bytes(one, recipe, setup.zero, split).total_bytes for one in set(parameters)}
    return tuple(
        [
            round(states[mine] + held * kept + layers.recomputed + ends * head)
            for mine, held, ends, (kept, head) in zip(parameters, flying, heads, parts, strict=True)
        ]
    )
