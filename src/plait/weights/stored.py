"""How tensors lie in files: places, types, and the errors that every format shares."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from plait.errors import WeightsError

GGUF_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    30: ("BF16", 1, 2),
}
"""GGUF's number of a type: its name, the elements of a block, the bytes of a block."""

PLAIN_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Types whose elements stand for themselves, and the bytes of one."""

BLOCKS = {name: (block, size) for name, block, size in GGUF_TYPES.values() if block > 1}
"""Packed types: the elements and the bytes of a block."""

_LISTED = 20


class Stored(msgspec.Struct, frozen=True):
    """A tensor in a file: `kind` is F32, BF16, Q4_1 …; `shape` counts the fastest dimension last."""

    name: str
    offset: int
    length: int
    kind: str
    shape: tuple[int, ...]

    @property
    def end(self) -> int:
        """The byte after the last one."""
        return self.offset + self.length

    @property
    def row_bytes(self) -> int:
        """Bytes of one row: all but the first dimension (one element, where there is one dimension)."""
        return self.length // self.shape[0]


class File(msgspec.Struct, frozen=True):
    """A file as it was when it was indexed."""

    path: str
    size: int
    modified_ns: int

    @classmethod
    def of(cls, path: Path) -> File:
        """The file at `path` as it is now."""
        stat = path.stat()
        return cls(str(path.absolute()), stat.st_size, stat.st_mtime_ns)


class GgufHeader(msgspec.Struct, frozen=True):
    """What a GGUF file says before its tensors."""

    metadata: dict[str, Any]
    tensors: dict[str, Stored]


def corrupt(path: Path, problem: str) -> WeightsError:
    """An error, to raise: the file itself is broken."""
    return WeightsError(f"{path} is not a whole weights file: {problem}")


def check_extents(path: Path, size: int, tensors: Iterable[Stored]) -> None:
    """Raise WeightsError where tensors overlap or lie beyond the `size` bytes of the file."""
    end, previous = 0, ""
    for stored in sorted(tensors, key=lambda each: each.offset):
        if stored.offset < end:
            raise corrupt(path, f"tensors {previous!r} and {stored.name!r} overlap at byte {stored.offset}")
        end, previous = stored.end, stored.name
        if end > size:
            raise corrupt(
                path,
                f"tensor {previous!r} lies in bytes {stored.offset} to {end}, and the file has {size} bytes: "
                f"{end - size} are missing; was the download complete?",
            )


def unsupported_gguf_type(path: Path, name: str, kind: int) -> WeightsError:
    """An error, to raise: a tensor is packed in a way that is not decoded here."""
    known = ", ".join(each for each, _, _ in GGUF_TYPES.values())
    return WeightsError(
        f"{path}: tensor {name!r} is of type {_gguf_type_name(kind)}, which is not supported; supported: {known}. "
        "Choose another quantisation of the same model"
    )


def listed(names: Iterable[str]) -> str:
    """Names in one line; beyond 20, the rest is a count."""
    words = list(names)
    rest = len(words) - _LISTED
    return ", ".join(words[:_LISTED]) + (f" and {rest} more" if rest > 0 else "")


def _gguf_type_name(kind: int) -> str:
    try:
        from gguf import GGMLQuantizationType

        return str(GGMLQuantizationType(kind).name)
    except (ImportError, ValueError):
        return f"number {kind}"
