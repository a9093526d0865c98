"""What a forward reads of the weights: while one token a user is decoded, that decides how long it takes."""

from __future__ import annotations

from math import prod

from plait.planner.cut import balanced_cut
from plait.plans.rules import DTYPE_BYTES
from plait.spec.model import ModelSpec
from plait.spec.tensors import layer_tensors, model_tensors

_BYTES = DTYPE_BYTES["float32"]


def read_weights(spec: ModelSpec) -> int:
    """Bytes of weights that a forward through all stages reads in float32.

    Every tensor but the embedding, of which it looks up a row a token; a tied one is read as the head.
    """
    every = sum(map(prod, model_tensors(spec).values())) * _BYTES
    return every if spec.tied else every - looked_up(spec)


def looked_up(spec: ModelSpec) -> int:
    """Bytes of the embedding, which the first stage holds for looking up rows."""
    return spec.vocab * spec.hidden * _BYTES


def even_layers(spec: ModelSpec, stages: int) -> tuple[int, ...]:
    """Layers of each stage, such that all read as much, the last one with the head. Errors: PlanError."""
    sizes = [sum(map(prod, layer_tensors(spec, layer).values())) * _BYTES for layer in range(spec.layers)]
    head = read_weights(spec) - sum(sizes)

    def read(first: int, end: int) -> float:
        return sum(sizes[first:end]) + (head if end == spec.layers else 0)

    return tuple(end - first for first, end in balanced_cut(spec.layers, stages, read))
