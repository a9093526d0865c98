from __future__ import annotations

import subprocess
import sys

BLOCKED = """
import sys
for name in ("torch", "transformers", "numpy", "gguf", "safetensors"):
    sys.modules[name] = None
import plait.spec.cluster, plait.spec.gguf, plait.spec.huggingface, plait.spec.job, plait.spec.tensors
import plait.weights.index
"""


def test_spec_and_the_index_need_no_torch() -> None:
    subprocess.run([sys.executable, "-c", BLOCKED], check=True)
