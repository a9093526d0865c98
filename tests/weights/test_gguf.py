"""What load_stage reads from GGUF is what was written: every family, fused and interleaved layouts, every type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tiny_ggufs
import tiny_models as models
import torch
import transformers
from gguf import GGMLQuantizationType as Kind
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from plait.spec.huggingface import spec_from_config
from plait.spec.tensors import stage_tensors
from plait.weights.index import WeightsIndex, open_index
from plait.weights.load import load_stage
from plait.weights.stored import BLOCKS, GGUF_TYPES

FAMILIES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "phi3": "phi3"} | {
    "olmo2": "olmo2",
    "gpt2": "gpt2",
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family: str, tmp_path: Path) -> None:
    model = models.make(family)
    index = open_index(tiny_ggufs.save(FAMILIES[family], model, tmp_path / "tiny.gguf"))
    assert WeightsIndex.from_bytes(index.to_bytes()) == index
    reference = models.ours(family, model)
    for first, end in ((0, 3), (0, 1), (1, 2), (2, 3)):
        loaded = load_stage(index, first, end, torch.float32)
        assert loaded.keys() == stage_tensors(index.spec, first, end).keys()
        for name, tensor in loaded.items():
            assert torch.equal(tensor, reference[name]), name


@pytest.mark.parametrize("family", FAMILIES)
def test_the_spec_is_that_of_the_config(family: str, tmp_path: Path) -> None:
    model: Any = models.make(family)
    found = open_index(tiny_ggufs.save(FAMILIES[family], model, tmp_path / "tiny.gguf")).spec
    wanted = spec_from_config(model.config.to_dict(), "tiny")
    changes: dict[str, Any] = {}
    if family == "mistral":  # llama.cpp's converter calls it llama and drops its window
        changes = {"family": "mistral", "windows": wanted.windows}
    assert {**_fields(found), **changes} == _fields(wanted)


def _fields(spec: Any) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in spec.__slots__}


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "phi3", "gpt2"])
def test_transformers_reads_the_same(family: str, tmp_path: Path) -> None:
    path = tiny_ggufs.save(family, models.make(family), tmp_path / "tiny.gguf", Kind.Q8_0)
    theirs = models.make(family)
    theirs.load_state_dict(
        load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=theirs)["tensors"], strict=False
    )
    reference = models.ours(family, theirs)
    for name, tensor in load_stage(open_index(path), 0, 3, torch.float32).items():
        assert torch.equal(tensor, reference[name]), name


@pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1])
@pytest.mark.parametrize("family", ["llama", "phi3", "gpt2"])
def test_packed_and_fused(family: str, kind: Kind, tmp_path: Path) -> None:
    model = models.make(family, hidden_size=64, intermediate_size=128)
    index = open_index(tiny_ggufs.save(family, model, tmp_path / "tiny.gguf", kind))
    reference = models.ours(family, model)
    for name, tensor in load_stage(index, 0, 3, torch.float32).items():
        assert torch.equal(tensor, tiny_ggufs.as_stored(reference[name], kind)), name


@pytest.mark.parametrize("kind", [Kind[name] for name in BLOCKS])
def test_every_packed_type_in_chunks(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raw blocks, as the package cannot write K-quants; small chunks, so that several are joined."""
    monkeypatch.setattr("plait.weights.load._CHUNK_ELEMENTS", 3 * 256)
    block, size = BLOCKS[kind.name]
    random = np.random.default_rng(kind.value)
    shapes = {
        "token_embd": (70, 256),
        "blk.0.attn_q": (256, 256),
        "blk.0.attn_k": (128, 256),
        "blk.0.attn_v": (128, 256),
    }
    shapes |= {"blk.0.attn_output": (256, 256), "blk.0.ffn_gate": (512, 256), "blk.0.ffn_up": (512, 256)}
    shapes |= {"blk.0.ffn_down": (256, 512)}
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "llama")
    tiny_ggufs.metadata(
        writer,
        transformers.LlamaConfig(
            vocab_size=70,
            hidden_size=256,
            intermediate_size=512,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
        ),
    )
    raw: dict[str, Any] = {}
    for name, (rows, columns) in shapes.items():
        # bytes below 60 keep every float16 scale finite
        raw[name] = random.integers(0, 60, (rows, columns // block * size), dtype=np.uint8)
        writer.add_tensor(f"{name}.weight", raw[name], raw_dtype=kind)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(256, dtype=np.float32))
    loaded = load_stage(open_index(tiny_ggufs.finish(writer, tmp_path / "tiny.gguf")), 0, 1, torch.float32)
    for ours, theirs in (("embed", "token_embd"), ("layers.0.v", "blk.0.attn_v"), ("layers.0.down", "blk.0.ffn_down")):
        assert torch.equal(loaded[f"{ours}.weight"], torch.from_numpy(gguf.quants.dequantize(raw[theirs], kind)))
    for ours, theirs, heads in (("q", "blk.0.attn_q", 4), ("k", "blk.0.attn_k", 2)):
        zipped = tiny_ggufs.permute(loaded[f"layers.0.{ours}.weight"].numpy(), heads)
        assert np.array_equal(zipped, gguf.quants.dequantize(raw[theirs], kind))


def test_block_sizes_are_those_of_the_package() -> None:
    assert {Kind[name]: (block, size) for name, block, size in GGUF_TYPES.values()} == {
        Kind(number): gguf.GGML_QUANT_SIZES[Kind(number)] for number in GGUF_TYPES
    }
