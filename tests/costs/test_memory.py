"""Bytes of a stage, against figures counted by hand for the demo model's shape."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plait.costs.memory import kv_bytes, need_bytes, weights_bytes
from plait.errors import SpecError
from plait.plans.layout import Layout, Stage
from plait.spec.model import ModelSpec, Rope

SMOL = ModelSpec(
    "smol", "llama", 30, 576, 9, 3, 64, 1536, 49152, 2048, 1e-5, Rope(1e4, 64), (None,) * 30, tied=True
)  # fmt: skip
LAYER = 576 * (576 + 192 + 192 + 576) + 3 * 576 * 1536 + 2 * 576  # q k v o, gate up down, two norms
EMBEDDING = 49152 * 576


def test_weights_of_the_whole_model() -> None:
    """134,515,008 parameters: the published size of SmolLM2-135M."""
    assert weights_bytes(Stage((0, 30), (0,)), SMOL) == 134_515_008 * 4
    assert 30 * LAYER + EMBEDDING + 576 == 134_515_008


def test_a_tied_embedding_is_counted_on_both_stages_that_hold_it() -> None:
    stages = (Stage((0, 10), (0,), weights="bfloat16"), Stage((10, 20), (1,)), Stage((20, 30), (2,)))
    assert weights_bytes(stages[0], SMOL) == 2 * (10 * LAYER + EMBEDDING)
    assert weights_bytes(stages[1], SMOL) == 4 * 10 * LAYER
    assert weights_bytes(stages[2], SMOL) == 4 * (10 * LAYER + EMBEDDING + 576)


def test_an_untied_head_is_the_last_stages() -> None:
    assert weights_bytes(Stage((20, 30), (2,)), replace(SMOL, tied=False)) == 4 * (10 * LAYER + EMBEDDING + 576)
    whole = weights_bytes(Stage((0, 30), (0,)), replace(SMOL, tied=False))
    assert whole == 4 * (134_515_008 + EMBEDDING)


def test_kv_cache() -> None:
    """SmolLM2 in bfloat16: 2 × 3 heads × 64 × 2 bytes × 30 layers = 23,040 bytes a position."""
    assert kv_bytes(Stage((0, 30), (0,), dtype="bfloat16"), SMOL, 1, 1) == 23_040
    assert kv_bytes(Stage((0, 15), (0,)), SMOL, 8, 1024) == 23_040 * 8 * 1024


def test_need_per_stage() -> None:
    layout = Layout({"pp": 2}, (Stage((0, 12), (0,)), Stage((12, 30), (1,))))
    needs = need_bytes(layout, SMOL, 4, 512)
    assert [need.kv_bytes for need in needs] == [kv_bytes(stage, SMOL, 4, 512) for stage in layout.stages]
    assert needs[1].total_bytes == needs[1].weights_bytes + needs[1].kv_bytes + needs[1].workspace_bytes
    assert needs[1].workspace_bytes - needs[0].workspace_bytes == 2 * 4 * 49152 * 4


def test_an_unknown_format_names_the_nearest() -> None:
    with pytest.raises(SpecError, match="unknown weight format 'bfloat61': did you mean 'bfloat16'"):
        weights_bytes(Stage((0, 30), (0,), weights="bfloat61"), SMOL)
