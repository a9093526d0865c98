"""Two steps of training a tiny model, as one rank or one process does them. Imports no `transformers`: that is slow."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from plait.comm.contract import Endpoint
from plait.comm.tensor_group import EndpointGroup
from plait.nn.group import TensorGroup
from plait.nn.training.loss import IGNORED
from plait.nn.training.options import Place, StageOptions
from plait.nn.training.passed import Passed
from plait.nn.training.stage import TrainingStage
from plait.spec.model import ModelSpec
from plait.spec.shards import Piece, Shard, Unit, make_shards, shard_tensors, tensor_cut, whole_shard

BOUND: Mapping[torch.dtype, float] = {torch.float64: 1e-10, torch.float32: 1e-5}
SMALL: Mapping[torch.dtype, float] = {torch.float64: 1e-3, torch.float32: 0.1, torch.bfloat16: 0.1}
"""The share of the largest entry of any tensor that errors are at least measured against (design, section 6)."""

RATE = 0.05


class Made(Protocol):
    """A model with whole tensors."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def tensors(self) -> Mapping[str, Tensor]: ...


@dataclass(frozen=True)
class Whole:
    """A model as plain data, for processes."""

    spec: ModelSpec
    tensors: dict[str, Tensor]


def told(batch: int, length: int, ignored: float = 0.2, seed: int = 3) -> tuple[Tensor, Tensor]:
    """Token ids and targets [batch, length], some of which do not count."""
    generator = torch.Generator().manual_seed(seed)
    tokens, targets = torch.randint(3, 97, (2, batch, length), generator=generator)
    targets[torch.rand(batch, length, generator=generator) < ignored] = IGNORED
    return tokens, targets


def steps(batch: int, length: int) -> list[list[tuple[Tensor, Tensor]]]:
    """Micro-batches of two steps: one, then two of them."""
    return [[told(batch, length)], [told(batch, length, seed=4), told(1, length + 1, seed=5)]]


@dataclass(frozen=True)
class Step:
    """What a rank has after a step; by (stage, name) since a tied weight lies on the first and the last stage."""

    loss: float
    gradients: dict[tuple[int, str], Tensor]
    weights: dict[tuple[int, str], Tensor]


PLAIN = StageOptions()


class Learner:
    """All stages of a model on one rank of a tensor group. A stage has at most as many parts as layers."""

    def __init__(
        self,
        made: Made,
        dtype: torch.dtype,
        shard: Shard | None = None,
        group: TensorGroup | None = None,
        *,
        sequence: bool = False,
        cut: Sequence[int] = (),
        options: StageOptions = PLAIN,
    ) -> None:
        held = shard or whole_shard(made.spec)
        self.stages: list[TrainingStage] = []
        self.steps = 0
        for first, end in pairwise([0, *cut, made.spec.layers]):
            pieces = shard_tensors(made.spec, first, end, held)
            tensors = {name: piece_of(made.tensors[name].to(dtype), piece) for name, piece in pieces.items()}
            mine = replace(options, parts=min(options.parts, end - first))
            self.stages.append(TrainingStage(made.spec, first, end, tensors, dtype, shard, group, sequence, mine))

    def forward(self, tokens: Tensor, targets: Tensor, *, later: bool = False, sequence: int = 0) -> list[Passed]:
        passed, x = [], tokens
        place = Place(self.steps, sequence)
        for stage in self.stages:
            last = targets if stage is self.stages[-1] else None
            shape = (tokens.shape[0], tokens.shape[1])
            passed.append(stage.forward(x, last, shape, later=later, place=place))
            x = passed[-1].hidden
        return passed

    def backward(self, passed: Sequence[Passed], scale: float, *, split: bool = False) -> None:
        """`split`: part by part."""
        gradient: Tensor | float | None = scale
        for stage, one in zip(reversed(self.stages), reversed(passed), strict=True):
            for part in range(stage.options.parts) if split else (None,):
                given = gradient if not part else None
                gradient = stage.backward(one, given, part)

    def step(self, micro_batches: Sequence[tuple[Tensor, Tensor]], *, later: bool = False, split: bool = False) -> Step:
        """Mean loss over the valid tokens of all micro-batches, gradients, and the weights after an SGD update."""
        valid = max(1, sum(int((targets != IGNORED).sum()) for _, targets in micro_batches))
        loss, sequence = 0.0, 0
        for stage in self.stages:
            stage.clear()
        for tokens, targets in micro_batches:
            passed = self.forward(tokens, targets, later=later, sequence=sequence)
            self.backward(passed, 1 / valid, split=split)
            for stage, one in zip(self.stages, passed, strict=True):
                for part in range(stage.options.parts) if split else (None,):
                    stage.weigh(one, part)
            loss += float(passed[-1].loss) / valid
            sequence += len(tokens)
        for stage in self.stages:
            for part in range(stage.options.parts) if split else (None,):
                stage.complete(part)
            stage.update(RATE)
        self.steps += 1
        return Step(loss, self._all("gradients"), self._all("weights"))

    def _all(self, what: str) -> dict[tuple[int, str], Tensor]:
        return {
            (index, name): tensor.clone()
            for index, stage in enumerate(self.stages)
            for name, tensor in getattr(stage, what).items()
        }


