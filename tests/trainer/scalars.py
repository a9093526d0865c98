"""Stages of one or two numbers, in place of transformers: where a right value is known by heart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from plait.comm.contract import Endpoint
from plait.nn.training.passed import Passed
from plait.trainer import rank as rooms
from plait.trainer.rank import TrainingRank
from plait.trainer.settings import Rate, Settings
from tests.comm.ranks import ThreadRanks

from .meshes import Mesh, batch_of, tiny


class Scalar:
    """x → w · x; on the last stage the squared error against 0. One token counts in each micro-batch."""

    dtype = torch.float64
    tied: tuple[int, int] | None = None
    places: Mapping[str, tuple[int, int]] = {"embed.weight": (0, 1)}
    owned: tuple[tuple[int, int], ...] = ((0, 1),)
    parts: tuple[tuple[int, int], ...] = ((0, 1),)

    def __init__(self, spec: Any, first: int, end: int, *_: Any) -> None:
        self.first, self.end, self._last = first, end, end == spec.layers
        self.flat = mock.Mock(weights=torch.ones(1, dtype=torch.float64), gradients=torch.zeros(1, dtype=torch.float64))
        self.flat.masters = self.flat.weights
        self.weights = {"embed.weight": self.flat.weights.view(1, 1)}
        self.gradients = {"embed.weight": self.flat.gradients.view(1, 1)}
        self._inputs: dict[int, Tensor] = {}

    def forward(self, inputs: Tensor, targets: Tensor | None, *_: Any, **__: Any) -> Passed:
        given = torch.ones(1, dtype=torch.float64) if self.first == 0 else inputs
        out = self.flat.weights * given
        passed = Passed(None if self._last else out, out.square().sum() if self._last else None, 1, None)
        self._inputs[id(passed)] = given
        return passed

    def backward(self, passed: Passed, gradient: Tensor | float, part: int | None = None) -> Tensor:
        given = self._inputs[id(passed)]
        if self._last:
            gradient = gradient * 2 * self.flat.weights * given
        self.flat.gradients += gradient * given
        result: Tensor = gradient * self.flat.weights
        return result

    def weigh(self, *_: Any) -> None: ...

    def complete(self, *_: Any) -> None: ...

    def clear(self) -> None:
        self.flat.gradients.zero_()


class Shared(Scalar):
    """Nothing but a tied weight of two numbers, which learns as much from either use."""

    tied = (0, 2)
    places: Mapping[str, tuple[int, int]] = {"embed.weight": (0, 2)}
    owned = ((0, 2),)
    parts = ((0, 0),)
    gradient = 0.0

    def __init__(self, spec: Any, first: int, end: int, *_: Any) -> None:
        super().__init__(spec, first, end)
        self.flat.weights = self.flat.masters = torch.ones(2, dtype=torch.float64)
        self.flat.gradients = torch.zeros(2, dtype=torch.float64)
        self.weights = {"embed.weight": self.flat.weights.view(1, 2)}

    def forward(self, inputs: Tensor, targets: Tensor | None, *_: Any, **__: Any) -> Passed:
        out = torch.ones(1, dtype=torch.float64)
        return Passed(None if self._last else out, out.sum() if self._last else None, 1, None)

    def backward(self, passed: Passed, gradient: Tensor | float, part: int | None = None) -> Tensor:
        self.flat.gradients += self.gradient / 2
        return torch.ones(1, dtype=torch.float64)


def run(
    stage: type[Scalar], mesh: Mesh, told: Settings, look: Callable[[TrainingRank, Any], Any], tied: bool
) -> list[Any]:
    """What `look` sees on each rank after one step in which every micro-batch has one valid token."""
    spec = replace(tiny(2), tied=tied)
    plan = mesh.plan(spec)
    batch = batch_of(mesh.sequences, 0, ignored=1.1)
    batch.targets[:, 0] = 1

    def program(endpoint: Endpoint) -> Any:
        rank = TrainingRank(plan, spec, told, endpoint, lambda _, shape: torch.ones(shape))
        return look(rank, rank.step(0, batch))

    with (
        mock.patch.object(rooms, "TrainingStage", stage),
        mock.patch.object(rooms, "require_counted_once"),
    ):
        return ThreadRanks().run(program, plan.layout.ranks)


def weights(schedule: str, micro_batches: int, rate: float) -> list[float]:
    """Both weights after a step on two stages."""
    mesh = Mesh(pp=2, schedule=schedule, micro_batches=micro_batches)
    told = Settings(Rate(rate), optimizer="sgd", check_every=0)
    return run(Scalar, mesh, told, lambda rank, _: float(next(iter(rank.stages.values())).flat.weights), tied=False)


def tied_norm(squares: float) -> float:
    """The norm where two stages share one weight, whose squared gradients add up to `squares`."""
    with mock.patch.object(Shared, "gradient", (squares / 2) ** 0.5):
        found = run(
            Shared,
            Mesh(pp=2, micro_batches=1),
            Settings(Rate(0.1), optimizer="sgd", check_every=0),
            lambda _, result: result.grad_norm,
            tied=True,
        )
    assert len(set(found)) == 1
    return float(found[0])
