"""Files that are missing, unsafe, cut short or not what the model needs: each with its full message."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import safetensors.torch
import tiny_ggufs
import tiny_models as models
import torch

from plait.errors import PlaitError, SpecError, WeightsError
from plait.weights.index import gguf_metadata, open_index
from plait.weights.load import load_stage

Edit = Callable[[dict[str, torch.Tensor]], None]


def message(path: Path, kind: type[PlaitError] = WeightsError) -> str:
    with pytest.raises(kind) as caught:
        open_index(path)
    return str(caught.value)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return models.save(models.make("llama"), tmp_path / "tiny")


def edit(directory: Path, change: Edit) -> Path:
    """Change the tensors of a single-file checkpoint."""
    path = directory / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    change(tensors)
    safetensors.torch.save_file(tensors, path)
    return directory


def edit_config(directory: Path, **changes: Any) -> Path:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return directory


# ---- paths


def test_no_such_file(tmp_path: Path) -> None:
    assert message(tmp_path / "gone") == f"{tmp_path}/gone: no such file or directory"


def test_a_directory_of_nothing(tmp_path: Path) -> None:
    assert message(tmp_path) == (f"{tmp_path} has neither a config.json nor a .gguf file; is it a model's directory?")


def test_an_unknown_kind_of_file(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"")
    assert message(tmp_path / "model.onnx") == (
        f"{tmp_path}/model.onnx: unknown kind of file; give a directory with config.json and *.safetensors, "
        "a .safetensors file beside its config.json, or a .gguf file"
    )


def test_several_ggufs(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"")
    assert message(tmp_path) == f"{tmp_path} has 2 GGUF files; give one: {tmp_path}/a.gguf, {tmp_path}/b.gguf"


def test_no_config(tiny: Path) -> None:
    (tiny / "config.json").unlink()
    assert message(tiny / "model.safetensors") == (
        f"{tiny}/model.safetensors has no config.json beside it; the model's shape is written there"
    )


def test_a_broken_config(tiny: Path) -> None:
    (tiny / "config.json").write_text("{")
    assert message(tiny) == (
        f"{tiny}/config.json is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
    )
    (tiny / "config.json").write_text("[]")
    assert message(tiny) == f"{tiny}/config.json is not a table of keys and values"


def test_no_weights(tiny: Path) -> None:
    (tiny / "model.safetensors").unlink()
    assert message(tiny) == f"{tiny} has no .safetensors file; the weights are missing"


# ---- pickles

PICKLED = (
    " is a pickled checkpoint, and reading a pickle runs code that it brings along. Plait never does. Use the model's "
    ".safetensors or .gguf files, or convert it once where you trust it: "
    "transformers' model.save_pretrained(directory) writes .safetensors"
)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt"])
def test_a_pickled_file_is_never_opened(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(b"cos\nsystem\n(S'touch pwned'\ntR.")
    assert message(path) == f"{path}: {name}{PICKLED}"


def test_a_directory_of_pickles(tiny: Path) -> None:
    (tiny / "model.safetensors").unlink()
    for part in ("pytorch_model-1.bin", "pytorch_model-2.bin", "training_args.bin"):
        (tiny / part).write_bytes(b"")
    assert message(tiny) == f"{tiny}: pytorch_model-1.bin, pytorch_model-2.bin{PICKLED}"


def test_pickles_beside_safetensors_are_left_alone(tiny: Path) -> None:
    (tiny / "training_args.bin").write_bytes(b"")
    assert open_index(tiny).notes == ()


# ---- tensors that differ from what the model needs


def test_missing_surplus_and_misshapen(tiny: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["model.layers.1.self_attn.q_proj.weight"]
        tensors["model.layers.9.extra"] = torch.zeros(1)
        tensors["model.norm.weight"] = torch.zeros(7)
        tensors["lm_head.weight"] = torch.zeros(96, 32, dtype=torch.int64)

    assert message(edit(tiny, change)) == (
        f"{tiny} does not hold the weights of tiny (llama); "
        "1 missing: model.layers.1.self_attn.q_proj.weight; "
        "1 surplus: model.layers.9.extra; "
        "1 of another shape: model.norm.weight is [7], needed [32]; "
        "1 of a type that is not supported: lm_head.weight is I64"
    )


def test_long_lists_are_cut(tiny: Path) -> None:
    text = message(edit_config(tiny, num_hidden_layers=8))
    assert text.startswith(
        f"{tiny} does not hold the weights of tiny (llama); 80 missing: model.layers.3.input_layernorm"
    )
    assert text.endswith("model.layers.4.self_attn.k_proj.weight and 60 more")


def test_a_tied_head_that_is_stored_too(tmp_path: Path) -> None:
    tiny = models.save(models.make("qwen2"), tmp_path / "tiny")

    def same(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    def other(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"][3] += 1

    assert open_index(edit(tiny, same)).notes == (
        "lm_head.weight equals the tied model.embed_tokens.weight and is not read",
    )
    assert message(edit(tiny, other)) == (
        f"{tiny}/model.safetensors: the config ties the LM head to the embedding (tie_word_embeddings), but "
        "lm_head.weight and model.embed_tokens.weight differ; set tie_word_embeddings to false if the head is its own"
    )


def test_known_buffers_are_named_and_not_read(tiny: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)

    assert open_index(edit(tiny, change)).notes == (
        "buffers that follow from the config are not read: model.layers.0.self_attn.rotary_emb.inv_freq",
    )


def test_gpt2_without_prefix_and_with_masks(tmp_path: Path) -> None:
    """As openai-community/gpt2 is stored."""
    model = models.make("gpt2")
    tiny = models.save(model, tmp_path / "tiny")

    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        tensors["h.0.attn.bias"] = torch.ones(1, 1, 128, 128, dtype=torch.bool)

    index = open_index(edit(tiny, change))
    assert index.notes == ("buffers that follow from the config are not read: h.0.attn.bias",)
    reference = models.ours("gpt2", model)
    assert all(torch.equal(tensor, reference[name]) for name, tensor in load_stage(index, 0, 3, torch.float32).items())


def test_unread_keys_are_named(tiny: Path) -> None:
    assert open_index(edit_config(tiny, unsloth_version="2024.9")).notes == (
        "config.json has keys that nothing here reads: unsloth_version",
    )


# ---- safetensors that are broken


def header_of(entries: dict[str, Any], data: bytes = b"") -> bytes:
    header = json.dumps(entries).encode()
    return struct.pack("<Q", len(header)) + header + data


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
BROKEN = {
    "empty": (b"", "it has 0 bytes, and a safetensors file begins with 8 bytes of header length"),
    "short": (b"1234567", "it has 7 bytes, and a safetensors file begins with 8 bytes of header length"),
    "long header": (
        struct.pack("<Q", 1000) + b"{}",
        "it announces a header of 1000 bytes, and the file has 10; was the download complete?",
    ),
    "not JSON": (
        struct.pack("<Q", 3) + b"abc",
        "its header of 3 bytes cannot be read: JSON is malformed: invalid character (byte 0)",
    ),
    "no shape": (
        header_of({"a": {"dtype": "F32", "data_offsets": [0, 8]}}),
        "its header does not describe tensor 'a' as the format asks: Object missing required field `shape`",
    ),
    "cut data": (
        header_of({"a": ENTRY}, bytes(5)),
        "tensor 'a' lies in bytes 69 to 77, and the file has 74 bytes: 3 are missing; was the download complete?",
    ),
    "wrong size": (
        header_of({"a": ENTRY | {"shape": [3]}}, bytes(8)),
        "tensor 'a' of F32 [3] needs 12 bytes, and its place is 0 to 8: 8 bytes",
    ),
    "negative": (
        header_of({"a": ENTRY | {"shape": [-1, -2]}}, bytes(8)),
        "tensor 'a' of F32 [-1, -2] needs 8 bytes, and its place is 0 to 8: 8 bytes",
    ),
    "overlap": (
        header_of({"a": ENTRY, "b": ENTRY | {"data_offsets": [4, 12]}}, bytes(12)),
        "tensors 'a' and 'b' overlap at byte 135",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_safetensors(name: str, tiny: Path) -> None:
    content, problem = BROKEN[name]
    (tiny / "model.safetensors").write_bytes(content)
    assert message(tiny) == f"{tiny}/model.safetensors is not a whole weights file: {problem}"


def test_a_download_that_stopped(tiny: Path) -> None:
    path = tiny / "model.safetensors"
    size = path.stat().st_size
    os.truncate(path, size - 10)
    last = max(open_index_entries(tiny, size), key=lambda stored: stored.end)
    assert message(tiny) == (
        f"{path} is not a whole weights file: tensor {last.name!r} lies in bytes {last.offset} to {size}, "
        f"and the file has {size - 10} bytes: 10 are missing; was the download complete?"
    )


def open_index_entries(tiny: Path, size: int) -> list[Any]:
    """Where the tensors lay when the file had `size` bytes."""
    path = tiny / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content + bytes(size - len(content)))
    found = [entry.stored for entry in open_index(tiny).entries.values()]
    path.write_bytes(content)
    return found


# ---- the index of a sharded checkpoint


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return models.save(models.make("llama"), tmp_path / "tiny", max_shard_size="20KB")


def remap(directory: Path, change: Callable[[dict[str, str]], None]) -> Path:
    path = directory / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))
    return directory


def test_a_shard_is_gone(sharded: Path) -> None:
    shards = sorted(sharded.glob("*.safetensors"))
    shards[1].unlink()
    assert message(sharded) == (
        f"{sharded}/model.safetensors.index.json names files that are not there: {shards[1].name} (1 of {len(shards)})"
    )


def test_an_index_that_tells_another_story(sharded: Path) -> None:
    shard = json.loads((sharded / "model.safetensors.index.json").read_text())["weight_map"]["model.norm.weight"]
    remap(sharded, lambda names: names.pop("model.norm.weight") and None)
    assert message(sharded) == (
        f"{sharded}/{shard} holds 'model.norm.weight', which model.safetensors.index.json does not say"
    )
    remap(sharded, lambda names: names.update({"model.norm.weight": shard, "model.ghost": shard}))
    assert message(sharded) == (
        f"{sharded}/model.safetensors.index.json names tensors that its files do not hold: model.ghost"
    )


@pytest.mark.parametrize("name", ["../secret.safetensors", "pytorch_model.bin"])
def test_an_index_names_only_safetensors_beside_it(name: str, sharded: Path) -> None:
    remap(sharded, lambda names: names.update({"model.norm.weight": name}))
    assert message(sharded) == (
        f"{sharded}/model.safetensors.index.json names {name!r}; only .safetensors files in the same directory are read"
    )


def test_an_index_without_a_map(sharded: Path) -> None:
    path = sharded / "model.safetensors.index.json"
    path.write_text("{}")
    assert message(sharded) == f"{path} is not a whole weights file: it is not JSON with a weight_map"
    path.write_text('{"weight_map": {"a": 3}}')
    assert (
        message(sharded) == f"{path} is not a whole weights file: its weight_map does not name a file for each tensor"
    )


def test_several_files_and_no_index(sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").unlink()
    for surplus in sorted(sharded.glob("*.safetensors"))[2:]:
        surplus.unlink()
    names = ", ".join(sorted(path.name for path in sharded.glob("*.safetensors")))
    assert message(sharded) == (
        f"{sharded} has 2 .safetensors files and no model.safetensors.index.json that says how they belong together: "
        f"{names}"
    )


# ---- GGUF that is broken


@pytest.fixture
def tiny_gguf(tmp_path: Path) -> Path:
    return tiny_ggufs.save("llama", models.make("llama"), tmp_path / "tiny.gguf")


def patched(path: Path, change: Callable[[bytearray], Any]) -> Path:
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(content)
    return path


def test_not_a_gguf(tiny_gguf: Path) -> None:
    patched(tiny_gguf, lambda content: content.__setitem__(slice(0, 4), b"ELF\x7f"))
    assert message(tiny_gguf) == (
        f"{tiny_gguf} is not a whole weights file: it begins with b'ELF\\x7f', and a GGUF file begins with b'GGUF'"
    )
    tiny_gguf.write_bytes(b"GGUF")
    assert message(tiny_gguf) == (
        f"{tiny_gguf} is not a whole weights file: it has 4 bytes, and a GGUF file begins with 24 bytes of header"
    )


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        (1, "is GGUF version 1; versions 2 and 3 can be read. Convert the model again"),
        (4, "is GGUF version 4; versions 2 and 3 can be read. Convert the model again"),
        (0x03000000, "is a big-endian GGUF file; only little-endian ones can be read"),
    ],
)
def test_other_versions(version: int, problem: str, tiny_gguf: Path) -> None:
    patched(tiny_gguf, lambda content: struct.pack_into("<I", content, 4, version))
    assert message(tiny_gguf) == f"{tiny_gguf} {problem}"


def test_a_gguf_that_ends_in_its_header(tiny_gguf: Path) -> None:
    whole = tiny_gguf.read_bytes()
    for size in (24, 100, 700, 1500):
        tiny_gguf.write_bytes(whole[:size])
        assert message(tiny_gguf) == (
            f"{tiny_gguf} is not a whole weights file: it ends after {size} bytes, in the middle of its header; "
            "was the download complete?"
        )


def test_a_gguf_that_ends_in_its_data(tiny_gguf: Path) -> None:
    stored = max((entry.stored for entry in open_index(tiny_gguf).entries.values()), key=lambda each: each.offset)
    os.truncate(tiny_gguf, stored.end - 3)
    assert message(tiny_gguf) == (
        f"{tiny_gguf} is not a whole weights file: tensor {stored.name!r} lies in bytes {stored.offset} to "
        f"{stored.end}, and the file has {stored.end - 3} bytes: 3 are missing; was the download complete?"
    )


def test_a_gguf_of_absurd_counts(tiny_gguf: Path) -> None:
    patched(tiny_gguf, lambda content: struct.pack_into("<Q", content, 8, 2**60))
    assert "not a whole weights file" in message(tiny_gguf)
    patched(tiny_gguf, lambda content: struct.pack_into("<Q", content, 24, 2**63))
    assert message(tiny_gguf).endswith("in the middle of its header; was the download complete?")


def info_at(path: Path, name: str) -> int:
    """The byte after the name in a tensor's description."""
    wanted = struct.pack("<Q", len(name)) + name.encode()
    return path.read_bytes().index(wanted) + len(wanted)


