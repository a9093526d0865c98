"""The shared memory as a backend of torch.distributed: each case gives what gloo gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.comm.torch_rank import CASES, numbers

SIZE = 3
RANK = Path(__file__).with_name("torch_rank.py")
Outcome = list[dict[str, Any]]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """What every rank got, over both backends."""
    folder = tmp_path_factory.mktemp("meetings")
    environment = os.environ | {
        "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
        "PYTHONPATH": str(RANK.parents[2]),
        "OMP_NUM_THREADS": "1",
    }
    subprocess.run([sys.executable, str(RANK), str(SIZE), str(folder)], check=True, env=environment, timeout=300)
    return {
        backend: [json.loads((folder / f"{backend}{rank}.json").read_text()) for rank in range(SIZE)]
        for backend in ("gloo", "plait")
    }


@pytest.mark.parametrize("case", [case.__name__ for case in CASES if case.__name__ not in ("ddp", "fsdp")])
def test_each_case_gives_what_gloo_gives(outcomes: dict[str, Outcome], case: str) -> None:
    for plait, gloo in zip(outcomes["plait"], outcomes["gloo"], strict=True):
        if case == "tensor_parallel":
            torch.testing.assert_close(plait[case], gloo[case], rtol=1e-5, atol=1e-6)
        else:
            assert plait[case] == gloo[case]


@pytest.mark.parametrize("case", ["ddp", "fsdp"])
def test_training_gives_what_gloo_gives(outcomes: dict[str, Outcome], case: str) -> None:
    """Gradients of three ranks: gloo adds in another order. All of our ranks have the same bits."""
    first = outcomes["plait"][0][case]
    for plait, gloo in zip(outcomes["plait"], outcomes["gloo"], strict=True):
        assert plait[case] == first
        for ours, theirs in zip(plait[case], gloo[case], strict=True):
            torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-5, atol=1e-6)


def carries(kind: str) -> str:
    return (
        f'backend "plait" carries dense CPU tensors between the processes of one host, not a tensor {kind}: '
        'move it to the CPU, or give that device a backend of its own, as in "cpu:plait,cuda:nccl"'
    )


def test_refusals(outcomes: dict[str, Outcome]) -> None:
    for rank in outcomes["plait"]:
        assert rank["ours"][0] == [
            carries("on meta"),
            "an average of torch.int64 is not a whole number: sum, and divide as you need",
            "all_gather_into_tensor of 3 ranks with 2 items each needs a tensor of 6 items for all, not 5",
            'backend "plait" receives only from a rank that is named: give recv its src',
            carries("of layout torch.sparse_coo"),
            "a tensor of torch.uint16 cannot travel; these can: float32, float64, bfloat16, int64, float16, int32, "
            "int16, int8, uint8, bool",
        ]


def test_averages_and_strided_sums(outcomes: dict[str, Outcome]) -> None:
    mean = torch.stack([numbers(rank, 4) for rank in range(SIZE)]).sum(0) / SIZE
    total = torch.stack([numbers(rank, 4, 6) for rank in range(SIZE)]).sum(0)
    for rank, outcome in enumerate(outcomes["plait"]):
        expected = numbers(rank, 4, 6)
        expected[:, ::2] = total[:, ::2]
        assert outcome["ours"][1:] == [mean.tolist(), expected.tolist()]
