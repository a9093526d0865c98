"""Is the model on another host the same? What a rank holds against rank 0's, before it loads anything.

Files may lie elsewhere on every host, but must hold the same: the spec, every tensor's shape, type and size, and the
first bytes of some of them, in which two models of one shape differ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from plait.errors import WeightsError
from plait.units import format_bytes
from plait.weights.index import WeightsIndex

_SAMPLES = 64
_SAMPLE_BYTES = 4096


class Fingerprint(msgspec.Struct, array_like=True, frozen=True):
    """A model: spec by field, tensors by name as (type, shape, bytes), and a digest of some of their content."""

    spec: dict[str, Any]
    tensors: dict[str, tuple[str, tuple[int, ...], int]]
    content: str

    @classmethod
    def of(cls, index: WeightsIndex) -> Fingerprint:
        """The model's of an index. Reads a few KB of up to 64 tensors."""
        tensors = {name: (entry.stored.kind, tuple(entry.shape), entry.length) for name, entry in index.entries.items()}
        one = cls(msgspec.to_builtins(index.spec), tensors, _content(index))
        return msgspec.msgpack.decode(msgspec.msgpack.encode(one), type=cls)  # as it comes from another rank


def _content(index: WeightsIndex) -> str:
    """A digest of the first bytes of tensors that are evenly spread over the model."""
    digest = hashlib.sha256()
    names = sorted(index.entries)
    for name in names[:: max(1, len(names) // _SAMPLES)]:
        entry = index.entries[name]
        with Path(index.files[entry.file].path).open("rb") as file:
            file.seek(entry.stored.offset)
            digest.update(file.read(min(_SAMPLE_BYTES, entry.stored.length)))
    return digest.hexdigest()


def require_same(mine: Fingerprint, theirs: Fingerprint, source: str) -> None:
    """`mine`, read from `source`, is rank 0's. Errors: WeightsError, which says what differs."""
    differences = list(_differences(mine, theirs))
    if differences:
        raise WeightsError(
            f"the model in {source} is not the one that rank 0 has: {'; '.join(differences[:3])}"
            f"{f' and {len(differences) - 3} more' if len(differences) > 3 else ''}. "
            "Put the same files on every host, and give their place there with --model where it is another"
        )


def _differences(mine: Fingerprint, theirs: Fingerprint) -> Iterator[str]:
    for field in sorted(mine.spec.keys() | theirs.spec.keys()):
        here, there = mine.spec.get(field), theirs.spec.get(field)
        if field != "name" and here != there:
            yield f"{field} is {here}, there {there}"
    missing, surplus = theirs.tensors.keys() - mine.tensors.keys(), mine.tensors.keys() - theirs.tensors.keys()
    if missing:
        yield f"{_tensors(missing)} missing"
    if surplus:
        yield f"{_tensors(surplus)} not there"
    for name in mine.tensors:
        here_as, there_as = mine.tensors[name], theirs.tensors.get(name)
        if there_as is not None and here_as != there_as:
            yield f"tensor {name} is {_stored(here_as)}, there {_stored(there_as)}"
    if mine.tensors == theirs.tensors and mine.content != theirs.content:
        yield "its weights have other values"


def _tensors(names: set[str]) -> str:
    first = min(names)
    return f"tensor {first} is" if len(names) == 1 else f"{len(names)} tensors ({first}, …) are"


def _stored(tensor: tuple[str, tuple[int, ...], int]) -> str:
    kind, shape, size = tensor
    return f"{kind} {list(shape)} in {format_bytes(size)}"