def piece_of(tensor: Tensor, piece: Piece) -> Tensor:
    return tensor if piece.axis is None else tensor.narrow(piece.axis, piece.first, piece.end - piece.first)


def rank_steps(
    endpoint: Endpoint,
    made: Made,
    dtype: torch.dtype,
    batch: int,
    length: int,
    sequence: bool,
    shares: Sequence[float] = (),
    cut: Sequence[int] = (),
    options: StageOptions = PLAIN,
    later: bool = False,
    split: bool = False,
) -> list[Step]:
    """The steps of one rank of a tensor group of all ranks."""
    shard = make_shards(made.spec, endpoint.size, shares)[endpoint.rank]
    group = EndpointGroup(endpoint, tuple(range(endpoint.size)))
    learner = Learner(made, dtype, shard, group, sequence=sequence, cut=cut, options=options)
    return [learner.step(one, later=later, split=split) for one in steps(batch, length)]


def worst_error(made: Made, ours: Step, theirs: Step, shard: Shard, dtype: torch.dtype) -> float:
    """The largest error of a rank's loss, gradients and weights against those of one process."""
    found = [abs(ours.loss - theirs.loss) / abs(theirs.loss)]
    for part, whole in ((ours.gradients, theirs.gradients), (ours.weights, theirs.weights)):
        assert part.keys() == whole.keys()
        largest = max((float(tensor.abs().max()) for tensor in whole.values()), default=0.0)
        pieces = shard_tensors(made.spec, 0, made.spec.layers, shard)
        for (stage, name), tensor in part.items():
            expected = whole[stage, name]
            difference = tensor - piece_of(expected, pieces[name])
            scale = max(float(expected.abs().max()), SMALL[dtype] * largest)
            found.append(float(difference.abs().max()) / scale if difference.numel() else 0.0)
    assert all(one == one for one in found), "not a number"
    return max(found)


def copies(made: Made, step: Step, shard: Shard) -> dict[str, Tensor]:
    """What other ranks may have too, gradients and weights: whole tensors, and KV heads one by one."""
    found = {}
    for what, tensors in (("gradient", step.gradients), ("weight", step.weights)):
        for (stage, name), tensor in tensors.items():
            cut = tensor_cut(made.spec, name)
            if cut is None:
                found[f"{what} of {name} on stage {stage}"] = tensor
            elif cut.unit is Unit.KV_HEAD and shard.kv_heads.size:
                heads = tensor.chunk(shard.kv_heads.size)
                for head, part in zip(range(*shard.kv_heads), heads, strict=True):
                    found[f"{what} of {name} head {head} on stage {stage}"] = part
    return found


def assert_copies_equal(made: Made, ranks: Sequence[Step], shards: Sequence[Shard]) -> None:
    known: dict[str, Tensor] = {}
    for step, shard in zip(ranks, shards, strict=True):
        for what, tensor in copies(made, step, shard).items():
            assert torch.equal(known.setdefault(what, tensor), tensor), f"ranks differ in the {what}"
    assert len({step.loss for step in ranks}) == 1


def digest(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """For processes, which cannot hand tensors over."""
    return {name: hashlib.sha256(one.contiguous().numpy().tobytes()).hexdigest() for name, one in tensors.items()}
