"""Collectives over shared memory, made of the steps of `exchange`.

Sums are added in rank order, each rank's part where it stands, so that all get the same bits. Small tensors, and any
between two ranks, go to everyone and everyone adds; larger ones are cut, each rank adds one piece and hands it round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from struct import Struct

import torch

from plait.comm.calls import CODES, DTYPES, NO_DTYPE, Call, Op, code_of, cut_of, row_bytes
from plait.comm.contract import Group
from plait.comm.exchange import NUMPY_CODES, Array, Steps
from plait.comm.link import MAX_DIMENSIONS, host_tensor
from plait.comm.pair_sum import PairSum
from plait.comm.region import move
from plait.errors import RunError

_SHAPE = Struct(f"<{2 + MAX_DIMENSIONS}q")


class Collectives:
    """One rank's collectives. `steps_of` gives the steps of a group, by its ranks."""

    def __init__(self, steps_of: Callable[[tuple[int, ...]], Steps]) -> None:
        self._steps_of = steps_of
        self._known: dict[tuple[int, ...], Steps] = {}
        self._sums: dict[int, PairSum] = {}
        self._codes = dict(CODES)

    def _steps(self, group: Group) -> Steps:
        steps = self._known.get(group.ranks)
        if steps is None:
            steps = self._known[group.ranks] = self._steps_of(group.ranks)
            if len(steps.pairs) == 1:
                self._sums.setdefault(steps.others[0], PairSum(steps))
        return steps

    def forget(self) -> None:
        """The endpoint is closed: the next call asks for the group's steps again, and learns of it."""
        self._known.clear()
        self._sums.clear()

    # --- sums -------------------------------------------------------------------------------------------

    def all_reduce(self, group: Group, tensor: torch.Tensor) -> torch.Tensor:
        """See `Endpoint.all_reduce`."""
        steps = self._known.get(group.ranks) or self._steps(group)
        if not steps.pairs:
            return tensor
        if not (tensor.is_contiguous() and tensor.is_cpu):
            return self._reduce_copy(group, tensor)
        size, code = tensor.nbytes, self._codes.get(tensor.dtype, -1)
        if code < 0:
            code = code_of(tensor.dtype)
        call = size << 8 | code << 4 | Op.ALL_REDUCE
        if size <= steps.small_bytes and len(steps.pairs) == 1:
            self._sums[steps.others[0]].add(tensor, size, call)
        elif size <= steps.small_bytes:
            steps.give(tensor.data_ptr(), size, call)
            steps.meet(steps.pairs, call)
            _add(steps, _flat(tensor, code), code)
        elif len(steps.pairs) == 1:
            self._reduce_pair(steps, tensor, code, call)
        else:
            self._reduce_pieces(steps, tensor, code, call)
        return tensor

    def _reduce_copy(self, group: Group, tensor: torch.Tensor) -> torch.Tensor:
        """For a tensor that is not plain host memory."""
        with torch.no_grad():
            return tensor.copy_(self.all_reduce(group, host_tensor(tensor.detach()).clone()))

    def _reduce_pair(self, steps: Steps, tensor: torch.Tensor, code: int, call: int) -> None:
        flat, address, size = _flat(tensor, code), tensor.data_ptr(), tensor.nbytes
        width = tensor.element_size()

        def take(offset: int) -> None:
            _add(steps, flat[offset // width :][: steps.pairs[0].slot_bytes // width], code)

        steps.swap([(address, size)], [size], call, take)

    def _reduce_pieces(self, steps: Steps, tensor: torch.Tensor, code: int, call: int) -> None:
        """Block by block, so that a block is still in the cache when its pieces go round."""
        flat, width, ranks = _flat(tensor, code), tensor.element_size(), len(steps.ranks)
        address = tensor.data_ptr()
        block = steps.pairs[0].slot_bytes // width * ranks
        for first in range(0, tensor.numel(), block):
            count = min(block, tensor.numel() - first)
            bounds = [first + count * index // ranks for index in range(ranks + 1)]
            sizes = [(end - start) * width for start, end in pairwise(bounds)]
            mine, at = flat[bounds[steps.index] : bounds[steps.index + 1]], steps.index
            others = [index for index in range(ranks) if index != at]

            def add(_: int, mine: Array = mine) -> None:
                _add(steps, mine, code)

            give = [(address + bounds[index] * width, sizes[index]) for index in others]
            steps.swap(give, [sizes[at]] * len(others), call, add)
            into = [address + bounds[index] * width for index in others]
            own = (address + bounds[at] * width, sizes[at])
            _gather(steps, [own] * len(others), into, [sizes[index] for index in others], call)

    def reduce_scatter(self, group: Group, tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """See `Endpoint.reduce_scatter`."""
        steps, tensor = self._steps(group), host_tensor(tensor.detach())
        _check_rows(sizes, steps, tensor, sum(sizes))
        code, width, row = code_of(tensor.dtype), tensor.element_size(), row_bytes(tensor)
        start = sum(sizes[: steps.index])
        mine = tensor[start : start + sizes[steps.index]].clone()
        flat, size = _flat(mine, code), mine.nbytes
        call = Call(Op.REDUCE_SCATTER, code, tensor.nbytes, cut_of(sizes)).pack()

        def take(offset: int) -> None:
            if offset < size:
                _add(steps, flat[offset // width :][: steps.pairs[0].slot_bytes // width], code)

        offsets = _starts([count * row for count in sizes])
        give = [
            (tensor.data_ptr() + offsets[index], sizes[index] * row)
            for index in range(len(sizes))
            if index != steps.index
        ]
        steps.swap(give, [size] * len(give), call, take)
        return mine

    # --- copies -----------------------------------------------------------------------------------------

    def all_gather(self, group: Group, tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """See `Endpoint.all_gather`."""
        steps, tensor = self._steps(group), host_tensor(tensor.detach())
        _check_rows(sizes, steps, tensor, None)
        whole = tensor.new_empty((sum(sizes), *tensor.shape[1:]))
        row, address = row_bytes(tensor), whole.data_ptr()
        counts = [count * row for count in sizes]
        starts = _starts(counts)
        move(address + starts[steps.index], tensor.data_ptr(), counts[steps.index])
        others = [index for index in range(len(sizes)) if index != steps.index]
        own = (tensor.data_ptr(), tensor.nbytes)
        into = [address + starts[index] for index in others]
        call = Call(Op.ALL_GATHER, code_of(tensor.dtype), whole.nbytes, cut_of(sizes)).pack()
        _gather(steps, [own] * len(others), into, [counts[index] for index in others], call)
        return whole

    def all_to_all(self, group: Group, pieces: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """See `Endpoint.all_to_all`."""
        steps = self._steps(group)
        if len(pieces) != len(steps.ranks):
            raise RunError(f"all_to_all of {len(steps.ranks)} ranks needs as many pieces, not {len(pieces)}")
        sent = [host_tensor(piece.detach()) for piece in pieces]
        call = Call(Op.ALL_TO_ALL, NO_DTYPE, 0).pack()
        received = _swap_shapes(steps, [piece for index, piece in enumerate(sent) if index != steps.index], call)
        give = [(piece.data_ptr(), piece.nbytes) for index, piece in enumerate(sent) if index != steps.index]
        _gather(steps, give, [piece.data_ptr() for piece in received], [piece.nbytes for piece in received], call)
        received.insert(steps.index, sent[steps.index].clone())
        return received

    def broadcast(self, group: Group, tensor: torch.Tensor, source: int) -> torch.Tensor:
        """See `Endpoint.broadcast`."""
        steps = self._steps(group)
        if source not in steps.ranks:
            raise RunError(f"broadcast from rank {source}, which is not in the group {steps.ranks}")
        host = host_tensor(tensor.detach())
        call = Call(Op.BROADCAST, code_of(tensor.dtype), host.nbytes).pack()
        nothing, all_of_it = (0, 0), (host.data_ptr(), host.nbytes)
        give = [all_of_it if steps.rank == source else nothing for _ in steps.pairs]
        expect = [host.nbytes if pair.rank == source else 0 for pair in steps.pairs]
        _gather(steps, give, [host.data_ptr()] * len(give), expect, call)
        if host.data_ptr() != tensor.data_ptr():
            with torch.no_grad():
                tensor.copy_(host)
        return tensor

    def barrier(self, group: Group) -> None:
        """See `Endpoint.barrier`."""
        steps = self._steps(group)
        call = Call(Op.BARRIER, NO_DTYPE, 0).pack()
        steps.give(0, 0, call)
        steps.meet(steps.pairs, call)


def _flat(tensor: torch.Tensor, code: int) -> Array:
    """The elements of a contiguous tensor in a row, for adding in place."""
    if code in NUMPY_CODES:
        return tensor.detach().numpy().reshape(-1)
    return tensor.detach().view(-1)


def _add(steps: Steps, mine: Array, code: int) -> None:
    """Add the others' parts of this step to ours, in rank order (our own place is ours)."""
    count, at, pairs = len(mine), steps.index, steps.pairs
    if at:
        total = pairs[0].view(code)[:count]
        if at > 1:
            total = total + pairs[1].view(code)[:count]
            for pair in pairs[2:at]:
                total += pair.view(code)[:count]
        mine += total
    for pair in pairs[at:]:
        mine += pair.view(code)[:count]


def _gather(
    steps: Steps, give: Sequence[tuple[int, int]], into: Sequence[int], expect: Sequence[int], call: int
) -> None:
    """Copy what comes from each other rank to an address."""

    def take(offset: int) -> None:
        for pair, address, size in zip(steps.pairs, into, expect, strict=True):
            if offset < size:
                move(address + offset, pair.theirs.addresses[pair.step & 1], min(pair.slot_bytes, size - offset))

    steps.swap(give, expect, call, take)


def _swap_shapes(steps: Steps, pieces: Sequence[torch.Tensor], call: int) -> list[torch.Tensor]:
    """Tell each other rank the dtype and shape of its piece; empty tensors for what will come."""
    notes = torch.zeros(2, len(pieces), 2 + MAX_DIMENSIONS, dtype=torch.int64)
    for note, piece in zip(notes[0], pieces, strict=True):
        if piece.dim() > MAX_DIMENSIONS:
            raise RunError(f"a tensor of {piece.dim()} dimensions cannot travel: at most {MAX_DIMENSIONS}")
        note[: 2 + piece.dim()] = torch.tensor([code_of(piece.dtype), piece.dim(), *piece.shape])
    give = [(note.data_ptr(), _SHAPE.size) for note in notes[0]]
    _gather(steps, give, [note.data_ptr() for note in notes[1]], [_SHAPE.size] * len(pieces), call)
    empty = []
    for code, dimensions, *shape in notes[1].tolist():
        empty.append(torch.empty(shape[:dimensions], dtype=DTYPES[code]))
    return empty


def _starts(counts: Sequence[int]) -> list[int]:
    return [sum(counts[:index]) for index in range(len(counts))]


def _check_rows(sizes: Sequence[int], steps: Steps, tensor: torch.Tensor, rows: int | None) -> None:
    """The sizes fit the group and the tensor."""
    needed = sizes[steps.index] if rows is None and len(sizes) == len(steps.ranks) else rows
    if len(sizes) != len(steps.ranks) or len(tensor) != needed:
        raise RunError(
            f"sizes {list(sizes)} do not fit a group of {len(steps.ranks)} ranks and "
            f"a tensor of {len(tensor)} rows on rank {steps.rank}"
        )
