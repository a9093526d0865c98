"""All experiments of the lab, in the order in which they are best read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from plait.errors import SpecError, nearest
from plait.lab import claims
from plait.lab.experiment import Experiment

_ORDER = (
    claims.DATA_PARALLEL,
    claims.TENSOR_PARALLEL,
    claims.PIPELINE,
    claims.LAYER_WISE,
    claims.MANY_USERS,
    claims.BRAID,
    claims.QUIZ,
)

EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType({one.name: one for one in _ORDER})
"""By the name that is typed."""


def chosen(names: Iterable[str]) -> tuple[Experiment, ...]:
    """Those of these names, in the lab's order and each once. Errors: SpecError, with the nearest name."""
    wanted = list(names)
    for name in wanted:
        if name not in EXPERIMENTS:
            raise SpecError(
                f"unknown experiment {name!r}: {nearest(name, EXPERIMENTS)}; plait lab --list says what each measures"
            )
    return tuple(one for one in EXPERIMENTS.values() if one.name in wanted)
