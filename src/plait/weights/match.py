"""Lays what a file should hold on what it holds: each of our tensors gets its place, and every difference is listed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import msgspec

from plait.errors import WeightsError
from plait.spec.model import ModelSpec
from plait.spec.tensors import Shape, model_tensors
from plait.weights.names import Expected, ignorable
from plait.weights.stored import BLOCKS, PLAIN_BYTES, File, Stored, listed

Places = Mapping[str, tuple[int, Stored]]

_COMPARED_AT_ONCE = 8 << 20


class Entry(msgspec.Struct, frozen=True):
    """One of our tensors of `shape`: its rows begin at `start` of `stored` (its columns, where that is transposed).

    `interleaved` is the size of a head whose two rotary halves lie zipped together in the file, or 0.
    """

    file: int
    stored: Stored
    shape: Shape
    start: int = 0
    transposed: bool = False
    interleaved: int = 0

    @property
    def length(self) -> int:
        """Bytes of it in the file."""
        along = self.stored.shape[-1] if self.transposed else self.stored.shape[0]
        return self.stored.length * self.shape[0] // along


def match(
    spec: ModelSpec, expected: Sequence[Expected], places: Places, files: Sequence[File], source: str
) -> tuple[dict[str, Entry], tuple[str, ...]]:
    """Entries and notes. Raises WeightsError listing what is missing, surplus, misshapen or of an unknown type."""
    by_name = {each.name: each for each in expected}
    surplus = [name for name in places if name not in by_name]
    notes, surplus = _explained(spec, by_name, surplus, places, files)
    problems = [
        *_named("missing", [name for name in by_name if name not in places]),
        *_named("surplus", surplus),
        *_named("of another shape", _misshapen(by_name, places)),
        *_named("of a type that is not supported", _unsupported(by_name, places)),
    ]
    if problems:
        raise WeightsError(f"{source} does not hold the weights of {spec.name} ({spec.family}); " + "; ".join(problems))
    return _entries(spec, expected, places), notes


def _entries(spec: ModelSpec, expected: Sequence[Expected], places: Places) -> dict[str, Entry]:
    shapes = model_tensors(spec)
    entries: dict[str, Entry] = {}
    for each in expected:
        file, stored = places[each.name]
        start = 0
        for part in each.parts:
            interleaved = spec.head_dim if each.interleaved else 0
            entries[part] = Entry(file, stored, shapes[part], start, each.transposed, interleaved)
            start += shapes[part][0]
    return entries


def _named(problem: str, names: list[str]) -> list[str]:
    return [f"{len(names)} {problem}: {listed(names)}"] if names else []


def _misshapen(by_name: Mapping[str, Expected], places: Places) -> list[str]:
    return [
        f"{name} is {list(places[name][1].shape)}, needed {list(each.shape)}"
        for name, each in by_name.items()
        if name in places and places[name][1].shape != each.shape
    ]


def _unsupported(by_name: Mapping[str, Expected], places: Places) -> list[str]:
    return [
        f"{name} is {places[name][1].kind}"
        for name in by_name
        if name in places and places[name][1].kind not in PLAIN_BYTES and places[name][1].kind not in BLOCKS
    ]


def _explained(
    spec: ModelSpec, by_name: Mapping[str, Expected], surplus: list[str], places: Places, files: Sequence[File]
) -> tuple[tuple[str, ...], list[str]]:
    """Notes on the surplus that does no harm, and the rest."""
    buffers = [name for name in surplus if ignorable(spec, name)]
    notes = [f"buffers that follow from the config are not read: {listed(buffers)}"] if buffers else []
    rest = [name for name in surplus if name not in buffers]
    embedding = next((each.name for each in by_name.values() if "embed.weight" in each.parts), "")
    if spec.tied and "lm_head.weight" in rest and embedding in places:
        if not _same_content(places["lm_head.weight"], places[embedding], files):
            raise WeightsError(
                f"{files[0].path}: the config ties the LM head to the embedding (tie_word_embeddings), "
                f"but lm_head.weight and {embedding} differ; set tie_word_embeddings to false if the head is its own"
            )
        rest.remove("lm_head.weight")
        notes.append(f"lm_head.weight equals the tied {embedding} and is not read")
    return tuple(notes), rest


def _same_content(one: tuple[int, Stored], other: tuple[int, Stored], files: Sequence[File]) -> bool:
    (file_a, a), (file_b, b) = one, other
    if (a.kind, a.shape) != (b.kind, b.shape):
        return False
    with open(files[file_a].path, "rb") as left, open(files[file_b].path, "rb") as right:
        for done in range(0, a.length, _COMPARED_AT_ONCE):
            count = min(_COMPARED_AT_ONCE, a.length - done)
            if os.pread(left.fileno(), count, a.offset + done) != os.pread(right.fileno(), count, b.offset + done):
                return False
    return True
