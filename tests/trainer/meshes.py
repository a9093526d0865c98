"""Trains tiny models over meshes of threads, and in one plain process to compare with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from plait.comm.contract import Endpoint
from plait.nn.dtypes import TORCH_DTYPES
from plait.nn.training.loss import IGNORED
from plait.nn.training.options import Place, StageOptions
from plait.nn.training.stage import TrainingStage
from plait.planner.training_local import local_training_plan
from plait.plans.split import Split, TrainingSetup
from plait.plans.training import TrainingPlan
from plait.spec.model import ModelSpec, Rope
from plait.spec.shards import make_shards, shard_tensors
from plait.spec.tensors import Shape, model_tensors
from plait.trainer.batch import Batch
from plait.trainer.rank import TrainingRank
from plait.trainer.rates import learning_rate
from plait.trainer.settings import Rate, Settings
from plait.trainer.worker import StepResult
from tests.comm.ranks import ThreadRanks

torch.set_num_threads(1)

SGD = Settings(Rate(0.05), optimizer="sgd", check_every=1)
LENGTH = 6
VOCAB = 97


def tiny(layers: int = 4, **changes: object) -> ModelSpec:
    """A Llama of a few layers."""
    spec = ModelSpec(
        name="tiny",
        family="llama",
        layers=layers,
        hidden=24,
        heads=4,
        kv_heads=2,
        head_dim=6,
        intermediate=40,
        vocab=VOCAB,
        max_positions=64,
        norm_eps=1e-5,
        rope=Rope(10000.0, 6),
        windows=(None,) * layers,
    )
    return replace(spec, **changes)  # type: ignore[arg-type]


def tensors_of(spec: ModelSpec, seed: int = 1) -> dict[str, Tensor]:
    """Random weights in float64, large enough that every layer counts."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, shape in model_tensors(spec).items():
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        found[name] = 1 + 0.3 * drawn if len(shape) == 1 else drawn * 1.2 / shape[-1] ** 0.5
    return found


def batch_of(sequences: int, step: int, ignored: float = 0.2, length: int = LENGTH) -> Batch:
    """Random tokens and targets, some of which do not count."""
    generator = torch.Generator().manual_seed(100 + step)
    tokens, targets = torch.randint(0, VOCAB, (2, sequences, length), generator=generator)
    targets[torch.rand(sequences, length, generator=generator) < ignored] = IGNORED
    return Batch(tokens, targets)


@dataclass(frozen=True)
class Mesh:
    """How a step is split; `micro_batch`: sequences in each of the `micro_batches`."""

    dp: int = 1
    pp: int = 1
    tp: int = 1
    schedule: str = "1f1b"
    micro_batches: int = 2
    micro_batch: int = 1
    virtual: int = 1
    zero: int = 0
    recompute: str = "none"
    sequence: bool = False
    dtype: str = "float64"
    cut: tuple[int, ...] | None = None
    shares: tuple[int, ...] = ()
    buckets: int = 2
    order: tuple[int, ...] = ()
    """Which rank stands where rank 0, 1, … would."""

    @property
    def sequences(self) -> int:
        return self.dp * self.micro_batches * self.micro_batch

    def plan(self, spec: ModelSpec, length: int = LENGTH) -> TrainingPlan:
        setup = TrainingSetup(
            Split(dp=self.dp, pp=self.pp, tp=self.tp),
            self.schedule,
            self.micro_batch,
            self.micro_batches,
            self.virtual,
            self.recompute,  # type: ignore[arg-type]
            self.zero,
            self.sequence,
        )
        made = local_training_plan(spec, setup, self.sequences, length, self.dtype, cut=self.cut, shares=self.shares)
        if not self.order:
            return made
        stages = tuple(
            replace(stage, ranks=tuple(self.order[rank] for rank in stage.ranks)) for stage in made.layout.stages
        )
        return replace(made, layout=replace(made.layout, stages=stages))