def test_a_type_that_is_not_decoded(tiny_gguf: Path) -> None:
    at = info_at(tiny_gguf, "output.weight") + 4 + 2 * 8
    patched(tiny_gguf, lambda content: struct.pack_into("<I", content, at, 16))
    supported = "F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, BF16"
    assert message(tiny_gguf) == (
        f"{tiny_gguf}: tensor 'output.weight' is of type IQ2_XXS, which is not supported; supported: {supported}. "
        "Choose another quantisation of the same model"
    )
    patched(tiny_gguf, lambda content: struct.pack_into("<I", content, at, 99))
    assert message(tiny_gguf).startswith(f"{tiny_gguf}: tensor 'output.weight' is of type number 99, which is not")


def test_misplaced_tensors(tiny_gguf: Path) -> None:
    at = info_at(tiny_gguf, "output.weight") + 4 + 2 * 8 + 4
    offset = struct.unpack_from("<Q", tiny_gguf.read_bytes(), at)[0]
    patched(tiny_gguf, lambda content: struct.pack_into("<Q", content, at, offset + 8))
    assert message(tiny_gguf) == (
        f"{tiny_gguf} is not a whole weights file: tensor 'output.weight' begins at {offset + 8} of the data, "
        "not at a multiple of 32"
    )
    patched(tiny_gguf, lambda content: struct.pack_into("<Q", content, at, offset - 32))
    assert message(tiny_gguf).startswith(f"{tiny_gguf} is not a whole weights file: tensors ")
    assert " overlap at byte " in message(tiny_gguf)


