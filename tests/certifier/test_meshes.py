"""Meshes against one process: some of the grid, random ones, narrow dtypes, and ranks as processes."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import plait
from plait.certifier.case import Case
from plait.certifier.certify import Certificate, certify
from plait.certifier.grid import WAYS, drawn, grid
from plait.certifier.words import line

SOME = tuple(grid())[3::41]


def failures(certificate: Certificate) -> list[str]:
    return [line(outcome) for outcome in certificate.outcomes if not outcome.passed]


@pytest.mark.parametrize("case", SOME, ids=lambda case: case.command().removeprefix("plait certify "))
def test_some_of_the_grid(case: Case) -> None:
    assert failures(certify(case)) == []


@pytest.mark.soak
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_whole_grid(dtype: str) -> None:
    certificate = certify(*grid(0, dtype), jobs=2)  # type: ignore[arg-type]
    assert failures(certificate) == []
    assert len(certificate.outcomes) >= 2000


def cases(most: int) -> st.SearchStrategy[Case]:
    """Any mesh of at most so many ranks, with any cut, micro-batches and model."""
    meshes = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 3)).filter(
        lambda mesh: mesh[0] * mesh[1] * mesh[2] <= most
    )
    return st.builds(_case, meshes, st.sampled_from(WAYS), st.sampled_from(("float64", "float32")), st.integers(0))


def _case(mesh: tuple[int, int, int], way: tuple[str, int], dtype: str, seed: int) -> Case:
    dp, pp, tp = mesh
    schedule, virtual = way
    case = Case(dp=dp, pp=pp, tp=tp, schedule=schedule, virtual=virtual, dtype=dtype, seed=seed % 97)  # type: ignore[arg-type]
    return drawn(case, Random(seed))


anything = settings(deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)


@settings(anything, max_examples=20)
@given(case=cases(8))
def test_any_small_mesh(case: Case) -> None:
    assert failures(certify(case)) == []


@pytest.mark.soak
@settings(anything, max_examples=300)
@given(case=cases(24))
def test_any_mesh(case: Case) -> None:
    assert failures(certify(case)) == []


BFLOAT16 = (
    Case(dp=2, pp=2, tp=2, micro_batches=2, dtype="bfloat16", tied=True),
    Case(dp=3, zero=1, micro_batches=2, dtype="bfloat16", model="gpt2", layers=(3,)),
    Case(pp=3, schedule="zb-h1", micro_batches=4, dtype="bfloat16", model="qwen3", recompute="full", dropout=0.1),
)


@pytest.mark.parametrize("case", BFLOAT16, ids=lambda case: case.command().removeprefix("plait certify "))
def test_bfloat16_is_off_by_its_rounding_only(case: Case) -> None:
    certificate = certify(case)
    assert failures(certificate) == []
    assert certificate.outcomes[0].deviations["grad"].error > 1e-4  # the ranks do compute in it


@pytest.mark.soak
def test_ranks_as_processes_over_shared_memory() -> None:
    assert failures(certify(Case(pp=2, tied=True, micro_batches=2, transport="shm"))) == []


@pytest.mark.soak
def test_ranks_as_processes_over_torch_distributed() -> None:
    assert failures(certify(Case(dp=2, zero=1, micro_batches=2, transport="c10d"))) == []


@pytest.mark.soak
@pytest.mark.parametrize("transport", ["shm", "c10d"])
@pytest.mark.parametrize(
    "options",
    [
        {"dp": 2, "pp": 2, "tp": 2, "micro_batches": 3, "sequence": True, "dtype": "float32", "dropout": 0.1},
        {"pp": 3, "schedule": "zb-v", "virtual": 2, "micro_batches": 5, "tied": True},
        {"pp": 2, "tp": 3, "schedule": "interleaved", "virtual": 2, "micro_batches": 4, "recompute": "full"},
        {"dp": 3, "zero": 1, "micro_batches": 2, "model": "gpt2", "dtype": "bfloat16"},
    ],
    ids=str,
)
def test_meshes_of_processes(transport: str, options: dict[str, object]) -> None:
    assert failures(certify(Case(transport=transport, **options))) == []  # type: ignore[arg-type]


def test_the_public_name() -> None:
    assert plait.certify(plait.Case(dp=2)).passed
