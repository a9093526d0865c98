"""The forward on a device that is not the CPU. Untested on a GPU: shapes and devices only, on fake tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from plait.nn.batch import Batch
from plait.nn.cache import KVCache
from plait.nn.decoder import StageModel
from plait.nn.group import Alone
from plait.nn.training.collectives import Exchange
from plait.nn.training.linear import Pass, Products
from plait.nn.training.options import Place, StageOptions
from plait.nn.training.stage import TrainingStage
from plait.plans.round import MicroBatch, Row
from plait.plans.split import Recompute
from plait.spec.tensors import stage_tensors

from .models import tiny

aten = torch.ops.aten


@pytest.fixture
def no_device_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's brackets and copy_ ask a CPU-only build for a CUDA guard it lacks; the operators beneath do not."""
    monkeypatch.setattr(Tensor, "copy_", lambda x, value: aten.copy_.default(x, value))
    monkeypatch.setattr(Tensor, "__getitem__", _get)
    monkeypatch.setattr(Tensor, "__setitem__", _set)


def _view(x: Tensor, key: Any) -> tuple[Tensor, list[Tensor | None]]:
    """`x` with its slices and numbers taken, and the index tensors that are left."""
    indices: list[Tensor | None] = []
    keys = key if isinstance(key, tuple) else (key,)
    for part in keys:
        dim = len(indices)
        if part is Ellipsis:
            indices += [None] * (x.dim() - len(keys) + 1)
            continue
        if isinstance(part, slice):
            x = aten.slice.Tensor(x, dim, part.start, part.stop, part.step or 1)
        if isinstance(part, int):
            x = aten.select.int(x, dim, part)
        elif part is None:
            x = aten.unsqueeze(x, dim)
        if not isinstance(part, int):
            indices.append(part if isinstance(part, Tensor) else None)
    return x, indices if any(one is not None for one in indices) else []


def _get(x: Tensor, key: Any) -> Tensor:
    view, indices = _view(x, key)
    return aten.index.Tensor(view, indices) if indices else view


def _set(x: Tensor, key: Any, value: Tensor) -> None:
    view, indices = _view(x, key)
    if indices:
        aten.index_put_(view, indices, value)
    else:
        aten.copy_.default(view, value)


@pytest.mark.usefixtures("no_device_guards")
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


@pytest.mark.usefixtures("no_device_guards")
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("case", ["llama", "qwen3", "olmo2", "phi3-partial", "gpt2", "mistral-window"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_tensor_of_a_training_forward_stays_on_the_device(
    case: str, dtype: torch.dtype, recompute: Recompute
) -> None:
    """Layers alone, without autograd, whose nodes ask for a guard too."""
    spec = tiny(case).spec
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        shapes = stage_tensors(spec, 1, 2)
        weights = {name: torch.empty(shape, dtype=dtype, device="cuda") for name, shape in shapes.items()}
        stage = TrainingStage(spec, 1, 2, weights, dtype, options=StageOptions(recompute=recompute, dropout=0.1))
        x = torch.empty(2 * 9, spec.hidden, dtype=dtype, device="cuda")
        at = Pass(Exchange(Alone(), False, 18), Products(), 9, Place())
        out = stage._run(0, x, None, stage._sequences(2, 9, x), at)
    assert (out.device.type, out.dtype, out.shape) == ("cuda", dtype, x.shape)
    assert stage.flat.gradients.device.type == "cuda"
