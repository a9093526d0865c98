"""What load_stage reads is what transformers saved, for every family, single and sharded, whole and in stages."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_models as models
import torch

from plait.spec.tensors import stage_tensors
from plait.weights.index import WeightsIndex, open_index
from plait.weights.load import load_stage


def assert_same(loaded: dict[str, torch.Tensor], reference: dict[str, torch.Tensor]) -> None:
    assert loaded.keys() == reference.keys()
    for name, tensor in loaded.items():
        assert tensor.is_contiguous(), name
        assert torch.equal(tensor, reference[name].to(tensor.dtype)), name


@pytest.mark.parametrize("options", [{}, {"max_shard_size": "20KB"}], ids=["single", "sharded"])
@pytest.mark.parametrize("family", models.CONFIGS)
def test_every_family(family: str, options: dict[str, str], tmp_path: Path) -> None:
    model = models.make(family)
    index = open_index(models.save(model, tmp_path / "tiny", **options))
    assert (len(index.files) > 1) == bool(options)
    assert index.notes == ()
    assert WeightsIndex.from_bytes(index.to_bytes()) == index
    reference = models.ours(family, model)
    assert_same(load_stage(index, 0, 3, torch.float32), reference)
    for first, end in ((0, 1), (1, 2), (2, 3)):
        names = stage_tensors(index.spec, first, end)
        assert_same(load_stage(index, first, end, torch.bfloat16), {name: reference[name] for name in names})
