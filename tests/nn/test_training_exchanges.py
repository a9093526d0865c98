"""Bytes that a training stage's ranks really send, action by action, against the rule; over threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import NamedTuple, TypeVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from plait.comm.contract import Endpoint
from plait.comm.tensor_group import EndpointGroup
from plait.nn.dtypes import TORCH_DTYPES
from plait.nn.training.options import StageOptions
from plait.nn.training.passed import Passed
from plait.nn.training.stage import TrainingStage
from plait.plans.action import Kind
from plait.plans.layout import Layout, Stage
from plait.plans.round import MicroBatch, Row
from plait.plans.split import Split, TrainingSetup
from plait.plans.training_exchanges import action_exchanges, complete_exchanges, exchanged_bytes
from plait.spec.model import ModelSpec, Rope
from plait.spec.shards import make_shards, shard_tensors
from tests.comm.ranks import ThreadRanks

T = TypeVar("T")

LLAMA = ModelSpec("tiny", "llama", 4, 24, 4, 2, 6, 40, 97, 64, 1e-5, Rope(1e4, 6), (None,) * 4)
MODELS = {
    "llama": LLAMA,
    "tied": replace(LLAMA, tied=True),
    "one KV head": replace(LLAMA, kv_heads=1, qkv_bias=True),
    "norms of heads": replace(LLAMA, qk_norm="head"),
    "norms of all": replace(LLAMA, qk_norm="full", norm_placement="post", kv_heads=1),
    "plain": replace(
        LLAMA,
        rope=None,
        norm="layer",
        mlp="plain",
        activation="gelu_tanh",
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        tied=True,
        kv_heads=4,
    ),
}


class Case(NamedTuple):
    model: str = "llama"
    tp: int = 2
    sequence: bool = False
    cut: tuple[int, ...] = (0, 4)
    parts: tuple[int, ...] = (1,)
    recompute: str = "none"
    dtype: str = "float32"
    rows: tuple[int, int] = (2, 7)
    later: bool = False

    @property
    def spec(self) -> ModelSpec:
        return MODELS[self.model]

    @property
    def setup(self) -> TrainingSetup:
        split = Split(pp=len(self.parts), tp=self.tp)
        return TrainingSetup(split, "gpipe", 2, 1, 1, self.recompute, 0, self.sequence)  # type: ignore[arg-type]

    @property
    def layout(self) -> Layout:
        stages = tuple(
            Stage(layers, tuple(range(at * self.tp, (at + 1) * self.tp)), self.dtype, self.dtype)
            for at, layers in enumerate(pairwise(self.cut))
        )
        return Layout({"pp": len(stages), "tp": self.tp}, stages)

    @property
    def work(self) -> MicroBatch:
        return MicroBatch(tuple(Row(at, at, 0, self.rows[1], False) for at in range(self.rows[0])))


Named = tuple[int, str, int | None]
"""Stage, what it does, and of which part."""


class Rank:
    """All stages of a case on one rank of a tensor group, and what it sent in each action."""

    def __init__(self, endpoint: Endpoint, case: Case) -> None:
        self.case, self.sent = case, dict[Named, int]()
        self.group = EndpointGroup(endpoint, tuple(range(case.tp)))
        shard = make_shards(case.spec, case.tp)[endpoint.rank]
        self.stages = []
        for layers, parts in zip(pairwise(case.cut), case.parts, strict=True):
            pieces = shard_tensors(case.spec, *layers, shard)
            tensors = {
                name: torch.full(piece.shape, 0.01, dtype=TORCH_DTYPES[case.dtype]) for name, piece in pieces.items()
            }
            options = StageOptions(parts, case.recompute)  # type: ignore[arg-type]
            self.stages.append(
                TrainingStage(
                    case.spec, *layers, tensors, TORCH_DTYPES[case.dtype], shard, self.group, case.sequence, options
                )
            )
        self.group.take()

    def run(self) -> dict[Named, int]:
        """One step of one micro-batch."""
        x = torch.zeros(self.case.rows, dtype=torch.int64)
        targets, passed = torch.ones_like(x), list[Passed]()
        for at, stage in enumerate(self.stages):
            stage.clear()
            last = targets if stage is self.stages[-1] else None
            passed.append(
                self._did((at, "F", None), partial(stage.forward, x, last, self.case.rows, later=self.case.later))
            )
            x = passed[-1].hidden if passed[-1].hidden is not None else x
        gradient: Tensor | float | None = 0.1
        for at in reversed(range(len(self.stages))):
            stage, parts = self.stages[at], self.case.parts[at]
            for part in range(parts) if parts > 1 else (None,):
                given = gradient if not part else None
                gradient = self._did((at, "B", part), partial(stage.backward, passed[at], given, part))
                self._did((at, "W", part), partial(stage.weigh, passed[at], part))
                self._did((at, "complete", part), partial(stage.complete, part))
        return self.sent

    def _did(self, name: Named, do: Callable[[], T]) -> T:
        found = do()
        self.sent[name] = self.group.take()[0]
        return found


def run_rank(endpoint: Endpoint, case: Case) -> dict[Named, int]:
    return Rank(endpoint, case).run()


def predicted(case: Case) -> dict[Named, tuple[int, ...]]:
    """Of every rank, by the rule."""
    found: dict[Named, tuple[int, ...]] = {}
    given = (case.spec, case.layout, case.setup)
    for stage, parts in enumerate(case.parts):
        found[stage, "F", None] = exchanged_bytes(action_exchanges(*given, stage, Kind.FORWARD, case.work), case.tp)
        for part in range(parts) if parts > 1 else (None,):
            kind = Kind.BACKWARD_INPUT if case.later else Kind.BACKWARD
            inside = action_exchanges(*given, stage, kind, case.work, part, parts)
            found[stage, "B", part] = exchanged_bytes(inside, case.tp)
            weights = action_exchanges(*given, stage, Kind.BACKWARD_WEIGHT, case.work, part, parts)
            found[stage, "W", part] = exchanged_bytes(weights, case.tp)
            completed = complete_exchanges(*given, stage, part, parts)
            found[stage, "complete", part] = exchanged_bytes(completed, case.tp)
    return found


def measured(case: Case) -> dict[Named, tuple[int, ...]]:
    ranks = ThreadRanks().run(run_rank, case.tp, case=case)
    return {name: tuple(rank[name] for rank in ranks) for name in ranks[0]}


def cases() -> Iterator[Case]:
    for model in MODELS:
        for sequence in (False, True):
            yield Case(model, 2, sequence)
            yield Case(model, 3, sequence, (0, 1, 4), (1, 2), "full")


@pytest.mark.parametrize("case", list(cases()), ids=str)
def test_every_model(case: Case) -> None:
    assert measured(case) == predicted(case)


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_any_cut_parts_and_shapes(data: st.DataObject) -> None:
    """Also where rows do not divide, and messages are large enough to go round in blocks."""
    tp = data.draw(st.integers(2, 4))
    cut = data.draw(st.sampled_from([(0, 4), (0, 1, 4), (0, 2, 4), (0, 1, 2, 4)]))
    parts = tuple(data.draw(st.integers(1, end - first)) for first, end in pairwise(cut))
    case = Case(
        data.draw(st.sampled_from(list(MODELS))),
        tp,
        data.draw(st.booleans()),
        cut,
        parts,
        data.draw(st.sampled_from(["none", "selective", "full"])),
        data.draw(st.sampled_from(["float32", "float64", "bfloat16"])),
        data.draw(st.sampled_from([(1, 1), (1, 5), (3, 7), (4, 60)])),
        data.draw(st.booleans()),
    )
    assert measured(case) == predicted(case)


def test_known_values() -> None:
    """2 ranks, 14 tokens of 24 numbers of 4 bytes: a sum sends all 1,344 bytes, a scatter or a gather half of them."""
    found = measured(Case("llama", 2, False))
    losses = 14 * 3 * 4
    assert found[0, "F", None] == (1344 * (1 + 2 * 4) + losses,) * 2
    assert found[0, "B", None] == (1344 * (1 + 2 * 4),) * 2
    assert found[0, "W", None] == found[0, "complete", None] == (0, 0)
    split = measured(Case("llama", 2, True))
    assert split[0, "F", None] == (672 * (1 + 4 * 4 + 1) + losses,) * 2
    assert split[0, "B", None] == (672 * (2 + 6 * 4 + 1),) * 2
    again = measured(Case("llama", 2, True, recompute="full"))
    assert again[0, "B", None] == (672 * (2 + (4 + 4) * 4 + 1),) * 2
    # 9 norms of 24 weights, each with room for 32
    assert split[0, "complete", None] == (9 * 32 * 4,) * 2


def test_one_rank_exchanges_nothing() -> None:
    case = Case(tp=1)
    assert {size for sizes in predicted(case).values() for size in sizes} == {0}
