"""One process: the whole model and the whole batch in a plain loop, without plan, schedule, executor or trainer.

What it has after each step is what every mesh must have. The update is written out here a second time, on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache

import torch
from torch import Tensor

from plait.certifier.case import Case, Dtype
from plait.certifier.data import sequences
from plait.certifier.models import Small, small_spec, small_tensors
from plait.errors import PlanError
from plait.nn.dtypes import TORCH_DTYPES
from plait.nn.training.options import Place, StageOptions
from plait.nn.training.stage import TrainingStage
from plait.spec.tensors import model_tensors

RATE, DECAY = 0.05, 0.1
"""Learning rate and weight decay of every case; large, so that a second update or decay is seen."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one process needs to know: meshes that agree in it share a reference."""

    model: Small
    dtype: Dtype
    batch: int
    steps: int
    dropout: float
    clip: float
    frozen: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Expected:
    """After one step: the mean loss over valid tokens, gradients before clipping and their norm, updated weights.

    `coefficient`: what clipping has multiplied the gradients by. Gradients and weights are in max(float32, dtype).
    """

    loss: float
    norm: float
    coefficient: float
    gradients: Mapping[str, Tensor]
    weights: Mapping[str, Tensor]


def work_of(case: Case) -> Work:
    """What one process does to be compared with this case."""
    return Work(case.small, case.dtype, case.sequences, case.steps, case.dropout, case.clip, case.frozen)


def frozen_names(model: Small, patterns: tuple[str, ...]) -> frozenset[str]:
    """The tensors that do not learn."""
    names = model_tensors(small_spec(model))
    return frozenset(name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns))


def require_learning(work: Work) -> None:
    """What is frozen is there, and something is left that learns. Errors: PlanError."""
    names = model_tensors(small_spec(work.model))
    for pattern in work.frozen:
        if not frozen_names(work.model, (pattern,)):
            some = ", ".join(tuple(names)[:3])
            raise PlanError(f"--frozen {pattern} is the name of no tensor: names are such as {some}")
    if len(frozen_names(work.model, work.frozen)) == len(names):
        raise PlanError(f"--frozen {','.join(work.frozen)} freezes all {len(names)} tensors: nothing would learn")


@lru_cache(maxsize=1024)
def expected_steps(work: Work) -> tuple[Expected, ...]:
    """What one process has after each step."""
    return tuple(_steps(work))


def exact(work: Work) -> Work:
    """The same in float64."""
    return replace(work, dtype="float64")


def _steps(work: Work) -> Iterator[Expected]:
    spec, dtype = small_spec(work.model), TORCH_DTYPES[work.dtype]
    frozen = frozen_names(work.model, work.frozen)
    options = StageOptions(dropout=work.dropout, seed=work.model.seed, frozen=frozen)
    whole, wide = small_tensors(work.model), torch.promote_types(dtype, torch.float32)
    stage = TrainingStage(spec, 0, spec.layers, whole, dtype, options=options)
    masters = {name: tensor.to(wide, copy=True) for name, tensor in whole.items() if name not in frozen}
    held = {name: stage.weights[name].to(wide) for name in frozen}  # rounded, since nothing is ever added to them
    for number in range(work.steps):
        batch = sequences(spec.vocab, work.batch, number, work.model.seed)
        stage.clear()
        passed = stage.forward(batch.tokens, batch.targets, place=Place(number, 0))
        stage.backward(passed, 1 / batch.valid)
        stage.complete()
        assert passed.loss is not None
        gradients = {name: gradient.to(wide, copy=True) for name, gradient in stage.gradients.items()}
        norm = sum(float(gradient.double().square().sum()) for gradient in gradients.values()) ** 0.5
        coefficient = min(1.0, work.clip / norm) if work.clip else 1.0
        for name, gradient in gradients.items():
            master = masters[name]
            decay = DECAY if master.dim() > 1 else 0.0
            master.sub_(RATE * (coefficient * gradient + decay * master))
            stage.weights[name].copy_(master)
        weights = held | {name: master.clone() for name, master in masters.items()}
        loss = float(passed.loss) / batch.valid
        yield Expected(loss, norm, coefficient, gradients, weights)
