"""The cases of `plait certify --all`: every mesh that is asked for with every schedule, and all else drawn for each.

A pure function of the seed. What is drawn depends on the case's own name alone, so that cases can be added without
changing others. That all of it takes minutes, large meshes get few micro-batches and steps (every sixth more),
and what one process has to do, too, is drawn by the model's layers alone: meshes share it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from random import Random

from plait.certifier.case import Case, Dtype
from plait.certifier.models import FAMILIES
from plait.plans.split import RECOMPUTE

WAYS = (
    ("layerwise", 1),
    ("layerwise", 2),
    ("gpipe", 1),
    ("1f1b", 1),
    ("interleaved", 2),
    ("interleaved", 3),
    ("zb-h1", 1),
    ("zb-h2", 1),
    ("zb-v", 2),
    ("dualpipe-v", 2),
)
"""Schedules, and the stages that each of their positions holds."""

DP, PP, TP = (1, 2, 3), (1, 2, 3, 4), (1, 2, 3)
DRAWS, FEW_DRAWS, MANY_RANKS = 6, 2, 24
"""Cases of a mesh, and of one that has so many ranks or more: they take most of the time."""
MICRO_BATCHES = 9

_BUDGET, _LARGE_BUDGET = 24, 84
"""Passes of a micro-batch through a layer on a rank, over all steps, that a case may take; and every sixth."""

_FROZEN = (("*norm*",), ("embed*",), ("layers.0.*",), ("*.q.weight", "*.down.*"))


def grid(seed: int = 0, dtype: Dtype | None = None) -> Iterator[Case]:
    """All cases. `dtype`: of all of them; by default float64 and float32 in turn."""
    for (schedule, virtual), dp, pp, tp in product(WAYS, DP, PP, TP):
        mesh = Case(dp=dp, pp=pp, tp=tp, schedule=schedule, virtual=virtual, seed=seed)
        for turn in range(FEW_DRAWS if dp * pp * tp >= MANY_RANKS else DRAWS):
            case = drawn(mesh, Random(f"{seed} {schedule} {virtual} {dp} {pp} {tp} {turn}"), turn)
            yield replace(case, dtype=dtype or ("float32" if turn % 2 else "float64"))


def drawn(mesh: Case, random: Random, turn: int = 0) -> Case:
    """All that the mesh leaves open."""
    layers = _cut(mesh.pp * mesh.virtual, random, large=mesh.dp * mesh.tp >= 6)
    each = mesh.dp * mesh.tp * sum(layers)
    least, budget = (4, _LARGE_BUDGET) if turn % DRAWS == DRAWS - 1 else (1, _BUDGET)
    micro_batches = max(1, min(random.randint(least, MICRO_BATCHES), budget // each))
    return replace(
        _work(mesh, Random(f"{mesh.seed} {sum(layers)} {turn}")),
        layers=layers if len(layers) > 1 else (sum(layers),),
        micro_batches=micro_batches,
        batch=mesh.dp * micro_batches * random.choice((1, 1, 2, 3)),
        steps=2 if 2 * each * micro_batches <= budget else 1,
        zero=random.randint(0, 1),
        recompute=random.choice(RECOMPUTE),
        sequence=mesh.tp > 1 and random.random() < 0.5,
        buckets=random.randint(1, 4),
        capacity=random.randint(1, 3),
        shares=_shares(mesh.tp, random),
    )


def _work(mesh: Case, random: Random) -> Case:
    """What one process has to know, but for the batch and the steps."""
    return replace(
        mesh,
        model=random.choice(FAMILIES),
        tied=random.random() < 0.5,
        dropout=random.choice((0.0, 0.0, 0.1, 0.3)),
        clip=random.choice((0.0, 0.0, 0.05)),
        frozen=random.choice(_FROZEN) if random.random() < 0.1 else (),
    )


def _cut(stages: int, random: Random, *, large: bool) -> tuple[int, ...]:
    """Layers of each stage: one each, and now and then some more on any of them."""
    layers = [1] * stages
    for _ in range(random.choice((0, 0, 1) if large else (0, 1, 1, 2))):
        layers[random.randrange(stages)] += 1
    return tuple(layers)


def _shares(tp: int, random: Random) -> tuple[int, ...]:
    """Now and then unequal ranks of a tensor group."""
    if tp == 1 or random.random() < 0.7:
        return ()
    return tuple(random.randint(1, 3) for _ in range(tp))