@dataclass
class Kept:
    """What one rank has after a step: by stage and name its gradients and weights, and which items it updates."""

    result: StepResult
    gradients: dict[tuple[int, str], Tensor] = field(default_factory=dict)
    weights: dict[tuple[int, str], Tensor] = field(default_factory=dict)
    updated: dict[tuple[int, str], Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Whole:
    """One process after a step; gradients before clipping."""

    loss: float
    norm: float
    gradients: Mapping[str, Tensor]
    weights: Mapping[str, Tensor]


Moments = tuple[Tensor, Tensor, Tensor]
Hook = Callable[[TrainingRank, int], None]


def train_rank(
    endpoint: Endpoint,
    plan: TrainingPlan,
    spec: ModelSpec,
    settings: Settings,
    tensors: Mapping[str, Tensor],
    batches: Sequence[Batch],
    buckets: int,
    before: Hook | None = None,
) -> list[Kept]:
    """`before`: called with the rank and the step's number before each step."""

    def whole(name: str, shape: Shape) -> Tensor:
        assert tuple(tensors[name].shape) == shape
        return tensors[name]

    rank, kept = TrainingRank(plan, spec, settings, endpoint, whole, buckets=buckets), []
    for number, batch in enumerate(batches):
        if before is not None:
            before(rank, number)
        kept.append(keep(rank, rank.step(number, batch)))
    return kept


def keep(rank: TrainingRank, result: StepResult) -> Kept:
    kept = Kept(result)
    for number, stage in rank.stages.items():
        mask = torch.zeros(len(stage.flat.masters), dtype=torch.bool)
        for first, end in rank.updated(number):
            mask[first:end] = True
        kept.gradients |= {(number, name): one.clone() for name, one in stage.gradients.items()}
        kept.weights |= {(number, name): one.clone() for name, one in stage.weights.items()}
        kept.updated |= {
            (number, name): mask[first:end].view(stage.gradients[name].shape)
            for name, (first, end) in stage.places.items()
        }
    return kept


def train(
    mesh: Mesh,
    spec: ModelSpec,
    settings: Settings = SGD,
    batches: Sequence[Batch] | None = None,
    before: Hook | None = None,
) -> list[list[Kept]]:
    """By rank and step."""
    plan = mesh.plan(spec, LENGTH if batches is None else batches[0].tokens.shape[1])
    given = batches if batches is not None else [batch_of(mesh.sequences, step) for step in range(2)]
    return ThreadRanks().run(
        train_rank,
        plan.layout.ranks,
        plan=plan,
        spec=spec,
        settings=settings,
        tensors=tensors_of(spec),
        batches=given,
        buckets=mesh.buckets,
        before=before,
    )


def alone(spec: ModelSpec, settings: Settings, batches: Sequence[Batch], dtype: str = "float64") -> list[Whole]:
    """One stage, one micro-batch, and an update over named tensors: torch's own AdamW, or SGD as its page says."""
    torch_dtype = TORCH_DTYPES[dtype]
    frozen = frozenset(name for name in model_tensors(spec) if any(fnmatchcase(name, one) for one in settings.frozen))
    options = StageOptions(dropout=settings.dropout, seed=settings.seed, frozen=frozen)
    stage = TrainingStage(spec, 0, spec.layers, tensors_of(spec), torch_dtype, options=options)
    update, found = _Update(stage, settings), []
    for number, batch in enumerate(batches):
        stage.clear()
        passed = stage.forward(batch.tokens, batch.targets, place=Place(number, 0))
        stage.backward(passed, 1 / max(1, batch.valid))
        stage.complete()
        assert passed.loss is not None
        gradients = {name: one.clone() for name, one in stage.gradients.items()}
        norm = sum(float(one.double().square().sum()) for one in gradients.values()) ** 0.5
        scale = min(1.0, settings.clip / (norm or 1.0)) if settings.clip else 1.0
        update({name: one * scale for name, one in gradients.items()}, learning_rate(settings.rate, number))
        weights = {name: one.clone() for name, one in stage.weights.items()}
        found.append(Whole(float(passed.loss) / max(1, batch.valid), norm, gradients, weights))
    return found


class _Update:
    """Over named tensors. AdamW is what `torch.optim.AdamW` calls, tensor by tensor; the class would take seconds."""

    def __init__(self, stage: TrainingStage, settings: Settings) -> None:
        self._stage, self._settings = stage, settings
        flat, weights = stage.flat.masters, stage.weights
        self._masters = {name: flat[first:end].view(weights[name].shape) for name, (first, end) in stage.places.items()}
        self._moments = {
            name: (torch.zeros_like(one), torch.zeros_like(one), torch.zeros(())) for name, one in self._masters.items()
        }

    def __call__(self, gradients: Mapping[str, Tensor], rate: float) -> None:
        update = self._adamw if self._settings.optimizer == "adamw" else self._sgd
        for name, master in self._masters.items():
            decay = self._settings.weight_decay * (master.dim() > 1)
            update(master, gradients[name], self._moments[name], decay, rate)
        self._stage.flat.publish(0, len(self._stage.flat.masters))

    def _adamw(self, master: Tensor, gradient: Tensor, moments: Moments, decay: float, rate: float) -> None:
        mean, square, step = moments
        told = self._settings
        adamw(
            [master],
            [gradient],
            [mean],
            [square],
            [],
            [step],
            foreach=False,
            fused=False,
            amsgrad=False,
            beta1=told.beta1,
            beta2=told.beta2,
            lr=rate,
            weight_decay=decay,
            eps=told.eps,
            maximize=False,
        )

    def _sgd(self, master: Tensor, gradient: Tensor, moments: Moments, decay: float, rate: float) -> None:
        momentum, *_ = moments
        momentum.mul_(self._settings.momentum).add_(gradient + decay * master)
        master.sub_(rate * momentum)


def worst(
    mesh: Mesh, spec: ModelSpec, ranks: Sequence[Sequence[Kept]], expected: Sequence[Whole], clip: float | None = None
) -> float:
    """The largest error of all losses, norms, gradients and weights of all ranks against one process.

    Of a tensor: max|a − b| ÷ max(max|b|, 1e-3 × the largest entry of any).
    """
    plan = mesh.plan(spec)
    found = [0.0]
    for rank, steps in enumerate(ranks):
        for kept, whole in zip(steps, expected, strict=True):
            assert kept.result == ranks[0][expected.index(whole)].result, "ranks have different results"
            found.append(abs(kept.result.loss - whole.loss) / abs(whole.loss or 1.0))
            found.append(abs(kept.result.grad_norm - whole.norm) / (whole.norm or 1.0))
            scale = min(1.0, clip / (whole.norm or 1.0)) if clip else 1.0
            gradients = {name: one * scale for name, one in whole.gradients.items()}
            found += errors(plan, spec, rank, kept.gradients, gradients, kept.updated)
            found += errors(plan, spec, rank, kept.weights, whole.weights, {})
    assert all(one == one for one in found), "not a number"
    return max(found)


def errors(
    plan: TrainingPlan,
    spec: ModelSpec,
    rank: int,
    ours: Mapping[tuple[int, str], Tensor],
    theirs: Mapping[str, Tensor],
    masks: Mapping[tuple[int, str], Tensor],
) -> list[float]:
    """Of what a rank has, where the masks say that it counts."""
    found = []
    least = 1e-3 * max(float(one.abs().max()) for one in theirs.values())
    for (number, name), tensor in ours.items():
        stage = plan.layout.stages[number]
        index = stage.ranks.index(rank) % plan.layout.tp
        piece = shard_tensors(spec, *stage.layers, make_shards(spec, plan.layout.tp, stage.shares)[index])[name]
        whole = theirs[name]
        part = whole if piece.axis is None else whole.narrow(piece.axis, piece.first, piece.end - piece.first)
        difference = (tensor - part).abs()
        if (number, name) in masks:
            difference = difference[masks[number, name]]
        if difference.numel():
            found.append(float(difference.max()) / (max(float(whole.abs().max()), least) or 1.0))
    return found


def error_of(mesh: Mesh, spec: ModelSpec, settings: Settings = SGD, batches: Sequence[Batch] | None = None) -> float:
    """The worst error of a mesh over two steps, or those of the batches."""
    given = batches if batches is not None else [batch_of(mesh.sequences, step) for step in range(2)]
    return worst(mesh, spec, train(mesh, spec, settings, given), alone(spec, settings, given), settings.clip)
