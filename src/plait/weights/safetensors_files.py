"""Which safetensors files a model has: one, or several that an index names."""

from __future__ import annotations

import json
from pathlib import Path

from plait.errors import WeightsError
from plait.weights.safetensors_header import parse_safetensors
from plait.weights.stored import File, Stored, corrupt, listed

INDEX = "model.safetensors.index.json"


def read_tensors(source: Path) -> tuple[tuple[File, ...], dict[str, tuple[int, Stored]]]:
    """Files, and each stored tensor's number of file and place. `source` is a directory or one file.

    Raises WeightsError for files that are missing or corrupt, and for an index that tells another story than they do.
    """
    index = source / INDEX
    if source.is_dir() and index.is_file():
        return _sharded(source, index)
    paths = [source] if source.is_file() else sorted(source.glob("*.safetensors"))
    if not paths:
        raise WeightsError(f"{source} has no .safetensors file; the weights are missing")
    if len(paths) > 1:
        chosen = [path for path in paths if path.name == "model.safetensors"]
        if not chosen:
            raise WeightsError(
                f"{source} has {len(paths)} .safetensors files and no {INDEX} that says how they belong together: "
                f"{listed(path.name for path in paths)}"
            )
        paths = chosen
    tensors = parse_safetensors(paths[0])
    return (File.of(paths[0]),), {name: (0, stored) for name, stored in tensors.items()}


def _sharded(directory: Path, index: Path) -> tuple[tuple[File, ...], dict[str, tuple[int, Stored]]]:
    weight_map = _weight_map(index)
    names = sorted(set(weight_map.values()))
    absent = [name for name in names if not (directory / name).is_file()]
    if absent:
        raise WeightsError(f"{index} names files that are not there: {listed(absent)} ({len(absent)} of {len(names)})")
    places: dict[str, tuple[int, Stored]] = {}
    for number, name in enumerate(names):
        for tensor, stored in parse_safetensors(directory / name).items():
            if weight_map.get(tensor) != name:
                raise WeightsError(f"{directory / name} holds {tensor!r}, which {index.name} does not say")
            places[tensor] = (number, stored)
    gone = [tensor for tensor in weight_map if tensor not in places]
    if gone:
        raise WeightsError(f"{index} names tensors that its files do not hold: {listed(gone)}")
    return tuple(File.of(directory / name) for name in names), places


def _weight_map(index: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
    except (ValueError, KeyError, TypeError):
        raise corrupt(index, "it is not JSON with a weight_map") from None
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise corrupt(index, "its weight_map does not name a file for each tensor")
    for name in weight_map.values():
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise WeightsError(f"{index} names {name!r}; only .safetensors files in the same directory are read")
    return weight_map
