"""What a rank does in each action of a training step: the executor's worker, over the stages that it holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from plait.executor.reduction import Reduction
from plait.nn.training.options import Place
from plait.nn.training.passed import Passed
from plait.plans.action import Action, Kind
from plait.plans.round import Round
from plait.plans.training import TrainingPlan
from plait.spec.model import ModelSpec
from plait.trainer.batch import Batch, first_sequence, require_same_batch
from plait.trainer.copies import CopyGuard
from plait.trainer.finite import NOTHING, Trouble, Watch, gradient_trouble, require_finite
from plait.trainer.held import HeldStage
from plait.trainer.norm import Assembly, square_sum
from plait.trainer.optimizer import StageOptimizer
from plait.trainer.reductions import StageReductions
from plait.trainer.tied import TiedSum

Exchanged = tuple[int, Sequence[tuple[float, float]]]


class CountedGroup(Protocol):
    """A tensor group that counts what it exchanges."""

    def take(self) -> Exchanged:
        """Bytes that this rank sent since this was last asked, and when each exchange began and ended."""


class StepResult(NamedTuple):
    """A step of the whole mesh, the same on every rank, to the bit.

    `loss`: the mean over the `valid` tokens of the global batch, of which there are `tokens`. `grad_norm`: before
    clipping.
    """

    loss: float
    grad_norm: float
    rate: float
    tokens: int
    valid: int


class Given(NamedTuple):
    """What a step is told beside its round."""

    batch: Batch
    valid: int
    rate: float
    check: bool


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """What a worker is made of; `tied` and `group` where the rank takes part in such."""

    held: Mapping[int, HeldStage]
    optimizers: Mapping[int, StageOptimizer]
    reductions: Mapping[int, StageReductions]
    tied: TiedSum | None
    group: CountedGroup | None
    assembly: Assembly
    copies: CopyGuard
    clip: float | None


class _Ends(NamedTuple):
    """Of a position's actions: micro-batches whose weight products come later, and what ends a stage's backward."""

    later: frozenset[tuple[int, int]]
    last: Mapping[int, tuple[Kind, int]]

    @staticmethod
    def of(actions: Sequence[Action]) -> _Ends:
        later = frozenset((one.stage, one.micro_batch) for one in actions if one.kind is Kind.BACKWARD_INPUT)
        ending = (one for one in actions if one.kind in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT))
        return _Ends(later, {one.stage: (one.kind, one.micro_batch) for one in ending})


class TrainingWorker:
    """See `executor.StepWorker`. A step is: `begin`, the executor's run of the round, `end`."""

    def __init__(self, plan: TrainingPlan, spec: ModelSpec, position: int, replica: int, parts: Parts) -> None:
        self._plan, self._spec, self._position, self._replica, self._parts = plan, spec, position, replica, parts
        self._stages = {number: held.stage for number, held in parts.held.items()}
        self._ends: _Ends | None = None
        self._given: Given | None = None
        self._result: StepResult | None = None
        self._passed: dict[tuple[int, int], Passed] = {}
        self._losses: dict[int, Tensor] = {}
        self._watch = Watch()

    def begin(self, given: Given) -> None:
        """A step begins: gradients and losses are forgotten."""
        self._given, self._result = given, None
        self._passed.clear()
        self._losses.clear()
        self._watch = Watch()
        self.exchanged()  # what was exchanged between steps is no action's
        for stage in self._stages.values():
            stage.clear()

    def end(self) -> StepResult:
        """Of the step whose round has ended."""
        assert self._result is not None, "the round had no N"
        return self._result

    # --- a micro-batch ----------------------------------------------------------------------------------

    def forward(self, one: Round, action: Action, message: Tensor | None) -> Tensor | None:
        """See `executor.StepWorker`."""
        number, micro_batch = key = action.stage, action.micro_batch
        stage, setup = self._stages[number], self._plan.setup
        first = first_sequence(self._plan, self._replica, micro_batch)
        batch, device = self._now.batch.rows(first, setup.micro_batch), stage.flat.weights.device
        passed = self._passed[key] = stage.forward(
            (batch.tokens if message is None else message).to(device),
            batch.targets.to(device) if stage.end == self._spec.layers else None,
            (setup.micro_batch, self._plan.sequence),
            later=key in self._ends_of(one).later,
            place=Place(one.number, first),
        )
        self._watch.see(number, micro_batch, passed)
        if passed.loss is not None:
            self._losses[micro_batch] = passed.loss
        hidden, passed.hidden = passed.hidden, None  # it is the message's from here on
        return hidden

    def backward(self, one: Round, action: Action, message: Tensor | None) -> Tensor | None:
        """See `executor.StepWorker`."""
        key, stage = (action.stage, action.micro_batch), self._stages[action.stage]
        # the sum over this micro-batch's tokens becomes its part of the mean over the global batch: nothing is averaged
        # twice, however tokens lie in micro-batches and replicas
        gradient = 1 / max(1, self._now.valid) if message is None else message.to(stage.flat.weights.device)
        result = stage.backward(self._passed[key], gradient, action.part)
        if action.kind is Kind.BACKWARD:
            self._came_back(one, action)
        return result

    def weigh(self, one: Round, action: Action) -> None:
        """See `executor.StepWorker`."""
        self._stages[action.stage].weigh(self._passed[action.stage, action.micro_batch], action.part)
        self._came_back(one, action)

    def _came_back(self, one: Round, action: Action) -> None:
        """After a B or W, whole or a part."""
        stage = self._stages[action.stage]
        if self._ends_of(one).last[action.stage] == (action.kind, action.micro_batch):
            stage.complete(action.part)
        if action.part is None or action.part == len(stage.parts) - 1:
            del self._passed[action.stage, action.micro_batch]

    # --- the whole stage --------------------------------------------------------------------------------

    def reduction(self, one: Round, action: Action) -> Reduction | None:
        """See `executor.StepWorker`."""
        reductions = self._parts.reductions[action.stage]
        match action.kind:
            case Kind.REDUCE_GRADIENTS:
                return reductions.gradients(action.part)
            case Kind.GATHER_PARAMETERS:
                return reductions.weights()
            case _:
                assert self._parts.tied is not None
                return self._parts.tied.begin()

    def reduced(self, one: Round, action: Action) -> None:
        """See `executor.StepWorker`."""
        if action.kind is Kind.GATHER_PARAMETERS:
            self._parts.reductions[action.stage].gathered()
        elif action.kind is Kind.REDUCE_TIED and self._parts.tied is not None:
            self._parts.tied.end()

    def norm(self, one: Round, action: Action) -> None:
        """See `executor.StepWorker`. Errors: RunError, the same on all ranks, before anything is updated."""
        given, parts = self._now, self._parts
        squares, trouble = self._squares()
        checksums = [given.batch.checksum, *parts.copies.checksums()] if given.check else []
        rows = parts.assembly.told([squares, self._loss(), *trouble, *checksums])
        require_finite([Trouble.of(row[2:7]) for row in rows], self._spec, self._plan.layout, one.number)
        if given.check:
            require_same_batch([int(row[7]) for row in rows], one.number)
            parts.copies.check([row[8:] for row in rows], one.number)
        norm = math.sqrt(math.fsum(row[0] for row in rows))
        if parts.clip is not None and norm > parts.clip:
            for optimizer in parts.optimizers.values():
                optimizer.scale(parts.clip / norm)
        loss = math.fsum(row[1] for row in rows) / max(1, given.valid)
        self._result = StepResult(loss, norm, given.rate, given.batch.tokens.numel(), given.valid)

    def update(self, one: Round, action: Action) -> None:
        """See `executor.StepWorker`."""
        self._parts.optimizers[action.stage].update(self._now.rate)

    def exchanged(self) -> Exchanged:
        """See `executor.StepWorker`."""
        sent_bytes, times = (0, ()) if self._parts.group is None else self._parts.group.take()
        told_bytes, told = self._parts.assembly.take()
        return sent_bytes + told_bytes, (*times, *told)

    def _squares(self) -> tuple[float, Trouble]:
        """Of what this rank counts, and the first trouble that it saw in this step."""
        held = tuple(self._parts.held.values())
        total, trouble = 0.0, self._watch.trouble(held, self._spec)
        for one in reversed(held):
            squares = square_sum(one.stage.flat.gradients, one.counted)
            if not math.isfinite(squares) and trouble is NOTHING:
                trouble = gradient_trouble(one, self._spec, squares)
            total += squares
        return total, trouble

    def _loss(self) -> float:
        """The sum over this replica's tokens, told by one rank of each tensor group: all of it have the same."""
        if any(one.tensor for one in self._parts.held.values()):
            return 0.0
        return math.fsum(float(self._losses[micro_batch]) for micro_batch in sorted(self._losses))

    @property
    def _now(self) -> Given:
        assert self._given is not None, "no step has begun"
        return self._given

    def _ends_of(self, one: Round) -> _Ends:
        """Every step's round has the same actions but for its number."""
        if self._ends is None:
            self._ends = _Ends.of(one.actions[self._position])
        return self._ends
