"""Reads the header of a GGUF file: metadata and where each tensor lies. No numpy, no gguf package.

The package's own reader takes 2 s on the demo model (it makes an array of every word of the vocabulary) and meets a
truncated file with an IndexError; this one takes 0.1 s and says what is wrong. Decoding stays with the package.
"""

from __future__ import annotations

import math
import mmap
import struct
from pathlib import Path
from typing import Any

from plait.errors import WeightsError
from plait.weights.stored import GGUF_TYPES, GgufHeader, Stored, check_extents, corrupt, unsupported_gguf_type

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4


class _EndOfFile(Exception):
    """The header wants to go on where the file ends."""


def parse_gguf(path: Path) -> GgufHeader:
    """Metadata as plain Python values, and every tensor's place.

    Raises WeightsError for anything that is not a whole, well-formed GGUF file of version 2 or 3.
    """
    size = path.stat().st_size
    if size < 24:
        raise corrupt(path, f"it has {size} bytes, and a GGUF file begins with 24 bytes of header")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        cursor = _Cursor(data)
        try:
            return _header(path, size, cursor)
        except (_EndOfFile, struct.error):
            raise corrupt(
                path, f"it ends after {size} bytes, in the middle of its header; was the download complete?"
            ) from None
        except UnicodeDecodeError:
            raise corrupt(path, f"a text near byte {cursor.at} of its header is not UTF-8") from None


def _header(path: Path, size: int, cursor: _Cursor) -> GgufHeader:
    magic = cursor.take(4)
    if magic != b"GGUF":
        raise corrupt(path, f"it begins with {magic!r}, and a GGUF file begins with b'GGUF'")
    _check_version(path, cursor.scalar("I"))
    tensor_count, key_count = cursor.scalar("Q"), cursor.scalar("Q")
    metadata: dict[str, Any] = {}
    for _ in range(key_count):
        key = cursor.text()
        if key in metadata:
            raise corrupt(path, f"its metadata has {key!r} twice")
        metadata[key] = _value(path, cursor, cursor.scalar("I"))
    infos = [_tensor_info(path, cursor) for _ in range(tensor_count)]
    alignment = _alignment(path, metadata)
    for name, _, _, offset in infos:
        if offset % alignment:
            raise corrupt(path, f"tensor {name!r} begins at {offset} of the data, not at a multiple of {alignment}")
    start = -(-cursor.at // alignment) * alignment
    return GgufHeader(metadata, _place(path, size, start, infos))


def _check_version(path: Path, version: int) -> None:
    if version & 0xFFFF == 0:
        raise WeightsError(f"{path} is a big-endian GGUF file; only little-endian ones can be read")
    if version not in (2, 3):
        raise WeightsError(f"{path} is GGUF version {version}; versions 2 and 3 can be read. Convert the model again")


def _value(path: Path, cursor: _Cursor, kind: int) -> Any:
    if kind == _STRING:
        return cursor.text()
    if kind != _ARRAY:
        return cursor.scalar(_scalar_code(path, kind))
    kind, count = cursor.scalar("I"), cursor.scalar("Q")
    if kind == _STRING:
        return cursor.texts(count)
    if kind == _ARRAY:
        raise corrupt(path, "its metadata has a list of lists, and no model needs one")
    return cursor.scalars(_scalar_code(path, kind), count)


def _scalar_code(path: Path, kind: int) -> str:
    if kind not in _SCALARS:
        raise corrupt(path, f"its metadata has a value of type {kind}, and types 0 to 12 exist")
    return _SCALARS[kind]


def _tensor_info(path: Path, cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name, dimensions = cursor.text(), cursor.scalar("I")
    if dimensions > _MAX_DIMENSIONS:
        raise corrupt(path, f"tensor {name!r} has {dimensions} dimensions, and at most {_MAX_DIMENSIONS} are possible")
    # GGUF counts the fastest dimension first, we count it last
    shape = tuple(reversed(cursor.scalars("Q", dimensions)))
    return name, shape, cursor.scalar("I"), cursor.scalar("Q")


def _alignment(path: Path, metadata: dict[str, Any]) -> int:
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise corrupt(path, f"general.alignment is {alignment!r}, and it must be a power of two")
    return alignment


def _place(path: Path, size: int, start: int, infos: list[tuple[str, tuple[int, ...], int, int]]) -> dict[str, Stored]:
    tensors: dict[str, Stored] = {}
    for name, shape, kind, offset in infos:
        if name in tensors:
            raise corrupt(path, f"it has tensor {name!r} twice")
        if kind not in GGUF_TYPES:
            raise unsupported_gguf_type(path, name, kind)
        type_name, block, block_bytes = GGUF_TYPES[kind]
        row = shape[-1] if shape else 1
        if row % block:
            raise corrupt(
                path, f"tensor {name!r} has rows of {row}, not a multiple of the {type_name} block of {block}"
            )
        length = math.prod(shape) // block * block_bytes
        tensors[name] = Stored(name, start + offset, length, type_name, shape)
    check_extents(path, size, tensors.values())
    return tensors


class _Cursor:
    """Walks over the mapped header; raises _EndOfFile rather than read past its end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data):
            raise _EndOfFile
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def scalar(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def scalars(self, code: str, count: int) -> list[Any]:
        return list(struct.unpack(f"<{count}{code}", self.take(count * struct.calcsize("<" + code))))

    def text(self) -> str:
        return self.take(self.scalar("Q")).decode()

    def texts(self, count: int) -> list[str]:
        # the vocabulary: this loop is all the time that a header takes, so it does no calls it can do without
        data, at, size, unpack = self.data, self.at, len(self.data), struct.Struct("<Q").unpack_from
        words: list[str] = []
        for _ in range(count):
            end = at + 8 + unpack(data, at)[0]
            if end > size:
                raise _EndOfFile
            words.append(data[at + 8 : end].decode())
            at = end
        self.at = at
        return words
