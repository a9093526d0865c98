"""Tensor groups of real processes train as one process does, and their copies stay equal to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from plait.comm.contract import Endpoint
from plait.spec.shards import make_shards
from tests.comm.ranks import C10dRanks, ShmRanks, Workers

from .training_steps import BOUND, Learner, Whole, copies, digest, rank_steps, steps, worst_error

BATCH, LENGTH = 2, 40


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    shared = Workers()
    yield shared
    shared.close()


def trained(endpoint: Endpoint, path: str, sequence: bool) -> dict[str, object]:
    """The largest error against one process, and digests of what other ranks have as well."""
    made, expected = torch.load(path, weights_only=False)
    shard = make_shards(made.spec, endpoint.size)[endpoint.rank]
    found = rank_steps(endpoint, made, torch.float64, BATCH, LENGTH, sequence)
    errors = [worst_error(made, *both, shard, torch.float64) for both in zip(found, expected, strict=True)]
    return {"error": max(errors), "copies": digest(copies(made, found[-1], shard))}


@pytest.mark.parametrize(
    ("transport", "case", "tied", "ranks", "sequence"),
    [
        (ShmRanks, "llama-9-3-tied", True, 2, False),
        (ShmRanks, "llama-9-3-tied", False, 3, True),
        (ShmRanks, "gpt2", True, 3, False),
        (ShmRanks, "olmo2", False, 3, True),
        (ShmRanks, "qwen3", True, 2, True),
        (C10dRanks, "llama-9-3-tied", True, 2, True),
        (C10dRanks, "olmo2", False, 3, False),
    ],
)
def test_processes_equal_one(
    workers: Workers,
    tmp_path: Path,
    transport: type[ShmRanks | C10dRanks],
    case: str,
    tied: bool,
    ranks: int,
    sequence: bool,
) -> None:
    from .training_ranks import model  # imports transformers, which the ranks' processes need not

    made = model(case, tied)
    learner = Learner(made, torch.float64)
    one_process = [learner.step(one) for one in steps(BATCH, LENGTH)]
    path = str(tmp_path / "model")
    torch.save((Whole(made.spec, dict(made.tensors)), one_process), path)
    outcomes = transport(workers).run(trained, ranks, path=path, sequence=sequence)
    assert max(one["error"] for one in outcomes) < BOUND[torch.float64]
    known: dict[str, str] = {}
    for one in outcomes:
        for what, hashed in one["copies"].items():
            assert known.setdefault(what, hashed) == hashed, f"ranks differ in the {what}"
