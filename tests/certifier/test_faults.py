"""Seeded faults: each of them ships in a trainer somewhere, or could; `certify` fails for each, and says where.

Every case passes without the fault. The reference is made before the fault is seeded: it is one process's work.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from torch import Tensor

from plait.certifier import jobs, threads
from plait.certifier.case import Case
from plait.certifier.certify import Outcome, certify, compared
from plait.certifier.compare import What, bounds, whole_steps
from plait.certifier.planned import plan_of
from plait.certifier.reference import work_of
from plait.errors import RunError
from plait.executor.reduction import Reduction
from plait.nn.training import partial
from plait.nn.training.dropout import Dropout
from plait.nn.training.options import Place
from plait.nn.training.stage import TrainingStage
from plait.trainer import rank, worker
from plait.trainer.held import HeldStage
from plait.trainer.norm import Assembly
from plait.trainer.optimizer import StageOptimizer
from plait.trainer.reductions import StageReductions
from plait.trainer.tied import TiedSum
from plait.trainer.worker import TrainingWorker

Patch = pytest.MonkeyPatch
Seed = Callable[[Patch], None]


def certified(case: Case, patch: Patch, seed: Seed | None = None) -> Outcome:
    """The outcome of a case, with a fault in the mesh."""
    work, plan = work_of(case), plan_of(case)
    bounds(work, {"grad": 1.0})
    whole_steps(work)
    with patch.context() as seeded:
        if seed is not None:
            seed(seeded)
        return compared(case, plan)


def caught(case: Case, patch: Patch, seed: Seed) -> Outcome:
    """With the fault it fails, without it passes."""
    assert certified(case, patch).passed
    found = certified(case, patch, seed)
    assert not found.passed
    return found


def off(found: Outcome) -> set[What]:
    """What is beyond its bound."""
    assert not found.failure
    return {what for what in found.deviations if not found.within(what)}


def named(found: Outcome, what: What = "grad") -> str:
    """The parameter that is furthest off."""
    return found.deviations[what].name


# --- scale ----------------------------------------------------------------------------------------------------


def test_a_scale_off_by_the_micro_batches(monkeypatch: Patch) -> None:
    backward = TrainingStage.backward

    def scaled(self: TrainingStage, passed: Any, gradient: Any, part: int | None = None) -> Tensor | None:
        return backward(self, passed, gradient / 4 if isinstance(gradient, float) else gradient, part)

    found = caught(
        Case(pp=2, micro_batches=4, steps=1),
        monkeypatch,
        lambda patch: patch.setattr(TrainingStage, "backward", scaled),
    )
    assert off(found) == {"grad", "norm", "weights"}  # but not the loss: it hides this fault
    assert found.deviations["norm"].error == pytest.approx(0.75)
    assert named(found)


def test_a_mean_of_means_over_replicas_with_unequal_valid_tokens(monkeypatch: Patch) -> None:
    begin = TrainingWorker.begin

    def local(self: TrainingWorker, given: Any) -> None:
        setup = self._plan.setup
        sequences = setup.micro_batch * setup.micro_batches
        own = given.batch.rows(self._replica * sequences, sequences)
        begin(self, given._replace(valid=own.valid * setup.split.dp))

    found = caught(Case(dp=2, batch=4), monkeypatch, lambda patch: patch.setattr(TrainingWorker, "begin", local))
    assert {"loss", "grad", "norm", "weights"} <= off(found)


def test_a_mean_of_means_over_micro_batches_with_unequal_valid_tokens(monkeypatch: Patch) -> None:
    backward = TrainingStage.backward

    def local(self: TrainingStage, passed: Any, gradient: Any, part: int | None = None) -> Tensor | None:
        own = 1 / (2 * max(1, passed.valid)) if isinstance(gradient, float) else gradient
        return backward(self, passed, own, part)

    found = caught(
        Case(micro_batches=2, pp=2, steps=1), monkeypatch, lambda patch: patch.setattr(TrainingStage, "backward", local)
    )
    assert off(found) == {"grad", "norm", "weights"}


# --- tied embeddings ------------------------------------------------------------------------------------------


def test_a_tied_gradient_that_is_halved(monkeypatch: Patch) -> None:
    end = TiedSum.end

    def halved(self: TiedSum) -> None:
        end(self)
        for one in self._ends:
            first, stop = one.stage.tied or (0, 0)
            one.stage.flat.gradients[first:stop] *= 0.5

    found = caught(Case(pp=2, tied=True, steps=1), monkeypatch, lambda patch: patch.setattr(TiedSum, "end", halved))
    assert off(found) == {"grad", "norm", "weights"}
    assert named(found) == named(found, "weights") == "embed.weight"
    assert found.deviations["grad"].error == pytest.approx(0.5)


def test_a_tied_gradient_that_is_not_exchanged(monkeypatch: Patch) -> None:
    case = Case(pp=2, tied=True, steps=1)
    found = caught(case, monkeypatch, lambda patch: patch.setattr(TiedSum, "begin", lambda self: None))
    assert named(found) == "embed.weight"
    assert "hold different bits of embed.weight" in found.apart  # the copies drift apart: case T6


def test_a_tied_gradient_that_is_counted_twice_in_the_norm(monkeypatch: Patch) -> None:
    def twice(self: HeldStage) -> tuple[tuple[int, int], ...]:
        tied = () if self.stage.tied is None else (self.stage.tied,)
        return (*self.pieces, *tied)

    def seed(patch: Patch) -> None:
        patch.setattr(HeldStage, "counted", property(twice))
        patch.setattr(rank, "require_counted_once", lambda *given: None)  # the guard that would see it at once

    found = caught(Case(pp=2, tied=True, steps=1), monkeypatch, seed)
    assert off(found) == {"norm"}


# --- one norm for the mesh ------------------------------------------------------------------------------------


def own_squares(self: Assembly, row: Any, *, told: Any = Assembly.told) -> list[list[float]]:
    rows: list[list[float]] = told(self, row)
    if len(row) < 7:  # not the norm
        return rows
    return [[own[0] if index == self._endpoint.rank else 0.0, *own[1:]] for index, own in enumerate(rows)]


def test_a_norm_over_one_stage_only(monkeypatch: Patch) -> None:
    found = caught(Case(pp=2, steps=1), monkeypatch, lambda patch: patch.setattr(Assembly, "told", own_squares))
    assert off(found) == {"norm"}


def test_clipping_by_the_norm_of_each_stage(monkeypatch: Patch) -> None:
    found = caught(Case(pp=2, clip=0.01), monkeypatch, lambda patch: patch.setattr(Assembly, "told", own_squares))
    assert off(found) >= {"norm", "grad"}
    assert named(found)


# --- replicas -------------------------------------------------------------------------------------------------


def test_a_bucket_that_is_not_reduced(monkeypatch: Patch) -> None:
    gradients = StageReductions.gradients

    def lacking(self: StageReductions, part: int | None) -> Reduction | None:
        return gradients(self, part) if part != 1 else None

    case = Case(dp=2, layers=(2,), steps=1)
    found = caught(case, monkeypatch, lambda patch: patch.setattr(StageReductions, "gradients", lacking))
    assert off(found) >= {"grad", "weights"}
    assert named(found).startswith(("layers.0.", "embed"))  # the last part: the first layers


def test_gradients_of_replicas_that_are_summed_twice(monkeypatch: Patch) -> None:
    reduced = TrainingWorker.reduced

    def twice(self: TrainingWorker, one: Any, action: Any) -> None:
        reduced(self, one, action)
        if action.kind.value == "G":
            stage = self._stages[action.stage]
            first, end = stage.parts[action.part or 0]
            stage.flat.gradients[first:end] *= 2

    found = caught(Case(dp=2, steps=1), monkeypatch, lambda patch: patch.setattr(TrainingWorker, "reduced", twice))
    assert off(found) == {"grad", "norm", "weights"}
    assert found.deviations["norm"].error == pytest.approx(1.0)


def test_zero_gathers_a_stale_piece(monkeypatch: Patch) -> None:
    weights, update = StageReductions.weights, StageOptimizer.update
    before: dict[int, Tensor] = {}

    def updated(self: StageOptimizer, rate: float) -> None:
        before[id(self._held)] = self._held.stage.flat.weights.clone()
        update(self, rate)

    def stale(self: StageReductions) -> Reduction | None:
        found, at = weights(self), 0
        assert found is not None
        if self._held.index == 1:
            for first, end in self._held.pieces:
                start = found.bounds[1] + at
                found.flat[start : start + end - first] = before[id(self._held)][first:end]
                at += end - first
        return found

    def seed(patch: Patch) -> None:
        patch.setattr(StageOptimizer, "update", updated)
        patch.setattr(StageReductions, "weights", stale)

    found = caught(Case(dp=2, zero=1, layers=(2,), steps=1), monkeypatch, seed)
    assert off(found) == {"weights"}
    assert named(found, "weights")


# --- the backward ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("schedule", "virtual"), [("zb-h1", 1), ("zb-h2", 1), ("zb-v", 2), ("dualpipe-v", 2)])
def test_a_weight_product_of_one_micro_batch_that_is_dropped(schedule: str, virtual: int, monkeypatch: Patch) -> None:
    seen: set[int] = set()

    def dropped(self: TrainingWorker, one: Any, action: Any) -> None:
        if id(self) in seen:  # all but the first
            self._stages[action.stage].weigh(self._passed[action.stage, action.micro_batch], action.part)
        seen.add(id(self))
        self._came_back(one, action)

    case = Case(pp=2, virtual=virtual, schedule=schedule, micro_batches=3)
    found = caught(case, monkeypatch, lambda patch: patch.setattr(TrainingWorker, "weigh", dropped))
    assert off(found) >= {"grad", "weights"}
    assert ".weight" in named(found)


def test_a_layer_that_the_cut_leaves_out(monkeypatch: Patch) -> None:
    make = TrainingStage.__init__

    def short(self: TrainingStage, *given: Any, **named: Any) -> None:
        make(self, *given, **named)
        if self.first > 0:
            self._runs[0] = self._runs[0][:-1]

    found = caught(
        Case(pp=2, layers=(1, 2)), monkeypatch, lambda patch: patch.setattr(TrainingStage, "__init__", short)
    )
    assert off(found) == {"loss", "grad", "norm", "weights"}


# --- tensor groups --------------------------------------------------------------------------------------------


def test_t10_norms_that_see_only_their_rows_and_are_not_completed(monkeypatch: Patch) -> None:
    def unsummed(self: partial.Partial, part: int) -> None:
        self._parameters.fill(part)

    case = Case(tp=2, sequence=True, steps=1)
    found = caught(case, monkeypatch, lambda patch: patch.setattr(partial.Partial, "complete", unsummed))
    assert off(found) >= {"grad", "weights"}
    assert "norm.weight" in named(found)
    assert "norm.weight" in found.apart


def test_kv_heads_whose_copies_are_not_summed(monkeypatch: Patch) -> None:
    case = Case(tp=3, model="grouped", steps=1)
    found = caught(case, monkeypatch, lambda patch: patch.setattr(partial, "_shared", lambda shard, group: []))
    assert named(found).endswith((".k.weight", ".v.weight"))
    assert "KV head" in found.apart


# --- dropout and recompute ------------------------------------------------------------------------------------


def test_a_dropout_mask_that_is_drawn_per_rank(monkeypatch: Patch) -> None:
    def local(step: int, sequence: int) -> Place:
        return Place(step, 0)

    case = Case(dp=2, dropout=0.3)
    found = caught(case, monkeypatch, lambda patch: patch.setattr(worker, "Place", local))
    assert "grad" in off(found)
    assert certified(
        replace(case, dropout=0.0), monkeypatch, lambda patch: patch.setattr(worker, "Place", local)
    ).passed


def test_a_dropout_mask_that_is_drawn_again_in_the_recompute(monkeypatch: Patch) -> None:
    mask = Dropout.mask
    seen: set[tuple[int, Any, int]] = set()

    def again(self: Dropout, rows: Tensor, at: Any) -> Tensor:
        key = (id(self), at.place, id(at))
        kept = mask(self, rows, at)
        if key in seen:
            return kept.roll(1, 0)
        seen.add(key)
        return kept

    case = Case(pp=2, dropout=0.3, recompute="full", steps=1)
    found = caught(case, monkeypatch, lambda patch: patch.setattr(Dropout, "mask", again))
    assert off(found) == {"grad", "norm", "weights"}


# --- the update -----------------------------------------------------------------------------------------------


def test_weights_that_are_updated_twice(monkeypatch: Patch) -> None:
    update = StageOptimizer.update

    def twice(self: StageOptimizer, rate: float) -> None:
        update(self, rate)
        update(self, rate)

    found = caught(Case(steps=1), monkeypatch, lambda patch: patch.setattr(StageOptimizer, "update", twice))
    assert off(found) == {"weights"}
    assert named(found, "weights")


def test_norms_that_decay(monkeypatch: Patch) -> None:
    from plait.trainer import optimizer

    decays = optimizer._decays

    def all_of_them(held: HeldStage, weight_decay: float) -> Any:
        return ((weight_decay, span) for _, span in decays(held, weight_decay))

    found = caught(Case(steps=1), monkeypatch, lambda patch: patch.setattr(optimizer, "_decays", all_of_them))
    assert off(found) == {"weights"}
    assert named(found, "weights").endswith("norm.weight")


def test_masters_that_are_not_published(monkeypatch: Patch) -> None:
    update = StageOptimizer.update

    def unpublished(self: StageOptimizer, rate: float) -> None:
        flat = self._held.stage.flat
        before = flat.weights.clone()
        update(self, rate)
        flat.weights.copy_(before)

    case = Case(dtype="bfloat16", steps=1)
    found = caught(case, monkeypatch, lambda patch: patch.setattr(StageOptimizer, "update", unpublished))
    assert off(found) == {"weights"}
    assert named(found, "weights")


def test_a_frozen_tensor_that_learns(monkeypatch: Patch) -> None:
    case = Case(pp=2, frozen=("layers.0.*",), steps=1)
    found = caught(case, monkeypatch, lambda patch: patch.setattr(rank, "frozen_names", lambda *given: frozenset()))
    assert off(found) == {"grad", "norm", "weights"}
    assert named(found).startswith("layers.0.")
    assert named(found, "weights").startswith("layers.0.")


# --- meshes that break ----------------------------------------------------------------------------------------


def test_a_rank_that_fails_is_told(monkeypatch: Patch) -> None:
    def broken(self: TrainingWorker, one: Any, action: Any) -> None:
        raise ZeroDivisionError("seeded")

    found = caught(Case(pp=2, dp=2), monkeypatch, lambda patch: patch.setattr(TrainingWorker, "update", broken))
    assert found.failure.startswith("rank ")
    assert found.failure.endswith(": ZeroDivisionError: seeded")


def test_a_mesh_that_is_stuck_is_told(monkeypatch: Patch) -> None:
    case = Case(pp=2)
    plan = plan_of(case)

    def stuck(case: Case, plan: Any, endpoint: Any, stalled: Callable[[str], None], first: Any) -> Any:
        if endpoint.rank == 1:
            stalled("rank 1 has waited 0.1 s for 0:1RF0 of rank 0")
        endpoint.wait(lambda: None, "the seeded fault")

    monkeypatch.setattr(threads, "LIMIT_S", 0.5)
    found = compared(case, plan, lambda case, plan: threads.run_threads(case, plan, stuck))
    assert found.failure == (
        "the mesh is stuck: after 0.5 s ranks 0, 1 have not ended; rank 1 has waited 0.1 s for 0:1RF0 of rank 0"
    )


def test_a_process_that_dies_is_told(monkeypatch: Patch) -> None:
    def dying() -> subprocess.Popen[bytes]:
        code = "import sys; sys.stdin.readline()"
        return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    monkeypatch.setattr(jobs, "_start", dying)
    with pytest.raises(RunError) as caught:
        certify(Case(), Case(seed=1), jobs=2)
    assert str(caught.value).startswith("a process that compares meshes ended at: plait certify")


def test_a_case_that_breaks_our_own_code_is_an_outcome_of_its_process() -> None:
    (found,) = jobs._outcomes(iter([msgspec.json.encode(Case(dp=0))]))
    assert not found.passed
    assert found.failure == "PlanError: --dp 0 was asked for, but it must be at least 1"
