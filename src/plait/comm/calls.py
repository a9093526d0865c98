"""What a collective call is, so that ranks that call different ones find out, and the arithmetic they share."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from math import prod
from typing import NamedTuple

import torch

from plait.errors import RunError

DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.int64,
    torch.float16,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)
"""The dtypes that travel. The position is the number in headers: append only."""

CODES = tuple((dtype, code) for code, dtype in enumerate(DTYPES))

NO_DTYPE = len(DTYPES)


class Op(IntEnum):
    """The collectives."""

    ALL_REDUCE = 1
    REDUCE_SCATTER = 2
    ALL_GATHER = 3
    ALL_TO_ALL = 4
    BROADCAST = 5
    BARRIER = 6


class Call(NamedTuple):
    """What every rank of a group must agree on; it packs into one number."""

    op: Op
    dtype: int
    total_bytes: int
    cut: int = 0
    """A digest of the ranks' sizes (`cut_of`) where those are given."""

    def pack(self) -> int:
        """The call as a positive number below 2^63."""
        return self.cut << 48 | self.total_bytes << 8 | self.dtype << 4 | self.op

    @staticmethod
    def unpack(number: int) -> Call:
        """The call of a number."""
        return Call(Op(number & 15), number >> 4 & 15, number >> 8 & (1 << 40) - 1, number >> 48)

    def __str__(self) -> str:
        name = self.op.name.lower()
        if self.dtype == NO_DTYPE:
            return name
        return f"{name} of {self.total_bytes} bytes of {str(DTYPES[self.dtype]).removeprefix('torch.')}"


def mismatch(mine: Call, rank: int, theirs: Call, other: int) -> RunError:
    """The error of two ranks of a group that call different collectives."""
    rule = "the ranks of a group call its collectives in the same order, with the same sizes"
    if mine._replace(cut=0) == theirs._replace(cut=0):
        return RunError(f"rank {rank} and rank {other} call {mine}, but cut it differently among the ranks: {rule}")
    return RunError(f"rank {rank} calls {mine}, but rank {other} calls {theirs}: {rule}")


def cut_of(sizes: Sequence[int]) -> int:
    """15 bits that are the same for the same sizes."""
    return hash(tuple(sizes)) & 0x7FFF


def code_of(dtype: torch.dtype) -> int:
    """The number of a dtype in headers."""
    for known, code in CODES:
        if known is dtype:
            return code
    names = ", ".join(str(known).removeprefix("torch.") for known in DTYPES)
    raise RunError(f"a tensor of {dtype} cannot travel; these can: {names}")


def row_bytes(tensor: torch.Tensor) -> int:
    """Bytes of one row of [rows, …]."""
    return prod(tensor.shape[1:]) * tensor.element_size()


def add_in_order(pieces: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sum of the pieces, added first to last: a new tensor."""
    total = pieces[0].clone()
    for piece in pieces[1:]:
        total += piece
    return total
