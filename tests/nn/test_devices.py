"""The forward on a device that is not the CPU. Untested on a GPU: shapes and devices only, on fake tensors."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from plait.nn.batch import Batch
from plait.nn.cache import KVCache
from plait.nn.decoder import StageModel
from plait.plans.round import MicroBatch, Row
from plait.spec.tensors import stage_tensors

from .models import tiny


@pytest.mark.parametrize("case", ["llama", "qwen3", "olmo2", "phi3-partial", "gpt2", "mistral-window"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_tensor_of_a_forward_stays_on_the_device(case: str, dtype: torch.dtype) -> None:
    forward = StageModel.forward.__wrapped__  # type: ignore[attr-defined]  # fake devices refuse inference_mode
    spec = tiny(case).spec
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        shapes = stage_tensors(spec, 0, spec.layers)
        weights = {name: torch.empty(shape, dtype=dtype, device="cuda") for name, shape in shapes.items()}
        model = StageModel(spec, 0, spec.layers, weights, dtype, rows=4)
        cache = KVCache(spec, 0, spec.layers, 4, 64, dtype, "cuda")
        rows = (Row(0, 0, 0, 9, True), Row(1, 1, 4, 1, True), Row(2, 2, 7, 1, True), Row(3, 3, 6, 5, False))
        ids = torch.zeros(16, dtype=torch.int64, device="cuda")
        logits = forward(model, Batch.of(MicroBatch(rows), "cuda"), ids, cache)
    assert (logits.device.type, logits.dtype, logits.shape) == ("cuda", torch.float32, (3, spec.vocab))
