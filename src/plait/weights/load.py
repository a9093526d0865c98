"""Reads a rank's own pieces of tensors, and nothing else, in chunks: what is resident is the result and one chunk.

Plain reads, not a mapping: the pages of a mapped file count as the process's memory until they are given back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from plait.errors import WeightsError
from plait.spec.shards import Piece, Range, Shard, shard_tensors, whole_shard
from plait.weights.decode import decode
from plait.weights.index import WeightsIndex
from plait.weights.match import Entry
from plait.weights.stored import BLOCKS, PLAIN_BYTES, File, Stored

Progress = Callable[[int, int], None]

_CHUNK_ELEMENTS = 1 << 16  # what decoding works on at once should stay in the cache of the processor
_SKIPPED_BYTES = 1 << 12  # of a row that are worth a call of their own: a page


def load_stage(
    index: WeightsIndex,
    first: int,
    end: int,
    dtype: torch.dtype,
    progress: Progress | None = None,
    shard: Shard | None = None,
) -> dict[str, torch.Tensor]:
    """The tensors of layers [first, end) under the names of plait.spec.tensors, in `dtype`, on the CPU.

    With a `shard` its pieces of them. `progress` is called with (bytes read, bytes to read). Raises WeightsError where
    a file is gone, was changed since it was indexed, or ends too early.
    """
    spec = index.spec
    pieces = shard_tensors(spec, first, end, whole_shard(spec) if shard is None else shard)
    areas = {name: _area(index.entries[name], piece) for name, piece in pieces.items()}
    total = sum(area.bytes for area in areas.values())
    done = 0
    tensors: dict[str, torch.Tensor] = {}
    with ExitStack() as stack:
        files = {number: _open(index.files[number], stack) for number in {area.entry.file for area in areas.values()}}
        for name, area in areas.items():
            tensors[name] = torch.empty(pieces[name].shape, dtype=dtype)
            number = area.entry.file
            for read in _fill(tensors[name], area, files[number], index.files[number].path):
                done += read
                if progress is not None:
                    progress(done, total)
    return tensors


@dataclass(frozen=True, slots=True)
class _Area:
    """What is wanted of a stored tensor: `rows`, and of each of them `columns` (both counted as they are stored).

    `taken`: the bytes of a row that hold them, whole blocks. They are read alone where that skips enough of each row;
    otherwise whole rows are read.
    """

    entry: Entry
    rows: Range
    columns: Range
    taken: Range
    alone: bool
    bytes: int


def _area(entry: Entry, piece: Piece) -> _Area:
    stored = entry.stored
    outputs, inputs = (Range(0, size) for size in (*entry.shape, 1)[:2])
    if piece.axis == 0:
        outputs = Range(piece.first, piece.end)
    elif piece.axis == 1:
        inputs = Range(piece.first, piece.end)
    outputs = Range(entry.start + outputs.first, entry.start + outputs.end)
    rows, columns = (inputs, outputs) if entry.transposed else (outputs, inputs)
    block, size = _block(stored)
    taken = Range(columns.first // block * size, -(-columns.end // block) * size)
    alone = stored.row_bytes - taken.size >= _SKIPPED_BYTES
    read = rows.size * (taken.size if alone else stored.row_bytes) if columns.size else 0
    return _Area(entry, rows, columns, taken, alone, read)


def _block(stored: Stored) -> tuple[int, int]:
    """Elements and bytes of what is never divided."""
    return BLOCKS.get(stored.kind) or (1, PLAIN_BYTES[stored.kind])


def _open(file: File, stack: ExitStack) -> int:
    try:
        descriptor = os.open(file.path, os.O_RDONLY)
    except OSError as error:
        raise WeightsError(f"{file.path} cannot be opened: {error.strerror}") from None
    stack.callback(os.close, descriptor)
    stat = os.fstat(descriptor)
    if (stat.st_size, stat.st_mtime_ns) != (file.size, file.modified_ns):
        raise WeightsError(
            f"{file.path} was changed since it was indexed (then {file.size} bytes, now {stat.st_size}); start again"
        )
    return descriptor


def _fill(out: torch.Tensor, area: _Area, descriptor: int, path: str) -> Iterator[int]:
    """Read and decode `area` into `out`, chunk by chunk; yields the bytes that each chunk took."""
    if not out.numel():
        return
    entry, stored = area.entry, area.entry.stored
    block, size = _block(stored)
    along = out.t() if entry.transposed else out  # a view whose rows are the stored rows
    width = area.taken.size // size * block
    skipped = area.columns.first - area.taken.first // size * block
    step = max(1, _CHUNK_ELEMENTS // (width if area.alone else stored.row_bytes // size * block))
    if entry.interleaved:
        step = max(1, step // entry.interleaved) * entry.interleaved
    for row in range(0, area.rows.size, step):
        rows = min(step, area.rows.size - row)
        content = _read_rows(descriptor, area, area.rows.first + row, rows, path)
        chunk = decode(content, stored.kind, (rows, width) if len(stored.shape) == 2 else (rows,))
        if width != area.columns.size:
            chunk = chunk[:, skipped : skipped + area.columns.size]
        if entry.interleaved:
            chunk = _halves_apart(chunk, entry.interleaved)
        along[row : row + rows].copy_(chunk)
        yield rows * (area.taken.size if area.alone else stored.row_bytes)


def _read_rows(descriptor: int, area: _Area, first: int, count: int, path: str) -> bytearray:
    """The bytes of `count` rows that are taken, one row's after the other's."""
    stored, (begin, stop) = area.entry.stored, area.taken
    offset, row_bytes = stored.offset + first * stored.row_bytes, stored.row_bytes
    if area.alone:
        rows = [_read(descriptor, stop - begin, offset + row * row_bytes + begin, path) for row in range(count)]
        return bytearray().join(rows)
    content = _read(descriptor, count * row_bytes, offset, path)
    if stop - begin == row_bytes:
        return content
    view = memoryview(content)
    return bytearray().join([view[row * row_bytes + begin : row * row_bytes + stop] for row in range(count)])


def _halves_apart(rows: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Undo GGUF's zip of a head's rotary halves: row 2 j + h of a head becomes row h × head_dim / 2 + j."""
    heads = rows.shape[0] // head_dim
    zipped = rows.view(heads, head_dim // 2, 2, *rows.shape[1:])  # [heads, j, half, in]
    return zipped.transpose(1, 2).reshape(rows.shape)


def _read(descriptor: int, count: int, offset: int, path: str) -> bytearray:
    content = bytearray(count)
    view, at = memoryview(content), 0
    while at < count:
        got = os.preadv(descriptor, [view[at:]], offset + at)
        if got == 0:
            raise WeightsError(f"{path} ends at byte {offset + at}, and {count - at} more were expected there")
        at += got
    return content
