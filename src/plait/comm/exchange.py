"""Collective steps between two ranks through shared memory: what every collective of the group is made of.

In a step both ranks of a pair give something (perhaps nothing), and each waits for what the other gave. Steps are
counted by pair, so that any groups, overlapping ones too, may follow each other in any order. Two slots suffice: who
writes step s + 2 has seen the other's step s + 1, and the other gave that only after it had read step s.

# Why that holds with any number of ranks, also where the processor keeps no order (ARM)

Let i and j be a pair, in groups of any size. `region` names the orders. Every `give` is: write slot and call, fence,
raise the counter. Every `meet` is: see the counter, fence, then read slot and call.

1. *Publish*, i's slot of step s to j: i's writes come before its fence and counter, j's reads behind the counter and
   its fence. So j reads what i wrote, or later; by 2 there is no later.
2. *Reuse*, i's slot of step s by step s + 2: j reads it before it gives step s + 1, since a collective has taken all of
   a step before it gives the next one to anyone; the fence in that `give` keeps the reads before the counter. i writes
   step s + 2 only after it has met step s + 1 of j, and the fence in `meet` keeps the writes behind that look.

A third rank is in neither: what i adds and hands round lies in i's own memory between a `meet` and the next `give`, and
is published to j by i's own fence and counter. So nothing here asks that all ranks see two writers' stores in the same
order, which older ARM does not promise. A fence orders all of a rank's accesses, so those of one pair are in
order with those of every other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from plait.comm.calls import DTYPES, Call, mismatch
from plait.comm.link import Outgoing
from plait.comm.region import STRONG_ORDER, Place, Region, move
from plait.errors import RunError
from plait.plans.exchanges import AT_ONCE_BYTES, BLOCK_BYTES

Await = Callable[[Callable[[], bool | None], str, Sequence[int]], bool]
"""Waits until the function returns True: what for, and for which ranks."""

Array = npt.NDArray[np.float32] | torch.Tensor
"""Elements in a row that `+` and `+=` add: numpy's (of several dtypes, whatever the type says) or torch's."""

_NUMPY = {torch.float32: np.float32, torch.float64: np.float64, torch.int64: np.int64, torch.int32: np.int32}

NUMPY_CODES = frozenset(code for code, dtype in enumerate(DTYPES) if dtype in _NUMPY)
"""The dtypes that numpy adds."""


class Side:
    """What one rank of a pair has given: counter, kind of call, and two slots."""

    def __init__(self, region: Region, place: Place) -> None:
        self.at = place.call >> 3
        self.slot_bytes = min(BLOCK_BYTES, place.slot_bytes)
        self.addresses = tuple(region.address + place.call_slot(parity) for parity in (0, 1))
        self._offsets = tuple(place.call_slot(parity) for parity in (0, 1))
        self._bytes = region.bytes
        self._views: dict[tuple[int, int], Array] = {}

    def view(self, parity: int, code: int) -> Array:
        """A slot as an array of a dtype, as long as the slot. What it shows changes with every other step."""
        view = self._views.get((parity, code))
        if view is None:
            view = self._views[parity, code] = as_array(self._bytes, code, self.slot_bytes, self._offsets[parity])
        return view


def as_array(memory: memoryview | bytearray, code: int, count_bytes: int, offset: int = 0) -> Array:
    """A part of the memory as an array: of numpy where it can add the dtype, which takes 300 ns; torch takes 800."""
    dtype = DTYPES[code]
    if dtype in _NUMPY:
        return np.frombuffer(memory, _NUMPY[dtype], count_bytes // dtype.itemsize, offset)
    return torch.frombuffer(memory, dtype=dtype, count=count_bytes // dtype.itemsize, offset=offset)


class Pair:
    """This rank's side of the steps with one other rank."""

    def __init__(
        self, rank: int, region: Region, mine: Place, theirs: Place, tell: Callable[[], None], outgoing: Outgoing
    ) -> None:
        self.rank = rank
        self.step = 0
        self.words = region.words
        self.mine, self.theirs = Side(region, mine), Side(region, theirs)
        self.slot_bytes = self.mine.slot_bytes
        self.tell, self.outgoing = tell, outgoing

    def give(self, address: int, count_bytes: int, call: int, fence: Callable[[], None]) -> None:
        """Our part of the next step. It is copied: the caller may change it at once."""
        self.step = step = self.step + 1
        parity = step & 1
        if count_bytes:
            move(self.mine.addresses[parity], address, count_bytes)
            self.outgoing.payload_bytes += count_bytes
        words, at = self.words, self.mine.at
        words[at + 2 + parity] = call
        if not STRONG_ORDER:
            fence()
        words[at] = step
        self.tell()

    def came(self) -> bool | None:
        """True when the other's part of the step is there."""
        return self.words[self.theirs.at] >= self.step or None

    def view(self, code: int) -> Array:
        """The other's part of this step as an array."""
        return self.theirs.view(self.step & 1, code)


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
        self.small_bytes = min([AT_ONCE_BYTES, *(pair.slot_bytes for pair in pairs)])
        self.spins, self._wait, self.fence = spins, wait, fence

    def give(self, address: int, count_bytes: int, call: int) -> None:
        """Give the same to every other rank of the group."""
        for pair in self.pairs:
            pair.give(address, count_bytes, call, self.fence)

    def meet(self, pairs: Sequence[Pair], call: int) -> None:
        """Wait for the other ranks' part of the step."""
        for pair in pairs:
            words, at, step = pair.words, pair.theirs.at, pair.step
            turns = self.spins
            while words[at] < step:
                turns -= 1
                if turns < 0:
                    self.sleep(pair, call)
            if not STRONG_ORDER:
                self.fence()
            if words[at + 2 + (step & 1)] != call:
                raise self.differs(pair, call)

    def sleep(self, pair: Pair, call: int) -> None:
        """Wait for the other's part of the step as long as it takes.

        Only for this one: another rank that has given its part to us may already have everything, and leave.
        """
        self._wait(pair.came, f"{Call.unpack(call)} of ranks {', '.join(map(str, self.ranks))}", (pair.rank,))

    def differs(self, pair: Pair, call: int) -> RunError:
        """The error of having called what the other has not."""
        theirs = pair.words[pair.theirs.at + 2 + (pair.step & 1)]
        return mismatch(Call.unpack(call), self.rank, Call.unpack(theirs), pair.rank)

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
                pair.give(address + offset, max(0, min(piece, size - offset)), call, self.fence)
            self.meet([pair for pair, *_ in active], call)
            take(offset)
            offset += piece
            active = [entry for entry in active if entry[3] > offset]
