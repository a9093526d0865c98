"""Collective steps between two ranks through shared memory: what every collective of the group is made of.

In a step both ranks of a pair give something (perhaps nothing), and each waits for what the other gave. Steps are
counted by pair, so that any groups, overlapping ones too, may follow each other in any order. Two slots suffice: who
writes step s + 2 has seen the other's step s + 1, and the other gave that only after it had read step s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from plait.comm.calls import DTYPES, Call, mismatch
from plait.comm.link import PIECE_BYTES, Outgoing
from plait.comm.region import STRONG_ORDER, Place, Region, move

Await = Callable[[Callable[[], bool | None], str, Sequence[int]], bool]
"""Waits until the function returns True: what for, and for which ranks."""

_ARRAYS = {torch.float32: np.float32, torch.float64: np.float64, torch.int64: np.int64, torch.int32: np.int32}

NUMPY_DTYPES = frozenset(code for code, dtype in enumerate(DTYPES) if dtype in _ARRAYS)
"""Codes of the dtypes that numpy adds: a numpy call takes 300 ns, a torch call 800."""


class Pair:
    """This rank's side of the steps with one other rank."""

    def __init__(
        self, rank: int, region: Region, mine: Place, theirs: Place, tell: Callable[[], None], outgoing: Outgoing
    ) -> None:
        self.rank = rank
        self.step = 0
        self.words = region.words
        self.at_theirs = theirs.call >> 3
        self.slot_bytes = min(PIECE_BYTES, mine.slot_bytes)
        self.inside = tuple(region.address + theirs.call_slot(parity) for parity in (0, 1))
        self._at_mine = mine.call >> 3
        self._outside = tuple(region.address + mine.call_slot(parity) for parity in (0, 1))
        self._offsets = tuple(theirs.call_slot(parity) for parity in (0, 1))
        self._bytes = region.bytes
        self._views: dict[tuple[int, int], npt.NDArray[np.float32] | torch.Tensor] = {}
        self._tell, self._outgoing = tell, outgoing

    def give(self, address: int, count_bytes: int, call: int, fence: Callable[[], None]) -> None:
        """Our part of the next step. It is copied: the caller may change it at once."""
        self.step = step = self.step + 1
        parity = step & 1
        if count_bytes:
            move(self._outside[parity], address, count_bytes)
            self._outgoing.payload_bytes += count_bytes
        words, at = self.words, self._at_mine
        words[at + 2 + parity] = call
        if not STRONG_ORDER:
            fence()
        words[at] = step
        self._tell()

    def came(self) -> bool | None:
        """True when the other's part of the step is there."""
        return self.words[self.at_theirs] >= self.step or None

    def view(self, code: int) -> npt.NDArray[np.float32] | torch.Tensor:
        """The other's part as an array of a dtype, as long as the slot: only until the next step."""
        parity = self.step & 1
        view = self._views.get((parity, code))
        if view is None:
            view = self._views[parity, code] = self._make_view(parity, DTYPES[code])
        return view

    def _make_view(self, parity: int, dtype: torch.dtype) -> npt.NDArray[np.float32] | torch.Tensor:
        count, offset = self.slot_bytes // dtype.itemsize, self._offsets[parity]
        if dtype in _ARRAYS:
            return np.frombuffer(self._bytes, _ARRAYS[dtype], count, offset)
        return torch.frombuffer(self._bytes, dtype=dtype, count=count, offset=offset)


class Steps:
    """The steps of one group, as one of its ranks sees them."""

    def __init__(
        self,
        rank: int,
        ranks: tuple[int, ...],
        pairs: Sequence[Pair],
        spins: int,
        wait: Await,
        fence: Callable[[], None],
    ) -> None:
        self.rank, self.ranks = rank, ranks
        self.index = ranks.index(rank)
        self.pairs = tuple(pairs)
        self.others = tuple(pair.rank for pair in pairs)
        self._spins, self._wait, self._fence = spins, wait, fence

    def give(self, address: int, count_bytes: int, call: int) -> None:
        """Give the same to every other rank of the group."""
        for pair in self.pairs:
            pair.give(address, count_bytes, call, self._fence)

    def meet(self, pairs: Sequence[Pair], call: int) -> None:
        """Wait for the other ranks' part of the step."""
        spins = self._spins
        for pair in pairs:
            words, at, step = pair.words, pair.at_theirs, pair.step
            turns = spins
            while words[at] < step:
                turns -= 1
                if turns < 0:
                    self._wait(pair.came, self._what(call), self.others)
            if not STRONG_ORDER:
                self._fence()
            theirs = words[at + 2 + (step & 1)]
            if theirs != call:
                raise mismatch(Call.unpack(call), self.rank, Call.unpack(theirs), pair.rank)

    def _what(self, call: int) -> str:
        return f"{Call.unpack(call)} of ranks {', '.join(map(str, self.ranks))}"

    def swap(
        self, give: Sequence[tuple[int, int]], expect: Sequence[int], call: int, take: Callable[[int], None]
    ) -> None:
        """Step until every pair has had all it gives (address, bytes) and expects (bytes).

        After each step, `take` is told how many bytes of each came before.
        """
        offset = 0
        active = [
            (pair, address, size, max(size, size_in))
            for pair, (address, size), size_in in zip(self.pairs, give, expect, strict=True)
        ]
        while active:
            piece = active[0][0].slot_bytes
            for pair, address, size, _ in active:
                pair.give(address + offset, max(0, min(piece, size - offset)), call, self._fence)
            self.meet([pair for pair, *_ in active], call)
            take(offset)
            offset += piece
            active = [entry for entry in active if entry[3] > offset]
