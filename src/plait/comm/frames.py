"""The frame: what goes over a link of torch.distributed, one after the other in each direction.

A frame is a header, the dimensions of its payload, and the payload itself where it is small: then a hand-over of
decoding is one message of the network. A larger payload follows the frame, straight from and into a tensor's memory.
All numbers are 64-bit little-endian words; nothing is ever unpickled.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

import torch

from plait.comm.calls import CODES, DTYPES
from plait.comm.link import MAX_DIMENSIONS, cannot_travel
from plait.comm.region import move
from plait.errors import RunError

INLINE_BYTES = 1 << 16
"""The largest payload inside a frame. One that follows costs a turn more: its receiver opens the receive then."""

CHUNK_BYTES = 1 << 30

_HEADER = Struct("<10q")
_DIMENSIONS = tuple(Struct(f"<{count}q") for count in range(MAX_DIMENSIONS + 1))
_CODES = dict(CODES)
NOTHING = torch.empty(0, dtype=torch.uint8)
FRAME_BYTES = _HEADER.size + 8 * MAX_DIMENSIONS + INLINE_BYTES


class Kind(IntEnum):
    """What a frame is for."""

    HELLO = 1
    """The first; its words: version and capacity."""
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

    seen: int
    """Frames that have arrived: their sender may forget them."""
    taken: int
    """Messages that were received or dropped: so many more may be sent."""
    dropped: int


class Frame(NamedTuple):
    """A frame without its payload."""

    kind: Kind
    counters: Counters
    words: tuple[int, int, int]
    code: int
    shape: tuple[int, ...]
    payload_bytes: int
    payload_at: int
    """Where the payload begins in the frame; 0 where it follows."""


def dtype_code(tensor: torch.Tensor) -> int:
    """The number of the tensor's dtype. Errors: RunError where it, or so many dimensions, cannot travel."""
    code = _CODES.get(tensor.dtype)
    if code is None or tensor.dim() > MAX_DIMENSIONS:
        raise cannot_travel(tensor)
    return code


def pack(kind: Kind, counters: Counters, words: tuple[int, int, int], code: int, tensor: torch.Tensor) -> torch.Tensor:
    """The frame as bytes (uint8), with the contiguous tensor's memory inside where it is small."""
    shape, size = tuple(tensor.shape), tensor.nbytes
    start = _HEADER.size + 8 * len(shape)
    inside = size if size <= INLINE_BYTES else 0
    memory = bytearray(start + inside)
    _HEADER.pack_into(memory, 0, kind, *counters, *words, code, len(shape), size)
    _DIMENSIONS[len(shape)].pack_into(memory, _HEADER.size, *shape)
    frame = torch.frombuffer(memory, dtype=torch.uint8)
    if inside:
        move(frame.data_ptr() + start, tensor.data_ptr(), inside)
    return frame


def unpack(memory: bytearray) -> Frame:
    """The frame at the start of the memory. Errors: RunError where it cannot be one."""
    kind, seen, taken, dropped, first, second, third, code, dimensions, size = _HEADER.unpack_from(memory)
    if not (1 <= kind <= len(Kind) and 0 <= code < len(DTYPES) and 0 <= dimensions <= MAX_DIMENSIONS and size >= 0):
        raise RunError("what arrived is no frame: do all ranks run the same version of Plait?")
    shape = _DIMENSIONS[dimensions].unpack_from(memory, _HEADER.size)
    start = _HEADER.size + 8 * dimensions if size <= INLINE_BYTES else 0
    return Frame(Kind(kind), Counters(seen, taken, dropped), (first, second, third), code, shape, size, start)


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous tensor as bytes."""
    return tensor.detach().reshape(-1).view(torch.uint8)


def chunks(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The memory of a contiguous tensor as bytes, in pieces that one message of gloo carries."""
    flat = flat_bytes(tensor)
    return [flat[start : start + CHUNK_BYTES] for start in range(0, len(flat), CHUNK_BYTES)]
