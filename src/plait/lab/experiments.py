"""All experiments of the lab, in the order in which they are best read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from plait.errors import SpecError, nearest
from plait.lab import braid, data_parallel, layer_wise, many_users, pipeline, quiz, tensor_parallel
from plait.lab.experiment import Experiment

_ORDER = (data_parallel, tensor_parallel, pipeline, layer_wise, many_users, braid, quiz)

EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType({one.EXPERIMENT.name: one.EXPERIMENT for one in _ORDER})
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
