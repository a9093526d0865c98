"""The grid of `certify --all`: large enough, a pure function, and every value of every option with every schedule."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import fields
from typing import Any

import pytest
import typer.main

from plait.certifier.case import Case
from plait.certifier.data import LENGTH, sequences
from plait.certifier.grid import DP, MICRO_BATCHES, PP, TP, WAYS, grid
from plait.certifier.models import FAMILIES
from plait.certifier.planned import plan_of
from plait.cli.certify import case_of
from plait.cli.main import app
from plait.nn.training.loss import IGNORED
from plait.schedules.training import TRAINING_SCHEDULES

CASES = tuple(grid())


def test_the_grid_is_large_and_nothing_is_in_it_twice() -> None:
    assert len(CASES) >= 2000
    assert len(set(CASES)) == len(CASES)
    meshes = {(case.schedule, case.virtual, case.dp, case.pp, case.tp) for case in CASES}
    assert len(meshes) == len(WAYS) * len(DP) * len(PP) * len(TP)


def test_the_grid_is_a_function_of_its_seed() -> None:
    assert tuple(grid()) == CASES
    assert {case.seed for case in grid(1)} == {1}
    assert [case.micro_batches for case in grid(1)] != [case.micro_batches for case in CASES]


def test_every_mesh_is_there_in_both_dtypes() -> None:
    found = Counter((case.schedule, case.virtual, case.dp, case.pp, case.tp, case.dtype) for case in CASES)
    wanted = {key: 1 if key[2] * key[3] * key[4] >= 24 else 3 for key in found}
    assert found == wanted
    assert len(found) == 2 * len(WAYS) * len(DP) * len(PP) * len(TP)
    assert {case.dtype for case in grid(0, "float32")} == {"float32"}


@pytest.mark.parametrize("schedule", TRAINING_SCHEDULES)
def test_every_schedule_has_every_value_of_everything(schedule: str) -> None:
    cases = [case for case in CASES if case.schedule == schedule]
    values: dict[str, set[Any]] = {
        "dp": set(DP),
        "pp": set(PP),
        "tp": set(TP),
        "micro_batches": set(range(1, MICRO_BATCHES + 1)),
        "zero": {0, 1},
        "recompute": {"none", "selective", "full"},
        "tied": {False, True},
        "dropout": {0.0, 0.1, 0.3},
        "sequence": {False, True},
        "dtype": {"float64", "float32"},
        "steps": {1, 2},
        "model": set(FAMILIES),
        "buckets": {1, 2, 3, 4},
        "capacity": {1, 2, 3},
    }
    for name, wanted in values.items():
        assert {getattr(case, name) for case in cases} == wanted, name
    assert any(case.micro_batches < case.pp for case in cases)
    assert any(case.micro_batches > case.pp * case.virtual > 1 for case in cases)
    assert any(len(set(case.layers)) > 1 for case in cases)
    assert any(case.zero and case.dp > 1 and case.tied and case.pp > 1 for case in cases)
    assert any(case.shares and len(set(case.shares)) > 1 for case in cases)
    assert any(case.clip for case in cases)
    assert any(case.frozen for case in cases)


def test_virtual_stages_from_one_to_three() -> None:
    assert {case.virtual for case in CASES} == {1, 2, 3}


def test_every_case_can_be_planned() -> None:
    for case in CASES[:: len(CASES) // 240]:
        plan = plan_of(case)
        assert plan.layout.ranks == case.dp * case.pp * case.tp
        assert plan.micro_batches == case.micro_batches
        if len(case.layers) > 1:
            assert tuple(end - first for first, end in plan.layout.cut) == case.layers


def test_the_command_of_a_case_is_that_case() -> None:
    command = typer.main.get_command(app).commands["certify"]  # type: ignore[attr-defined]
    for case in [Case(), *CASES[::17]]:
        assert case.command().startswith("plait certify")
        context = command.make_context("certify", shlex.split(case.command())[2:])
        assert case_of(context) == case, case.command()


def test_every_field_of_a_case_is_an_option() -> None:
    case = Case(tied=True, recompute="full", frozen=("*norm*", "embed*"), layers=(2, 1), batch=6, model="gpt2")
    assert case.command() == (
        "plait certify --recompute full --tied --model gpt2 --layers 2,1 --batch 6 --frozen '*norm*,embed*'"
    )
    command = typer.main.get_command(app).commands["certify"]  # type: ignore[attr-defined]
    assert {field.name for field in fields(Case)} <= {option.name for option in command.params}


def test_batches_put_unequal_numbers_of_valid_tokens_everywhere() -> None:
    given = sequences(19, 12, 0, 0)
    counts = (given.targets != IGNORED).sum(1).tolist()
    assert sum(counts) == given.valid
    assert counts[1::4] == [0, 0, 0]
    assert counts[2::4] == [1, 1, 1]
    assert all(0 < count <= LENGTH for index, count in enumerate(counts) if index % 4 in (0, 3))
    half = sequences(19, 6, 0, 0)
    assert given.tokens[:6].equal(half.tokens)
    assert not given.tokens.equal(sequences(19, 12, 1, 0).tokens)
    assert not given.tokens.equal(sequences(19, 12, 0, 1).tokens)
    assert int(given.tokens.max()) < 19
