"""The frame: what goes over a connection between two ranks, one after the other in each direction.

A frame is a header, the dimensions of its payload, and the payload itself. All numbers are 64-bit little-endian words;
nothing is ever unpickled.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

import torch

from plait.comm.calls import CODES, DTYPES
from plait.comm.link import MAX_DIMENSIONS, cannot_travel
from plait.errors import RunError

_HEADER = Struct("<10q")
_DIMENSIONS = tuple(Struct(f"<{count}q") for count in range(MAX_DIMENSIONS + 1))
_CODES = dict(CODES)
NOTHING = torch.empty(0, dtype=torch.uint8)
HEADER_BYTES = _HEADER.size
LONGEST_HEAD_BYTES = HEADER_BYTES + 8 * MAX_DIMENSIONS
"""A header and the most dimensions."""


class Kind(IntEnum):
    """What a frame is for."""

    HELLO = 1
    """The first; its words: version, capacity and host."""
    NOTE = 2
    """Only the counters that every frame carries."""
    MESSAGE = 3
    """A tensor for `try_receive`; its words: epoch, round, action."""
    CONTROL = 4
    """Bytes for `poll`."""
    STEP = 5
    """A rank's part of a collective; its words: the call."""
    FAIL = 6
    """The last of a rank that fails; its words: the culprit. The payload is the reason."""
    BYE = 7
    """The last of a rank that leaves in order, or the answer to such a last frame."""


class Counters(NamedTuple):
    """What every frame says about the other direction of its link."""

    taken: int
    """Messages that were received or dropped: so many more may be sent."""
    dropped: int


class Frame(NamedTuple):
    """A frame without its payload."""

    kind: Kind
    due_ns: int
    """When it may be seen, on the clock of an emulated link; 0: at once."""
    counters: Counters
    words: tuple[int, int, int]
    code: int
    shape: tuple[int, ...]
    payload_bytes: int


def dtype_code(tensor: torch.Tensor) -> int:
    """The number of the tensor's dtype. Errors: RunError where it, or so many dimensions, cannot travel."""
    code = _CODES.get(tensor.dtype)
    if code is None or tensor.dim() > MAX_DIMENSIONS:
        raise cannot_travel(tensor)
    return code


def head_bytes(dimensions: int) -> int:
    """How long a frame is without its payload."""
    return HEADER_BYTES + 8 * dimensions


def pack(
    kind: Kind, due_ns: int, counters: Counters, words: tuple[int, int, int], code: int, tensor: torch.Tensor
) -> bytes:
    """What stands before the payload, which is the memory of the contiguous tensor."""
    shape = tensor.shape
    header = _HEADER.pack(kind, due_ns, *counters, *words, code, len(shape), tensor.nbytes)
    return header + _DIMENSIONS[len(shape)].pack(*shape)


def dimensions_of(memory: memoryview) -> int:
    """How many dimensions the frame has whose header begins here. Errors: RunError where it cannot be one."""
    kind, _, _, _, _, _, _, code, dimensions, size = _HEADER.unpack_from(memory)
    if not (1 <= kind <= len(Kind) and 0 <= code < len(DTYPES) and 0 <= dimensions <= MAX_DIMENSIONS and size >= 0):
        raise RunError("what arrived is no frame: do all ranks run the same version of Plait?")
    return int(dimensions)


def unpack(memory: memoryview) -> Frame:
    """The frame whose head begins here. Errors: RunError where it cannot be one."""
    shape = _DIMENSIONS[dimensions_of(memory)].unpack_from(memory, HEADER_BYTES)
    kind, due_ns, taken, dropped, first, second, third, code, _, size = _HEADER.unpack_from(memory)
    count = DTYPES[code].itemsize
    for length in shape:
        count *= length
    if count != size:
        raise RunError("what arrived is no frame: do all ranks run the same version of Plait?")
    return Frame(Kind(kind), due_ns, Counters(taken, dropped), (first, second, third), code, shape, size)
