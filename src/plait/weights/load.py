"""Reads a stage's own tensors, and nothing else, in chunks: what is resident is the result and one chunk.

Plain reads, not a mapping: the pages of a mapped file count as the process's memory until they are given back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import torch

from plait.errors import WeightsError
from plait.spec.tensors import stage_tensors
from plait.weights.decode import decode
from plait.weights.index import WeightsIndex
from plait.weights.match import Entry
from plait.weights.stored import File

Progress = Callable[[int, int], None]

_CHUNK_ELEMENTS = 1 << 16  # what decoding works on at once should stay in the cache of the processor


def load_stage(
    index: WeightsIndex,
    first: int,
    end: int,
    dtype: torch.dtype,
    progress: Progress | None = None,
) -> dict[str, torch.Tensor]:
    """The tensors of layers [first, end) under the names of plait.spec.tensors, in `dtype`, on the CPU.

    `progress` is called with (bytes read, bytes to read). Raises WeightsError where a file is gone, was changed since
    it was indexed, or ends too early.
    """
    entries = {name: index.entries[name] for name in stage_tensors(index.spec, first, end)}
    total = sum(entry.length for entry in entries.values())
    done = 0
    tensors: dict[str, torch.Tensor] = {}
    with ExitStack() as stack:
        files = {number: _open(index.files[number], stack) for number in {entry.file for entry in entries.values()}}
        for name, entry in entries.items():
            tensors[name] = torch.empty(entry.shape, dtype=dtype)
            for read in _fill(tensors[name], entry, files[entry.file], index.files[entry.file].path):
                done += read
                if progress is not None:
                    progress(done, total)
    return tensors


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


def _fill(out: torch.Tensor, entry: Entry, descriptor: int, path: str) -> Iterator[int]:
    """Read and decode `entry` into `out`, chunk by chunk; yields each chunk's bytes of the entry."""
    stored = entry.stored
    along = out.t() if entry.transposed else out  # a view whose rows are the stored rows
    start = 0 if entry.transposed else entry.start
    width = stored.shape[1] if len(stored.shape) == 2 else 1
    step = max(1, _CHUNK_ELEMENTS // width)
    if entry.interleaved:
        step = max(1, step // entry.interleaved) * entry.interleaved
    for row in range(0, along.shape[0], step):
        rows = min(step, along.shape[0] - row)
        offset = stored.offset + (start + row) * stored.row_bytes
        content = _read(descriptor, rows * stored.row_bytes, offset, path)
        chunk = decode(content, stored.kind, (rows, *stored.shape[1:]))
        if entry.transposed:
            chunk = chunk[:, entry.start : entry.start + out.shape[0]]
        if entry.interleaved:
            chunk = _halves_apart(chunk, entry.interleaved)
        along[row : row + rows].copy_(chunk)
        yield entry.length * rows // along.shape[0]


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
