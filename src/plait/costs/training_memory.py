"""Bytes that a device needs in training: states, activations in flight by schedule, and what one action works in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from plait.costs.activations import (
    embedding_kept_bytes,
    head_kept_bytes,
    layer_kept_bytes,
    layer_recomputed_bytes,
    layer_weight_half_bytes,
)
from plait.costs.operations import Work
from plait.costs.states import RankParameters, Recipe, state_bytes
from plait.plans.split import Recompute, TrainingSetup
from plait.schedules.closed import in_flight
from plait.schedules.training import V_SHAPED
from plait.spec.model import ModelSpec
from plait.spec.tensors import has_experts


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
        self.first = embedding_kept_bytes(spec, work(0))
        self.last = head_kept_bytes(spec, work(0))

    def stage(self, layers: tuple[int, int]) -> float:
        """What a stage's forward of one micro-batch keeps; the head's part is `last`, held by one at a time."""
        kept = self.before[layers[1]] - self.before[layers[0]]
        return kept + (self.first if layers[0] == 0 else 0.0)

    def half(self, layers: tuple[int, int]) -> float:
        """What lies between the two halves of a stage's backward."""
        return self.halves_before[layers[1]] - self.halves_before[layers[0]]


def position_bytes(
    setup: TrainingSetup,
    cut: Sequence[tuple[int, int]],
    layers: LayerBytes,
    parameters: Sequence[RankParameters],
    recipe: Recipe,
) -> tuple[int, ...]:
    """Each position's need. Activations in flight are `closed.in_flight`'s times the mean of the position's stages."""
    count, virtual = setup.split.pp, setup.virtual
    flying = in_flight(setup.schedule, count, virtual, setup.micro_batches)
    known: dict[tuple[RankParameters, float], float] = {}
    found = []
    for position in range(count):
        if setup.schedule in V_SHAPED:
            stages: Sequence[int] = (position, 2 * count - 1 - position)
        else:
            stages = range(position, count * virtual, count)
        kept = sum(layers.stage(cut[stage]) for stage in stages) / virtual
        working = layers.recomputed
        if cut[stages[-1]][1] == layers.layers:
            working += layers.last
        key = parameters[position], 0.0
        if key not in known:
            known[key] = state_bytes(parameters[position], recipe, setup.zero, setup.split).total_bytes
        found.append(round(known[key] + flying[position] * kept + working))
    return tuple(found)
