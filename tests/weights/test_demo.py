"""The demo model: the same header and tensors as other readers find, opened and loaded fast."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import gguf
import pytest
import torch
import transformers
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from plait.spec.model import Rope
from plait.weights.index import WeightsIndex, gguf_metadata, open_index
from plait.weights.load import load_stage


@pytest.fixture(scope="module")
def index(demo: Path) -> WeightsIndex:
    return open_index(demo)


@pytest.fixture(scope="module")
def loaded(index: WeightsIndex) -> dict[str, torch.Tensor]:
    return load_stage(index, 0, 30, torch.float32)


def test_the_spec(index: WeightsIndex) -> None:
    spec = index.spec
    assert (spec.family, spec.layers, spec.hidden, spec.heads, spec.kv_heads) == ("llama", 30, 576, 9, 3)
    assert (spec.vocab, spec.max_positions, spec.norm_eps, spec.tied) == (49152, 8192, 1e-5, True)
    assert (spec.rope, spec.bos, spec.eos) == (Rope(100_000.0, 64), 1, (2,))
    assert index.notes == ()


def test_the_header_is_what_the_package_reads(demo: Path, index: WeightsIndex) -> None:
    reader = gguf.GGUFReader(demo)
    theirs = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    assert gguf_metadata(demo) == theirs
    places = {tensor.name: (tensor.data_offset, tensor.n_bytes, tensor.tensor_type.name) for tensor in reader.tensors}
    found = {entry.stored.name: entry.stored for entry in index.entries.values()}
    assert {name: (each.offset, each.length, each.kind) for name, each in found.items()} == places


def test_transformers_reads_the_same(demo: Path, loaded: dict[str, torch.Tensor]) -> None:
    config = transformers.LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    theirs = load_gguf_checkpoint(str(demo), return_tensors=True, model_to_load=model)["tensors"]
    assert torch.equal(loaded["embed.weight"], theirs["model.embed_tokens.weight"])
    assert torch.equal(loaded["norm.weight"], theirs["model.norm.weight"])
    for layer in (0, 13, 29):
        for ours, their in (("q", "self_attn.q_proj"), ("k", "self_attn.k_proj"), ("down", "mlp.down_proj")):
            mine, reference = loaded[f"layers.{layer}.{ours}.weight"], theirs[f"model.layers.{layer}.{their}.weight"]
            assert torch.equal(mine, reference), (layer, ours)


def test_stages_are_slices_of_the_whole(index: WeightsIndex, loaded: dict[str, torch.Tensor]) -> None:
    for first, end in ((0, 2), (14, 15), (29, 30)):
        for name, tensor in load_stage(index, first, end, torch.float32).items():
            assert torch.equal(tensor, loaded[name]), name


def test_progress_counts_to_the_end(index: WeightsIndex) -> None:
    calls: list[tuple[int, int]] = []
    load_stage(index, 28, 30, torch.bfloat16, lambda done, total: calls.append((done, total)))
    done, totals = [call[0] for call in calls], {call[1] for call in calls}
    assert done == sorted(done)
    assert totals == {done[-1]}


def test_the_index_travels_small(index: WeightsIndex) -> None:
    content = index.to_bytes()
    assert len(content) < 100_000  # no vocabulary in it
    assert WeightsIndex.from_bytes(content) == index


@pytest.mark.skipif(sys.platform != "linux", reason="page faults are counted as Linux counts them")
def test_a_stage_reads_only_its_own_bytes(index: WeightsIndex) -> None:
    """Bytes that read() gave to this process, from the kernel's own count."""
    own = sum(entry.length for name, entry in index.entries.items() if name.startswith("layers.14."))
    before = _bytes_read()
    load_stage(index, 14, 15, torch.float32)
    assert own <= _bytes_read() - before < own + 100_000
    assert own < index.total_bytes / 40


def _bytes_read() -> int:
    lines = Path(f"/proc/{os.getpid()}/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("rchar")).split()[1])
