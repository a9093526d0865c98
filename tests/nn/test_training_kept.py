"""What a forward keeps for its backward: counted by autograd's hooks, against the cost model and the schedules."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from plait.comm.contract import Endpoint
from plait.comm.tensor_group import EndpointGroup
from plait.costs.activations import (
    embedding_kept_bytes,
    head_kept_bytes,
    head_weight_half_bytes,
    layer_kept_bytes,
    layer_weight_half_bytes,
)
from plait.costs.operations import Work
from plait.costs.shares import Share
from plait.nn.dtypes import TORCH_DTYPES
from plait.nn.training.options import StageOptions
from plait.nn.training.passed import Passed
from plait.nn.training.stage import TrainingStage
from plait.plans.action import Kind
from plait.plans.split import RECOMPUTE
from plait.schedules.closed import in_flight
from plait.schedules.training import compute_order
from plait.spec.model import ModelSpec, Rope
from plait.spec.shards import Shard, even_rows, make_shards, shard_tensors
from tests.comm.ranks import ThreadRanks

LLAMA = ModelSpec("tiny", "llama", 4, 192, 6, 3, 32, 320, 500, 256, 1e-5, Rope(1e4, 32), (None,) * 4)
MODELS = {
    "llama": LLAMA,
    "tied": replace(LLAMA, tied=True),
    "windows": replace(LLAMA, windows=(16, None, 16, None)),
    "norms of heads": replace(LLAMA, qk_norm="head"),
    "norms of all": replace(LLAMA, qk_norm="full", norm_placement="post", kv_heads=6),
    "plain": replace(
        LLAMA, rope=None, norm="layer", mlp="plain", activation="gelu_tanh", qkv_bias=True, mlp_bias=True, kv_heads=6
    ),
}
BATCH, LENGTH = 2, 64
TOKENS = BATCH * LENGTH
CUTS = ((0, 4), (0, 2), (1, 3), (2, 4))


class Saved:
    """Bytes of what autograd keeps at a time, and the most of them; of several tensors in one storage it counts once.

    `weights` are there anyway, and do not count.
    """

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self._weights = {tensor.untyped_storage().data_ptr() for tensor in weights}
        self._users: Counter[int] = Counter()
        self.now = self.most = 0

    def hooks(self) -> saved_tensors_hooks:
        return saved_tensors_hooks(self._pack, lambda kept: kept.tensor)

    def _pack(self, tensor: Tensor) -> Kept:
        kept, storage = Kept(tensor.detach()), tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        if address not in self._weights:
            self._users[address] += 1
            if self._users[address] == 1:
                self.now += size
                self.most = max(self.most, self.now)
            weakref.finalize(kept, self._freed, address, size)
        return kept

    def _freed(self, address: int, size: int) -> None:
        self._users[address] -= 1
        self.now -= 0 if self._users[address] else size


class Kept:
    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class Case(NamedTuple):
    model: str = "llama"
    layers: tuple[int, int] = (0, 4)
    dtype: str = "float32"
    sequence: bool = False
    recompute: str = "none"
    dropout: float = 0.0

    @property
    def spec(self) -> ModelSpec:
        return MODELS[self.model]

    def stage(self, shard: Shard, group: EndpointGroup | None) -> TrainingStage:
        pieces, dtype = shard_tensors(self.spec, *self.layers, shard), TORCH_DTYPES[self.dtype]
        tensors = {name: torch.full(piece.shape, 0.01, dtype=dtype) for name, piece in pieces.items()}
        options = StageOptions(1, self.recompute, self.dropout)  # type: ignore[arg-type]
        return TrainingStage(self.spec, *self.layers, tensors, dtype, shard, group, self.sequence, options)

    def passed(self, stage: TrainingStage, rows: int, *, later: bool = False) -> Passed:
        x = torch.zeros(BATCH, LENGTH, dtype=torch.int64)
        if self.layers[0]:
            x = torch.ones(rows, self.spec.hidden, dtype=TORCH_DTYPES[self.dtype])
        targets = torch.ones(BATCH, LENGTH, dtype=torch.int64) if self.layers[1] == self.spec.layers else None
        return stage.forward(x, targets, (BATCH, LENGTH), later=later)

    def work(self, shard: Shard) -> Work:
        share = Share(shard.heads.size, shard.kv_heads.size, shard.part)
        item = TORCH_DTYPES[self.dtype].itemsize
        split = shard.size if self.sequence else 1
        return Work(TOKENS, TOKENS * LENGTH / 2, share, 1, split, True, self.dropout > 0, item_bytes=item)

    def predicted(self, shard: Shard) -> float:
        """By the cost model."""
        work, spec = self.work(shard), self.spec
        found = sum(
            layer_kept_bytes(spec, layer, work, self.recompute)  # type: ignore[arg-type]
            for layer in range(*self.layers)
        )
        found += embedding_kept_bytes(spec, work) if self.layers[0] == 0 else 0
        return found + (head_kept_bytes(spec, work) if self.layers[1] == spec.layers else 0)


def kept_bytes(case: Case, shard: Shard, group: EndpointGroup | None = None) -> int:
    """What one forward keeps."""
    stage = case.stage(shard, group)
    saved = Saved(list(stage.weights.values()))
    with saved.hooks():
        passed = case.passed(stage, even_rows(TOKENS, shard.size)[shard.index])
    mask = 0 if passed.mask is None else passed.mask.nbytes  # of the embedding's dropout: not autograd's to keep
    return saved.now + mask


def rank_kept_bytes(endpoint: Endpoint, case: Case) -> int:
    group = EndpointGroup(endpoint, tuple(range(endpoint.size)))
    return kept_bytes(case, make_shards(case.spec, endpoint.size)[endpoint.rank], group)


def off(counted: float, predicted: float) -> float:
    return abs(counted / predicted - 1)


@pytest.mark.parametrize(("dtype", "dropout"), [("float32", 0.0), ("float32", 0.1), ("bfloat16", 0.0)])
@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("model", MODELS)
def test_a_stage_keeps_what_the_cost_model_says(model: str, dtype: str, recompute: str, dropout: float) -> None:
    for layers in CUTS:
        case = Case(model, layers, dtype, False, recompute, dropout)
        (shard,) = make_shards(case.spec, 1)
        assert off(kept_bytes(case, shard), case.predicted(shard)) < 0.02, layers


@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize("model", MODELS)
def test_a_rank_of_a_tensor_group_keeps_what_the_cost_model_says(
    model: str, tp: int, sequence: bool, recompute: str
) -> None:
    """Two ranks share the second of three KV heads, which they read unevenly."""
    case = Case(model, (2, 4), "float32", sequence, recompute, 0.1)
    counts = ThreadRanks().run(rank_kept_bytes, tp, case=case)
    for counted, shard in zip(counts, make_shards(case.spec, tp), strict=True):
        assert off(counted, case.predicted(shard)) < 0.05, shard.index


def test_full_recompute_keeps_the_inputs_of_layers_and_nothing_else() -> None:
    case = Case("llama", (1, 3), recompute="full")
    (shard,) = make_shards(case.spec, 1)
    assert kept_bytes(case, shard) == 2 * TOKENS * LLAMA.hidden * 4


def test_frozen_products_keep_no_inputs() -> None:
    """With o and down frozen a layer keeps neither's input for them; attention's result it keeps for itself."""
    case = Case("llama", (1, 3))
    (shard,) = make_shards(case.spec, 1)
    stage = case.stage(shard, None)
    frozen = frozenset(name for name in stage.weights if name.endswith(("o.weight", "down.weight")))
    options = StageOptions(frozen=frozen)
    other = TrainingStage(case.spec, 1, 3, stage.weights, torch.float32, options=options)
    saved = Saved([*stage.weights.values(), *other.weights.values()])
    with saved.hooks():
        passed = case.passed(other, TOKENS)
    assert saved.now == kept_bytes(case, shard) - 2 * TOKENS * LLAMA.intermediate * 4
    assert passed.hidden is not None


@pytest.mark.parametrize("position", range(4))
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_schedule_keeps_as_many_forwards_as_are_in_flight(schedule: str, position: int) -> None:
    """4 positions, 6 micro-batches: 6 of them at once, or 4, 3, 2, 1. The first layers; what else is small."""
    case = Case("llama", (1, 2))
    (shard,) = make_shards(case.spec, 1)
    stage, passed = case.stage(shard, None), dict[int, Passed]()
    saved = Saved(list(stage.weights.values()))
    with saved.hooks():
        order = compute_order(schedule, 4, 1, 6)
        for action in order.actions()[position]:
            if action.kind is Kind.FORWARD:
                passed[action.micro_batch] = case.passed(stage, TOKENS)
            else:
                one = passed.pop(action.micro_batch)
                stage.backward(one, torch.ones(TOKENS, LLAMA.hidden))
    flying = in_flight(schedule, 4, 1, 6)[position]
    assert saved.most == flying * kept_bytes(case, shard)
    assert flying == (6 if schedule == "gpipe" else 4 - position)
    assert saved.now == 0


@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("model", ["llama", "plain"])
def test_products_that_wait_keep_what_the_cost_model_says(model: str, recompute: str) -> None:
    """Inputs of products and gradients of their outputs, between the halves of a split backward."""
    case = Case(model, (2, 4), recompute=recompute)
    (shard,) = make_shards(case.spec, 1)
    stage = case.stage(shard, None)
    passed = case.passed(stage, TOKENS, later=True)
    stage.backward(passed, 1.0)
    waiting = passed.segments[0].at.products._waiting
    counted = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for _, *two, _ in waiting
        for tensor in two
    }
    work = case.work(shard)
    expected = sum(layer_weight_half_bytes(case.spec, layer, work) for layer in (2, 3))
    assert off(sum(counted.values()), expected + head_weight_half_bytes(case.spec, work)) < 0.05
