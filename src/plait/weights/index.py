"""Where a model's tensors lie: opened once by the parent, passed on to the ranks as bytes. No torch.

index = open_index("models/tiny")         a directory, a .gguf file, or a .safetensors file beside its config.json
index.spec, index.entries["layers.0.q.weight"]
WeightsIndex.from_bytes(index.to_bytes())
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from plait.errors import WeightsError
from plait.spec.checked import require_runnable
from plait.spec.gguf import spec_from_gguf
from plait.spec.huggingface import eos_from_generation_config, spec_from_config
from plait.spec.huggingface_keys import unread_keys
from plait.spec.model import ModelSpec
from plait.weights.gguf_header import parse_gguf
from plait.weights.match import Entry, match
from plait.weights.names import gguf_tensors, huggingface_tensors
from plait.weights.safetensors_files import read_tensors
from plait.weights.stored import File, GgufHeader, corrupt, listed

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


class WeightsIndex(msgspec.Struct, frozen=True):
    """A model on disk: its spec, its files, and for each of our tensors where it lies and how to read it.

    `notes` name what the files hold and the model does not use. `total_bytes` is what all tensors take on disk.
    """

    source: str
    format: str
    spec: ModelSpec
    files: tuple[File, ...]
    entries: dict[str, Entry]
    notes: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Bytes on disk of all tensors that the model uses."""
        return sum(entry.length for entry in self.entries.values())

    @property
    def metadata(self) -> Mapping[str, Any]:
        """All GGUF metadata, the vocabulary included; the config.json of other formats."""
        if self.format == "gguf":
            return gguf_metadata(self.source)
        return _json(_config_of(Path(self.source)))

    def to_bytes(self) -> bytes:
        """The whole index, for another process."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def from_bytes(cls, content: bytes) -> WeightsIndex:
        """What `to_bytes` made."""
        return msgspec.msgpack.decode(content, type=cls)


def open_index(path: str | os.PathLike[str]) -> WeightsIndex:
    """Read headers only. Raises WeightsError for files that are missing, unsafe, corrupt or not what the model needs,
    SpecError for a model that is not known.
    """
    source = Path(path)
    if not source.exists():
        raise WeightsError(f"{source}: no such file or directory")
    if source.is_dir():
        return _open_directory(source)
    if source.suffix in _PICKLES:
        raise _refuse_pickles(source, [source.name])
    if source.suffix == ".gguf":
        return _open_gguf(source)
    if source.suffix == ".safetensors":
        return _open_safetensors(source)
    raise WeightsError(
        f"{source}: unknown kind of file; give a directory with config.json and *.safetensors, "
        "a .safetensors file beside its config.json, or a .gguf file"
    )


def gguf_metadata(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """All key-value pairs of a GGUF file as plain Python values. Raises WeightsError where the file is corrupt."""
    return parse_gguf(Path(path)).metadata


def _open_directory(source: Path) -> WeightsIndex:
    if (source / "config.json").is_file():
        return _open_safetensors(source)
    ggufs = sorted(source.glob("*.gguf"))
    if len(ggufs) == 1:
        return _open_gguf(ggufs[0])
    if ggufs:
        raise WeightsError(f"{source} has {len(ggufs)} GGUF files; give one: {', '.join(map(str, ggufs))}")
    raise WeightsError(f"{source} has neither a config.json nor a .gguf file; is it a model's directory?")


def _open_safetensors(source: Path) -> WeightsIndex:
    config = _config_of(source)
    if not config.is_file():
        raise WeightsError(f"{source} has no config.json beside it; the model's shape is written there")
    directory = config.parent
    pickles = sorted(each.name for suffix in _PICKLES for each in directory.glob(f"*{suffix}"))
    if source.is_dir() and pickles and not any(directory.glob("*.safetensors")):
        raise _refuse_pickles(source, [each for each in pickles if each != "training_args.bin"] or pickles)
    content = _json(config)
    spec = spec_from_config(content, directory.resolve().name)
    require_runnable(spec)
    unread = unread_keys(content, spec.family)
    generation = directory / "generation_config.json"
    if generation.is_file():
        spec = eos_from_generation_config(spec, _json(generation))
    files, places = read_tensors(source)
    tensors = {name: stored for name, (_, stored) in places.items()}
    entries, notes = match(spec, huggingface_tensors(spec, tensors), places, files, str(source))
    if unread:
        notes += (f"{config.name} has keys that nothing here reads: {listed(unread)}",)
    return WeightsIndex(str(source), "safetensors", spec, files, entries, notes)


def _open_gguf(source: Path) -> WeightsIndex:
    header = parse_gguf(source)
    parts = header.metadata.get("split.count")
    if isinstance(parts, int) and parts > 1:
        raise WeightsError(
            f"{source} is one of {parts} parts of a model; join them with llama.cpp: "
            "llama-gguf-split --merge FIRST_PART WHOLE.gguf"
        )
    spec = spec_from_gguf(header.metadata, header.tensors, rope_factors(source, header), source.stem)
    files = (File.of(source),)
    places = {name: (0, stored) for name, stored in header.tensors.items()}
    entries, notes = match(spec, gguf_tensors(spec), places, files, str(source))
    return WeightsIndex(str(source), "gguf", spec, files, entries, notes)


def rope_factors(source: Path, header: GgufHeader) -> list[float] | None:
    """The content of ``rope_freqs.weight``; None where the file has no such tensor. Raises WeightsError."""
    stored = header.tensors.get("rope_freqs.weight")
    if stored is None:
        return None
    if stored.kind != "F32":
        raise corrupt(source, f"rope_freqs.weight is of type {stored.kind}, and it must be F32")
    with source.open("rb") as file:
        file.seek(stored.offset)
        return list(memoryview(file.read(stored.length)).cast("f"))


def _config_of(source: Path) -> Path:
    return (source if source.is_dir() else source.parent) / "config.json"


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, UnicodeDecodeError) as error:
        raise WeightsError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise WeightsError(f"{path} is not a table of keys and values")
    return content


def _refuse_pickles(source: Path, names: list[str]) -> WeightsError:
    return WeightsError(
        f"{source}: {', '.join(names)} is a pickled checkpoint, and reading a pickle runs code that it brings along. "
        "Plait never does. Use the model's .safetensors or .gguf files, or convert it once where you trust it: "
        "transformers' model.save_pretrained(directory) writes .safetensors"
    )
