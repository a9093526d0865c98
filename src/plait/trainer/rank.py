"""One rank of a training run: the stages that it holds, and one step after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from torch import Tensor

from plait.comm.contract import Endpoint
from plait.comm.tensor_group import EndpointGroup
from plait.executor.step_executor import StepExecutor
from plait.nn.dtypes import TORCH_DTYPES
from plait.nn.training.options import StageOptions
from plait.nn.training.stage import TrainingStage
from plait.plans.round import Round
from plait.plans.training import BUCKETS, TrainingPlan
from plait.schedules.step import executed_round
from plait.spec.model import ModelSpec
from plait.spec.shards import Piece, make_shards, shard_tensors
from plait.spec.tensors import Shape, stage_tensors
from plait.timeline.observer import Observer
from plait.trainer.batch import Batch, check_batch
from plait.trainer.checks import check_buckets, check_mesh, check_settings
from plait.trainer.copies import CopyGuard
from plait.trainer.counted import require_counted_once
from plait.trainer.frozen import frozen_names
from plait.trainer.held import HeldStage, Span, replicas_of
from plait.trainer.norm import Assembly
from plait.trainer.optimizer import StageOptimizer
from plait.trainer.rates import learning_rate
from plait.trainer.reductions import StageReductions
from plait.trainer.settings import Settings
from plait.trainer.tied import TiedSum
from plait.trainer.worker import Given, Parts, StepResult, TrainingWorker

Tensors = Callable[[str, Shape], Tensor]
"""From a tensor's name and its whole shape to the whole tensor."""


class TrainingRank:
    """The rank `endpoint.rank` of `plan`. All ranks make it, and call `step`, in the same order with the same batches.

    `tensors(name, shape)` gives the whole initial tensor; the rank keeps its piece. `buckets`: parts in which each
    stage's gradients are summed over the replicas while its last backward still runs, at most one a layer. `stalled` is
    told of a wait that takes long. `record`: keep the times of exchanges for `observer`. `first`: the round of any
    step, where the caller has it made for many ranks of its process.

    Errors: UsageError where plan, model, settings and mesh do not fit each other; RunError where ranks do not agree.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        spec: ModelSpec,
        settings: Settings,
        endpoint: Endpoint,
        tensors: Tensors,
        *,
        buckets: int = BUCKETS,
        observer: Observer | None = None,
        stalled: Callable[[str], None] | None = None,
        record: bool = False,
        first: Round | None = None,
    ) -> None:
        check_settings(settings)
        check_mesh(plan, spec, endpoint.size)
        check_buckets(buckets)
        self._plan, self._spec, self._settings = plan, spec, settings
        layout, rank = plan.layout, endpoint.rank
        self._frozen = frozen_names(spec, settings.frozen)
        self._position, numbers = next(
            (at, held) for at, held in enumerate(layout.positions) if rank in layout.stages[held[0]].ranks
        )
        self._buckets, self._cut = buckets, plan.parts(buckets)
        group = None
        if layout.tp > 1:
            group = EndpointGroup(endpoint, layout.tensor_group(numbers[0], rank), record=record)
        self._held = {number: self._hold(number, rank, group, tensors) for number in numbers}
        self.stages: Mapping[int, TrainingStage] = {number: held.stage for number, held in self._held.items()}
        assembly = Assembly(endpoint, layout.ranks, () if group is None else layout.tensor_group(numbers[0], rank))
        require_counted_once(spec, self._frozen, self._held.values(), assembly)
        place = layout.stages[numbers[0]].ranks.index(rank)
        self._worker = TrainingWorker(
            plan,
            spec,
            self._position,
            place // layout.tp,
            Parts(
                self._held,
                {number: StageOptimizer(held, settings) for number, held in self._held.items()},
                {number: StageReductions(held) for number, held in self._held.items()},
                self._tied(rank),
                group,
                assembly,
                CopyGuard(spec, layout, rank, self._held, assembly),
                settings.clip,
            ),
        )
        self._executor = StepExecutor(layout, rank, endpoint, self._worker, observer, stalled=stalled)
        self._round = first

    def step(self, number: int, batch: Batch) -> StepResult:
        """Step `number`, the first of which is 0: gradients of the global batch, their norm, and an update.

        Errors: UsageError where the batch is not the plan's; RunError where numbers are not finite or copies differ
        (nothing is updated then), and where ranks are lost.
        """
        check_batch(batch, self._plan, self._spec.vocab)
        every = self._settings.check_every
        self._worker.begin(
            Given(batch, batch.valid, learning_rate(self._settings.rate, number), bool(every) and number % every == 0)
        )
        self._executor.run(self._round_of(number))
        return self._worker.end()

    def updated(self, number: int) -> tuple[Span, ...]:
        """What of a stage's flat storage this rank updates: with ZeRO-1 the only gradients that are sums over all."""
        return self._held[number].updated

    def _hold(self, number: int, rank: int, group: EndpointGroup | None, tensors: Tensors) -> HeldStage:
        plan, layout = self._plan, self._plan.layout
        stage, replicas = layout.stages[number], replicas_of(layout, number, rank)
        index = 0 if group is None else group.index
        shard = make_shards(self._spec, layout.tp, stage.shares)[index]
        pieces = shard_tensors(self._spec, *stage.layers, shard)
        options = StageOptions(
            self._cut[number],
            plan.setup.recompute,
            self._settings.dropout,
            self._settings.seed,
            self._frozen,
        )
        whole = stage_tensors(self._spec, *stage.layers)
        # as they come: where the dtype is narrower the masters begin with all that is known
        parameters = {name: _piece(tensors(name, shape), pieces[name]) for name, shape in whole.items()}
        made = TrainingStage(
            self._spec,
            *stage.layers,
            parameters,
            TORCH_DTYPES[stage.dtype],
            None if group is None else shard,
            group,
            plan.setup.sequence_split,
            options,
        )
        return HeldStage(number, made, replicas, replicas.index(rank), index, plan.setup.zero > 0)

    def _tied(self, rank: int) -> TiedSum | None:
        """Where the rank holds an end of a tied embedding that lies on two stages, and learns."""
        ends = [held for held in self._held.values() if held.stage.tied is not None]
        if not ends:
            return None
        layout, number = self._plan.layout, ends[0].number
        place = layout.stages[number].ranks.index(rank) % layout.tp
        both = (layout.stages[0].ranks, layout.stages[-1].ranks)
        return TiedSum(ends, sorted({one for ranks in both for one in ranks[place :: layout.tp]}))

    def _round_of(self, number: int) -> Round:
        """Made once; of later steps only the number differs."""
        if self._round is None:
            self._round = executed_round(number, self._plan, self._spec, self._buckets, self._frozen)
        elif self._round.number != number:
            actions = tuple(tuple(one._replace(round=number) for one in held) for held in self._round.actions)
            self._round = replace(self._round, number=number, actions=actions)
        return self._round


def _piece(tensor: Tensor, piece: Piece) -> Tensor:
    return tensor if piece.axis is None else tensor.narrow(piece.axis, piece.first, piece.end - piece.first)
