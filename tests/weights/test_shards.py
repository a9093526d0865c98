"""All ranks' pieces make the whole tensor bit for bit, from every format, and nobody reads what it does not need."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tiny_ggufs
import tiny_models as models
import torch
from gguf import GGMLQuantizationType as Kind
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plait.spec.shards import Shard, make_shards, shard_tensors
from plait.weights import load
from plait.weights.index import WeightsIndex, open_index
from plait.weights.load import load_stage

GGUFS = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "phi3": "phi3"} | {
    "olmo2": "olmo2",
    "gpt2": "gpt2",
}
FORMATS = ("safetensors", "gguf", "gguf-q8")
WHOLE_STAGES = ((0, 3), (0, 1), (1, 3))


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The index of a tiny model of a family in a format, written once."""
    folder = tmp_path_factory.mktemp("sharded")

    @cache
    def make(family: str, form: str) -> tuple[WeightsIndex, Mapping[str, torch.Tensor]]:
        model = models.make(family, hidden_size=64, intermediate_size=160)
        path = folder / f"{family}-{form}"
        if form == "safetensors":
            index = open_index(models.save(model, path, max_shard_size="60KB"))
        else:
            kind = Kind.Q8_0 if form == "gguf-q8" else Kind.F32
            index = open_index(tiny_ggufs.save(GGUFS[family], model, path.with_suffix(".gguf"), kind))
        return index, load_stage(index, 0, 3, torch.float32)

    return make


def assert_pieces(index: WeightsIndex, whole: Mapping[str, torch.Tensor], shard: Shard, first: int, end: int) -> None:
    """What the shard loads are its slices of the whole."""
    counted: list[tuple[int, int]] = []
    loaded = load_stage(index, first, end, torch.float32, lambda *now: counted.append(now), shard)
    wanted = shard_tensors(index.spec, first, end, shard)
    assert loaded.keys() == wanted.keys()
    for name, piece in wanted.items():
        held = whole[name]
        if piece.axis is not None:
            held = held.narrow(piece.axis, piece.first, piece.end - piece.first)
        assert loaded[name].is_contiguous(), name
        assert torch.equal(loaded[name], held), name
    assert [now for now, _ in counted] == sorted(now for now, _ in counted)
    assert {total for _, total in counted} == {counted[-1][0]}


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    family=st.sampled_from(sorted(GGUFS)),
    form=st.sampled_from(FORMATS),
    shares=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    stage=st.sampled_from(WHOLE_STAGES),
    chunk=st.sampled_from((200, 2000, 1 << 16)),
    skipped=st.sampled_from((1, 100, 1 << 12)),
)
def test_pieces_are_slices_of_the_whole(
    opened: Any, family: str, form: str, shares: list[int], stage: tuple[int, int], chunk: int, skipped: int
) -> None:
    index, whole = opened(family, form)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "_CHUNK_ELEMENTS", chunk)
        patch.setattr(load, "_SKIPPED_BYTES", skipped)
        for shard in make_shards(index.spec, len(shares), shares):
            assert_pieces(index, whole, shard, *stage)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("family", sorted(GGUFS))
def test_every_family_over_one_to_five_ranks(opened: Any, family: str, form: str) -> None:
    index, whole = opened(family, form)
    for tp in range(1, 6):
        for shard in make_shards(index.spec, tp):
            assert_pieces(index, whole, shard, 0, 3)


def test_bytes_read_are_those_of_the_pieces(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where columns are read alone, two ranks together read everything that is cut once."""
    monkeypatch.setattr(load, "_SKIPPED_BYTES", 1)
    index, _ = opened("llama", "safetensors")
    read: list[int] = []
    monkeypatch.setattr(load, "_read", _counted(load._read, read))
    totals = []
    for shard in make_shards(index.spec, 2):
        read.clear()
        counted: list[tuple[int, int]] = []
        load_stage(index, 0, 3, torch.float32, lambda *now: counted.append(now), shard)  # noqa: B023
        assert sum(read) == counted[-1][0] == counted[-1][1]
        totals.append(sum(read))
    norms = 4 * 64 * (3 * 2 + 1)
    biases = 4 * 64 * 3 * 2  # of o and down
    assert sum(totals) == index.total_bytes + norms + biases


def _counted(function: Any, read: list[int]) -> Any:
    def reading(descriptor: int, count: int, offset: int, path: str) -> bytearray:
        read.append(count)
        return function(descriptor, count, offset, path)

    return reading


def test_the_demo_model_over_two_ranks(demo: Path) -> None:
    """Q4_1 with interleaved heads: 5 and 4 of them on 2 KV heads each, blocks of 32 along what is summed."""
    index = open_index(demo)
    whole = load_stage(index, 7, 8, torch.float32)
    for shares in ((1, 1), (2, 1), (3, 5)):
        for shard in make_shards(index.spec, 2, shares):
            assert_pieces(index, whole, shard, 7, 8)