def test_a_block_that_crosses_rows(tiny_gguf: Path) -> None:
    at = info_at(tiny_gguf, "output.weight") + 4 + 2 * 8
    patched(tiny_gguf, lambda content: struct.pack_into("<I", content, at, 12))
    assert message(tiny_gguf) == (
        f"{tiny_gguf} is not a whole weights file: "
        "tensor 'output.weight' has rows of 32, not a multiple of the Q4_K block of 256"
    )


def test_a_gguf_of_another_model(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mamba")
    writer.add_tensor("x", np.zeros(4, dtype=np.float32))
    path = tiny_ggufs.finish(writer, tmp_path / "m.gguf")
    assert message(path, SpecError) == (
        "GGUF 'm': unknown architecture 'mamba'; did you mean 'llama'? (known: gpt2, llama, olmo2, phi3, qwen2, qwen3)"
    )


def test_one_part_of_a_gguf(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m-00001-of-00003.gguf", "llama")
    writer.add_uint16("split.count", 3)
    writer.add_tensor("x", np.zeros(4, dtype=np.float32))
    path = tiny_ggufs.finish(writer, tmp_path / "m-00001-of-00003.gguf")
    assert message(path) == (
        f"{path} is one of 3 parts of a model; join them with llama.cpp: llama-gguf-split --merge FIRST_PART WHOLE.gguf"
    )


def test_surplus_in_a_gguf(tmp_path: Path) -> None:
    model: Any = models.make("llama")
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    tiny_ggufs.metadata(writer, model.config)
    for name, values in tiny_ggufs.tensors("llama", model):
        if name != "blk.1.ffn_norm.weight":
            writer.add_tensor(name, values)
    writer.add_tensor("blk.0.ffn_gate_inp.weight", np.zeros((4, 32), dtype=np.float32))
    path = tiny_ggufs.finish(writer, tmp_path / "m.gguf")
    assert message(path) == (
        f"{path} does not hold the weights of m (llama); "
        "1 missing: blk.1.ffn_norm.weight; 1 surplus: blk.0.ffn_gate_inp.weight"
    )


# ---- files that change after they were indexed


def test_a_file_that_was_changed(tiny: Path) -> None:
    index = open_index(tiny)
    path = tiny / "model.safetensors"
    size = path.stat().st_size
    os.truncate(path, size - 100)
    with pytest.raises(WeightsError) as caught:
        load_stage(index, 0, 1, torch.float32)
    assert str(caught.value) == (
        f"{path} was changed since it was indexed (then {size} bytes, now {size - 100}); start again"
    )
    path.unlink()
    with pytest.raises(WeightsError) as caught:
        load_stage(index, 0, 1, torch.float32)
    assert str(caught.value) == f"{path} cannot be opened: No such file or directory"


def test_metadata_is_what_the_package_reads(tiny_gguf: Path) -> None:
    theirs = {
        name: field.contents()
        for name, field in gguf.GGUFReader(tiny_gguf).fields.items()
        if not name.startswith("GGUF.")
    }
    assert gguf_metadata(tiny_gguf) == theirs
    assert open_index(tiny_gguf).metadata == theirs
