"""What a rank updates and remembers, and that ranges of the flat storage are divided without gap or overlap."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.comm.contract import Endpoint
from plait.plans.pieces import PIECE_ITEMS, piece_bounds
from plait.spec.tensors import model_tensors
from plait.trainer.held import joined, overlaps
from plait.trainer.norm import square_sum
from plait.trainer.optimizer import StageOptimizer
from plait.trainer.rank import TrainingRank
from plait.trainer.settings import Rate, Settings
from tests.comm.ranks import ThreadRanks

from .meshes import Mesh, tensors_of, tiny


@given(items=st.integers(0, 500), replicas=st.integers(1, 9))
def test_pieces_are_even_and_end_where_cache_lines_do(items: int, replicas: int) -> None:
    bounds = piece_bounds(items, replicas)
    assert (bounds[0], bounds[-1], len(bounds)) == (0, items, replicas + 1)
    sizes = [end - first for first, end in pairwise(bounds)]
    assert all(bound % PIECE_ITEMS == 0 for bound in bounds[:-1] if bound < items)
    assert min(sizes) >= 0
    assert max(sizes) - min(sizes) < 2 * PIECE_ITEMS


def test_known_pieces() -> None:
    assert piece_bounds(100, 3) == (0, 32, 64, 100)
    assert piece_bounds(16, 4) == (0, 0, 0, 0, 16)
    assert piece_bounds(0, 2) == (0, 0, 0)


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(lambda ends: (min(ends), max(ends))), max_size=6)


def items_of(spans: object) -> set[int]:
    return {item for first, end in spans for item in range(first, end)}  # type: ignore[attr-defined]


@given(one=SPANS, other=SPANS)
def test_spans_keep_their_items(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    ours, theirs = joined(_apart(one)), joined(_apart(other))
    assert items_of(ours) == items_of(one)
    assert all(a[1] < b[0] for a, b in pairwise(ours))
    both = list(overlaps(ours, theirs))
    assert items_of(both) == items_of(one) & items_of(other)
    assert sum(end - first for first, end in both) == len(items_of(both))


def _apart(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same items, no span over another."""
    found, at = [], 0
    for first, end in sorted(spans):
        if end > max(first, at):
            found.append((max(first, at), end))
            at = end
    return found


@settings(max_examples=30)
@given(
    sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=4),
    dtype=st.sampled_from((torch.float64, torch.float32)),
    seed=st.integers(0, 5),
)
def test_the_sum_of_squares(sizes: list[int], dtype: torch.dtype, seed: int) -> None:
    spans, at = [], 5
    for size in sizes:
        spans.append((at, at + size))
        at += size + 7
    flat = torch.randn(at, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
    kept = flat.clone()
    expected = math.fsum(float(item) ** 2 for first, end in spans for item in flat[first:end])
    assert square_sum(flat, spans) == pytest.approx(expected, rel=1e-13 if dtype == torch.float64 else 2e-7)
    assert torch.equal(flat, kept)


def optimizers(mesh: Mesh, told: Settings, **changes: object) -> list[dict[str, int]]:
    """By rank, how many items its optimizers remember of each kind, and with which decays."""
    spec = tiny(4, **changes)
    plan, tensors = mesh.plan(spec), tensors_of(spec)

    def program(endpoint: Endpoint) -> dict[str, int]:
        rank = TrainingRank(plan, spec, told, endpoint, lambda name, _: tensors[name], buckets=mesh.buckets)
        found: dict[str, int] = {}
        for number in rank.stages:
            for slices in StageOptimizer(rank._held[number], told).slices:
                for name, moments in slices.moments.items():
                    found[name] = found.get(name, 0) + sum(one.numel() for one in moments)
                decay = f"decays {slices.decay:g}"
                found[decay] = found.get(decay, 0) + sum(one.numel() for one in slices.weights)
        return found

    return ThreadRanks().run(program, plan.layout.ranks)


def test_with_zero_each_replica_remembers_its_pieces_only() -> None:
    told = Settings(Rate(0.1), weight_decay=0.1)
    whole = optimizers(Mesh(), told)[0]
    parameters = sum(math.prod(shape) for shape in model_tensors(tiny(4)).values())
    assert parameters <= whole["exp_avg"] < parameters + 50 * PIECE_ITEMS  # blocks are padded
    assert optimizers(Mesh(dp=4), told)[0]["exp_avg"] == whole["exp_avg"]
    shared = [found["exp_avg"] for found in optimizers(Mesh(dp=4, zero=1, buckets=2), told)]
    assert sum(shared) == whole["exp_avg"]
    assert max(shared) - min(shared) <= 2 * 2 * PIECE_ITEMS


def test_matrices_decay_and_norms_do_not() -> None:
    spec = tiny(4)
    vectors = [shape for shape in model_tensors(spec).values() if len(shape) == 1]
    found = optimizers(Mesh(), Settings(Rate(0.1), weight_decay=0.1))[0]
    padded = sum(-(-math.prod(shape) // PIECE_ITEMS) * PIECE_ITEMS for shape in vectors)
    assert found["decays 0"] == padded
    assert found["decays 0.1"] == found["exp_avg"] - padded
    assert set(optimizers(Mesh(), Settings(Rate(0.1), optimizer="sgd"))[0]) == {"decays 0"}
    assert "momentum" in optimizers(Mesh(), Settings(Rate(0.1), optimizer="sgd", momentum=0.5))[0]


def test_what_is_frozen_is_not_updated() -> None:
    told = Settings(Rate(0.1), frozen=("layers.*",))
    spec = tiny(4)
    learning = {name: shape for name, shape in model_tensors(spec).items() if not name.startswith("layers.")}
    found = optimizers(Mesh(), told)[0]
    assert found["exp_avg"] == sum(-(-math.prod(shape) // PIECE_ITEMS) * PIECE_ITEMS for shape in learning.values())
    # a stage of which all is frozen has nothing to update, and its step goes on
    assert optimizers(Mesh(pp=4, dp=2, zero=1), told)[1] == {}


def test_masters_begin_with_what_the_narrow_weights_have_lost() -> None:
    mesh, spec = Mesh(dtype="bfloat16"), tiny(2)
    plan, tensors = mesh.plan(spec), tensors_of(spec)

    def program(endpoint: Endpoint) -> dict[str, bool]:
        stage = TrainingRank(plan, spec, Settings(Rate(0.1)), endpoint, lambda name, _: tensors[name]).stages[0]
        assert all(torch.equal(weight, tensors[name].to(torch.bfloat16)) for name, weight in stage.weights.items())
        return {
            name: torch.equal(stage.flat.masters[first:end], tensors[name].float().flatten())
            for name, (first, end) in stage.places.items()
        }

    (kept,) = ThreadRanks().run(program, 1)
    assert all(kept.values())
