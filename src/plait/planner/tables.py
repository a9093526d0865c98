"""What the search needs of costs, looked up once: seconds and bytes by what decides them, as arrays.

A layer's seconds and bytes depend on tp, ep, the micro-batch and what is recomputed, never on dp, pp or the schedule:
tens of thousands of ways to split share a few hundred of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from plait.costs.shares import largest_share
from plait.costs.states import RankParameters, end_rank_parameters, layer_rank_parameters
from plait.costs.training import TrainingModel
from plait.planner.balance import Floats
from plait.planner.step_times import Phases
from plait.plans.split import Recompute, Split, TrainingSetup
from plait.spec.model import ModelSpec

SMALL_MESH = 8
"""A mesh of fewer ranks may be less than a host: what its exchanges take depends on how many there are."""


class Key(NamedTuple):
    """What a layer's seconds and bytes depend on. `ranks`: of the mesh, at most `SMALL_MESH`."""

    tp: int
    ep: int
    ranks: int
    micro_batch: int
    recompute: Recompute
    sequence_split: bool


@dataclass(frozen=True, slots=True, eq=False)
class LayerTable:
    """By key: seconds of a layer, and those more on the first and on the last stage; bytes that a micro-batch leaves.

    `kept` of a layer until its backward, `kept_first` more on the first stage, `kept_last` on the last; `working` while
    a backward runs. Layers are taken as equal: those that differ at the beginning (dense before experts) have their
    difference in what is more on the first stage, others (windows) count by their mean.
    """

    layer: Phases
    first: Phases
    last: Phases
    kept: Floats
    kept_first: Floats
    working: Floats
    kept_last: Floats


@dataclass(frozen=True, slots=True, eq=False)
class ParameterTable:
    """Parameters on a rank, by (tp, ep): of a layer, more on the first stage, on the last, and on one that is both.

    Each [.., 2]: those that all ranks of dp × ep hold, and those of the experts, which ranks of dp hold.
    """

    layer: Floats
    first: Floats
    last: Floats
    both: Floats


def layer_table(model: TrainingModel, keys: Sequence[Key]) -> LayerTable:
    """The figures of every key, in their order."""
    rows = [_layer_row(model, _setup(model, key)) for key in keys]
    columns = np.array(rows, dtype=np.float64).reshape(len(keys), 13).T
    layer, first, last = (Phases(*columns[start : start + 3]) for start in (0, 3, 6))
    return LayerTable(layer, first, last, *columns[9:])


def _setup(model: TrainingModel, key: Key) -> TrainingSetup:
    """A setup with these figures; its dp is large enough for a mesh that is not small."""
    dp = max(1, key.ranks // (key.tp * key.ep))
    if key.ranks == SMALL_MESH:
        dp = SMALL_MESH
    split = Split(dp=dp, tp=key.tp, ep=key.ep)
    fused = model.job.attention == "fused"
    return TrainingSetup(
        split, "1f1b", key.micro_batch, 1, 1, key.recompute, 0, key.sequence_split, fused_attention=fused
    )


def _layer_row(model: TrainingModel, setup: TrainingSetup) -> list[float]:
    times, kept = model.times(setup), model.layer_bytes(setup)
    layers, early = model.spec.layers, early_layers(model.spec)
    usual = layers - early
    layer = [total / usual for total in times.total(early, layers)]
    begun = times.total(0, early)
    first = [more + before - early * each for more, before, each in zip(times.first, begun, layer, strict=True)]
    a_layer = (kept.before[-1] - kept.before[early]) / usual
    kept_first = kept.first + kept.before[early] - early * a_layer
    seconds = [*layer[:3], *first[:3], *times.last[:3]]
    return [*seconds, a_layer, kept_first, kept.recomputed, kept.last]


def early_layers(spec: ModelSpec) -> int:
    """Layers at the beginning that differ from the others."""
    return spec.experts.dense_layers if spec.experts and spec.experts.dense_layers < spec.layers else 0


def parameter_table(spec: ModelSpec, groups: Sequence[tuple[int, int]]) -> ParameterTable:
    """The parameters of every (tp, ep)."""
    layers, firsts, lasts, boths = [], [], [], []
    early = early_layers(spec)
    for tp, ep in groups:
        share = largest_share(spec, tp)
        usual = layer_rank_parameters(spec, spec.layers - 1, share, ep)
        differing = [_minus(layer_rank_parameters(spec, layer, share, ep), usual) for layer in range(early)]
        more = [sum(column) for column in zip(*differing, strict=True)] if differing else [0, 0]
        ends = [
            end_rank_parameters(spec, share, first=first, last=last)
            for first, last in ((True, False), (False, True), (True, True))
        ]
        layers.append(usual)
        firsts.append([a + b for a, b in zip(ends[0], more, strict=True)])
        lasts.append(ends[1])
        boths.append([a + b for a, b in zip(ends[2], more, strict=True)])
    return ParameterTable(*(np.array(rows, dtype=np.float64) for rows in (layers, firsts, lasts, boths)))


def _minus(one: RankParameters, other: RankParameters) -> tuple[int, int]:
    return one.dense - other.dense, one.experts - other.experts
