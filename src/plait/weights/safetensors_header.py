"""Reads the header of a safetensors file: where each tensor lies. No torch, no safetensors package.

The package gives tensors but not their places, and a rank needs places: it reads its own rows and nothing else.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec

from plait.weights.stored import PLAIN_BYTES, Stored, check_extents, corrupt

_MAX_HEADER_BYTES = 100_000_000  # the format's own limit


class _Entry(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def parse_safetensors(path: Path) -> dict[str, Stored]:
    """Every tensor's place. Raises WeightsError for anything that is not a whole, well-formed file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = int.from_bytes(prefix, "little")
        if len(prefix) < 8:
            raise corrupt(path, f"it has {size} bytes, and a safetensors file begins with 8 bytes of header length")
        if length > min(size - 8, _MAX_HEADER_BYTES):
            raise corrupt(
                path, f"it announces a header of {length} bytes, and the file has {size}; was the download complete?"
            )
        entries = _entries(path, file.read(length))
    tensors = {name: _stored(path, name, entry, 8 + length) for name, entry in entries.items()}
    check_extents(path, size, tensors.values())
    return tensors


def _entries(path: Path, header: bytes) -> dict[str, _Entry]:
    try:
        raw: dict[str, Any] = msgspec.json.decode(header, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise corrupt(path, f"its header of {len(header)} bytes cannot be read: {error}") from None
    return {name: _entry(path, name, entry) for name, entry in raw.items() if name != "__metadata__"}


def _entry(path: Path, name: str, entry: Any) -> _Entry:
    try:
        return msgspec.convert(entry, _Entry)
    except msgspec.MsgspecError as error:
        raise corrupt(path, f"its header does not describe tensor {name!r} as the format asks: {error}") from None


def _stored(path: Path, name: str, entry: _Entry, start: int) -> Stored:
    first, end = entry.data_offsets
    # a type that we cannot compute with is no fault of the file: it matters only if the model needs the tensor
    need = math.prod(entry.shape) * PLAIN_BYTES[entry.dtype] if entry.dtype in PLAIN_BYTES else end - first
    if min(entry.shape, default=0) < 0 or first < 0 or end - first != need:
        raise corrupt(
            path,
            f"tensor {name!r} of {entry.dtype} {list(entry.shape)} needs {need} bytes, "
            f"and its place is {first} to {end}: {end - first} bytes",
        )
    return Stored(name, start + first, need, entry.dtype, entry.shape)
