"""A rank's peak resident memory, everything included, stays below its own weights × 1.3 + 400 MB."""

from __future__ import annotations

import json
import subprocess
import sys
from math import prod
from pathlib import Path

import pytest
import safetensors.torch
import torch

from plait.spec.huggingface import spec_from_config
from plait.spec.tensors import model_tensors, stage_tensors
from plait.weights.index import WeightsIndex, open_index
from plait.weights.names import huggingface_tensors

RANK = """
import resource, sys
from pathlib import Path
import torch
from plait.weights.index import WeightsIndex
from plait.weights.load import load_stage
torch.set_num_threads(1)
index = WeightsIndex.from_bytes(Path(sys.argv[1]).read_bytes())
tensors = load_stage(index, int(sys.argv[2]), int(sys.argv[3]), getattr(torch, sys.argv[4]))
own = sum(tensor.nbytes for tensor in tensors.values())
status = Path("/proc/self/status")
if status.exists():
    # not ru_maxrss: on Linux that begins with the peak of the process that started this one
    peak = int(next(line for line in status.read_text().splitlines() if line.startswith("VmHWM")).split()[1]) * 1024
else:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in bytes, on macOS
print(own, peak)
"""


def own_and_peak(index: WeightsIndex, first: int, end: int, dtype: str, folder: Path) -> tuple[int, int]:
    """Bytes of a rank's weights and of its process at its largest. A fresh process: a peak never comes down."""
    passed = folder / "index"
    passed.write_bytes(index.to_bytes())
    ran = subprocess.run(
        [sys.executable, "-c", RANK, str(passed), str(first), str(end), dtype],
        check=True,
        capture_output=True,
        text=True,
    )
    own, peak = map(int, ran.stdout.split())
    size = torch.empty(0, dtype=getattr(torch, dtype)).element_size()
    assert own == size * sum(map(prod, stage_tensors(index.spec, first, end).values()))
    return own, peak


def allowed(own: int) -> float:
    return own * 1.3 + 400e6


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("stage", [(0, 12), (12, 30)])
def test_the_demo_model_in_two_stages(stage: tuple[int, int], dtype: str, demo: Path, tmp_path: Path) -> None:
    own, peak = own_and_peak(open_index(demo), *stage, dtype, tmp_path)
    assert peak < allowed(own)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """381 MiB of bfloat16 in one file, larger than what the bound leaves beside the weights of a small stage."""
    directory = tmp_path_factory.mktemp("large")
    config = {
        "model_type": "llama",
        "vocab_size": 32000,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 8,
        "num_attention_heads": 16,
    }
    (directory / "config.json").write_text(json.dumps(config))
    spec = spec_from_config(config, "large")
    assert 2 * sum(map(prod, model_tensors(spec).values())) > 380e6
    tensors = {
        each.name: torch.ones(each.shape, dtype=torch.bfloat16) for each in huggingface_tensors(spec, {"model.": None})
    }
    safetensors.torch.save_file(tensors, directory / "model.safetensors")
    return directory


@pytest.mark.parametrize(
    ("first", "end", "dtype"), [(0, 8, "bfloat16"), (0, 8, "float32"), (3, 4, "bfloat16"), (4, 8, "float32")]
)
def test_a_larger_file(first: int, end: int, dtype: str, large: Path, tmp_path: Path) -> None:
    own, peak = own_and_peak(open_index(large), first, end, dtype, tmp_path)
    assert peak < allowed(own)
