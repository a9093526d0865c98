"""Collectives over frames: every rank gives its part to the others, waits for theirs, and adds in rank order.

The same sums from the same parts as `collectives` over shared memory, so the same bits; and the bytes that
`plans.exchanges` says. A large sum among more than two ranks goes in two steps, whatever its size: a link between hosts
cares more for turns than for the cache, and the blocks only say how pieces are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from plait.comm.calls import NO_DTYPE, Call, Op, code_of, cut_of, mismatch, row_bytes
from plait.comm.contract import DEFAULT_TIMEOUT_S, Group
from plait.comm.frames import NOTHING
from plait.comm.link import host_tensor
from plait.errors import RunError
from plait.plans.exchanges import AT_ONCE_BYTES, BLOCK_BYTES


class Steps(Protocol):
    """What collectives need of an endpoint."""

    rank: int
    size: int
    idle: Callable[[], None] | None

    def give(self, to: int, call: int, tensor: torch.Tensor) -> None:
        """Give a part of the next step to a rank. The tensor may not change any more."""

    def came(self, source: int) -> tuple[int, torch.Tensor] | None:
        """The call and part that a rank has given, once it is here."""

    def wait(
        self,
        ready: Callable[[], tuple[int, torch.Tensor] | None],
        what: str,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        peers: Sequence[int] = (),
    ) -> tuple[int, torch.Tensor]:
        """See `Endpoint.wait`."""


class FramedCollectives:
    """One rank's collectives."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def _index(self, group: Group) -> int:
        rank, ranks = self._steps.rank, group.ranks
        if rank not in ranks or list(ranks) != sorted(set(ranks)):
            raise RunError(f"rank {rank} needs a group of ascending ranks with itself in it, not {ranks}")
        return ranks.index(rank)

    def _swap(self, group: Group, call: Call, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Give part i to rank i of the group; what they gave, in rank order, with our own part in our place."""
        steps, number = self._steps, call.pack()
        for rank, part in zip(group.ranks, parts, strict=True):
            if rank != steps.rank:
                steps.give(rank, number, part)
        return [
            part if rank == steps.rank else self._take(group, call, number, rank)
            for rank, part in zip(group.ranks, parts, strict=True)
        ]

    def _take(self, group: Group, call: Call, number: int, source: int) -> torch.Tensor:
        """Wait for a rank's part. Only that rank's: another may have everything, and leave."""
        steps = self._steps

        def ready() -> tuple[int, torch.Tensor] | None:
            here = steps.came(source)
            if here is None and steps.idle is not None:
                steps.idle()
            return here

        came = steps.came(source)
        if came is None:
            what = f"{call} of ranks {', '.join(map(str, group.ranks))}"
            came = steps.wait(ready, what, DEFAULT_TIMEOUT_S, (source,))
        if came[0] != number:
            raise mismatch(call, steps.rank, Call.unpack(came[0]), source)
        return came[1]

    # --- sums -------------------------------------------------------------------------------------------

    def all_reduce(self, group: Group, tensor: torch.Tensor) -> torch.Tensor:
        """See `Endpoint.all_reduce`."""
        index, ranks = self._index(group), len(group.ranks)
        if ranks == 1:
            return tensor
        mine = host_tensor(tensor.detach()).reshape(-1).clone()
        call = Call(Op.ALL_REDUCE, code_of(tensor.dtype), mine.nbytes)
        if ranks == 2 or mine.nbytes <= AT_ONCE_BYTES:
            total = _sum(self._swap(group, call, [mine] * ranks))
        else:
            total = self._reduce_pieces(group, index, call, mine)
        with torch.no_grad():
            tensor.copy_(total.view(tensor.shape))
        return tensor

    def _reduce_pieces(self, group: Group, index: int, call: Call, mine: torch.Tensor) -> torch.Tensor:
        """Each rank adds its piece of every block, and gives the sums to all others."""
        cuts = _cuts(mine, len(group.ranks))
        pieces = [torch.cat([mine[start:end] for start, end in cut]) for cut in cuts]
        added = _sum(self._swap(group, call, pieces))
        sums = self._swap(group, call, [added] * len(cuts))
        total = torch.empty_like(mine)
        for cut, piece in zip(cuts, sums, strict=True):
            for (start, end), part in zip(cut, torch.split(piece, [end - start for start, end in cut]), strict=True):
                total[start:end] = part
        return total

    def reduce_scatter(self, group: Group, tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """See `Endpoint.reduce_scatter`."""
        index, host = self._index(group), host_tensor(tensor.detach())
        self._check_rows(group, sizes, host, sum(sizes))
        call = Call(Op.REDUCE_SCATTER, code_of(host.dtype), host.nbytes, cut_of(sizes))
        parts = [part.clone() for part in torch.split(host, list(sizes))]
        return _sum(self._swap(group, call, parts)) if len(parts) > 1 else parts[index]

    # --- copies -----------------------------------------------------------------------------------------

    def all_gather(self, group: Group, tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """See `Endpoint.all_gather`."""
        index, host = self._index(group), host_tensor(tensor.detach())
        self._check_rows(group, sizes, host, sizes[index] if len(sizes) == len(group.ranks) else None)
        call = Call(Op.ALL_GATHER, code_of(host.dtype), sum(sizes) * row_bytes(host), cut_of(sizes))
        return torch.cat(self._swap(group, call, [host.clone()] * len(sizes)))

    def all_to_all(self, group: Group, pieces: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """See `Endpoint.all_to_all`."""
        self._index(group)
        if len(pieces) != len(group.ranks):
            raise RunError(f"all_to_all of {len(group.ranks)} ranks needs as many pieces, not {len(pieces)}")
        parts = [host_tensor(piece.detach()).clone() for piece in pieces]
        return self._swap(group, Call(Op.ALL_TO_ALL, NO_DTYPE, 0), parts)

    def broadcast(self, group: Group, tensor: torch.Tensor, source: int) -> torch.Tensor:
        """See `Endpoint.broadcast`."""
        self._index(group)
        if source not in group.ranks:
            raise RunError(f"broadcast from rank {source}, which is not in the group {group.ranks}")
        call = Call(Op.BROADCAST, code_of(tensor.dtype), tensor.nbytes)
        mine = host_tensor(tensor.detach()).clone() if self._steps.rank == source else NOTHING
        spread = self._swap(group, call, [mine] * len(group.ranks))[group.ranks.index(source)]
        with torch.no_grad():
            tensor.copy_(spread.view(tensor.shape))
        return tensor

    def barrier(self, group: Group) -> None:
        """See `Endpoint.barrier`."""
        self._index(group)
        self._swap(group, Call(Op.BARRIER, NO_DTYPE, 0), [NOTHING] * len(group.ranks))

    def _check_rows(self, group: Group, sizes: Sequence[int], tensor: torch.Tensor, rows: int | None) -> None:
        """The sizes fit the group and the tensor."""
        if len(sizes) != len(group.ranks) or len(tensor) != rows:
            raise RunError(
                f"sizes {list(sizes)} do not fit a group of {len(group.ranks)} ranks and "
                f"a tensor of {len(tensor)} rows on rank {self._steps.rank}"
            )


def _sum(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sum, added first to last, in a new tensor."""
    total = parts[0] + parts[1]
    for part in parts[2:]:
        total += part
    return total


def _cuts(tensor: torch.Tensor, ranks: int) -> list[list[tuple[int, int]]]:
    """For each rank the pieces (first, end) that it adds, one of every block: as `all_reduce_bytes` counts them."""
    block = BLOCK_BYTES // tensor.element_size() * ranks
    cuts: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
    for first in range(0, tensor.numel(), block):
        count = min(block, tensor.numel() - first)
        for index, cut in enumerate(cuts):
            cut.append((first + count * index // ranks, first + count * (index + 1) // ranks))
    return cuts
