"""Reductions and gathers made of messages that nobody waits for, so that they go on beside computing on any transport.

Every rank sends each other rank its piece, adds what comes for its own piece in rank order, and sends the sum back
(Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH" (2005), section 4.5:
2 (n - 1) ÷ n of the tensor for each rank). Two ranks send each other everything at once, as many bytes in one turn
instead of two. Pieces are cut into chunks, so that adding and sending back begin while the rest still moves.

Nothing can wait in a circle: a rank takes the chunks of one link in the order in which they are sent, so the next one
that it wants from a link is always the first that lies there, or is not there yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from plait.comm.contract import Tag
from plait.executor.lane import Messages
from plait.executor.reduction import Op, Reduction

SMALLEST_BYTES = 1 << 19
LARGEST_BYTES = 1 << 23
"""A piece is cut into as many chunks as its link holds, but not into smaller or larger ones than these.

So a whole piece of up to k times the largest is on its way at once, and moves while the rank computes, where the
transport moves by itself; over shared memory a few large chunks need fewer turns of two ranks that share the cores.
"""

_NUMBERS = 1 << 44
"""Above any action's code."""
_PIECES, _SUMS = range(2)


class _Chunk(NamedTuple):
    """[first, end) of the flat tensor; `number` counts the chunks of one piece."""

    number: int
    first: int
    end: int


class Reducing:
    """A reduction on its way over links of `capacity` messages, the same on all its ranks. `advance` moves it on.

    `may_send(peer)`: whether the link to a rank is free for it.
    """

    def __init__(
        self,
        reduction: Reduction,
        rank: int,
        tag: Tag,
        messages: Messages,
        may_send: Callable[[int], bool],
        capacity: int,
        *,
        measured: bool,
    ) -> None:
        self._flat = reduction.flat.detach()
        assert self._flat.is_contiguous()
        assert reduction.bounds[-1] == len(self._flat)
        self._ranks, self._rank, self._tag = reduction.ranks, rank, tag
        self._messages, self._may_send, self._measured = messages, may_send, measured
        self._capacity = capacity
        me = reduction.ranks.index(rank)
        others = (*reduction.ranks[me + 1 :], *reduction.ranks[:me])
        self._outbox: dict[int, deque[tuple[int, _Chunk]]] = {peer: deque() for peer in others}
        self._adds: deque[_Chunk] = deque()
        self._takes: dict[int, deque[_Chunk]] = {}
        self._next, self._partial = 0, self._flat[:0]
        self._swaps = reduction.op is Op.ALL_REDUCE and len(others) == 1
        self._returns = reduction.op is Op.ALL_REDUCE and not self._swaps
        self._written_before: dict[int, int] = {}
        self.sent_bytes = 0
        """What the transport wrote for it so far; 0 where it is not measured."""
        self.moved = 0
        """Chunks that were sent, added or taken so far."""
        self._plan(reduction)

    def _plan(self, reduction: Reduction) -> None:
        """What is to be sent, added and taken."""
        pieces = dict(zip(reduction.ranks, zip(reduction.bounds, reduction.bounds[1:], strict=False), strict=True))
        if self._swaps:
            whole = self._cut(0, len(self._flat))
            self._queue([*self._outbox], _PIECES, whole)
            self._adds.extend(whole)
            return
        own = self._cut(*pieces[self._rank])
        if reduction.op is Op.ALL_GATHER:
            self._queue([*self._outbox], _SUMS, own)
        else:
            for peer in self._outbox:
                self._queue([peer], _PIECES, self._cut(*pieces[peer]))
            self._adds.extend(own if self._outbox else ())
        if reduction.op is not Op.REDUCE_SCATTER:
            self._takes = {peer: deque(self._cut(*pieces[peer])) for peer in self._outbox}

    def _cut(self, first: int, end: int) -> list[_Chunk]:
        size = self._flat.element_size()
        wanted = -(-(end - first) // self._capacity)
        items = max(SMALLEST_BYTES // size, min(wanted, LARGEST_BYTES // size))
        return [_Chunk(i, at, min(at + items, end)) for i, at in enumerate(range(first, end, items))]

    def _queue(self, peers: Sequence[int], phase: int, chunks: Sequence[_Chunk]) -> None:
        for peer in peers:
            self._outbox[peer].extend((phase, chunk) for chunk in chunks)

    @property
    def done(self) -> bool:
        """True when nothing is left to do."""
        return not (self._adds or any(self._outbox.values()) or any(self._takes.values()))

    @property
    def waits_for(self) -> int:
        """The rank whose message, or whose room, is the next that this waits for."""
        if self._adds and not self._holds_back():
            return self._ranks[self._next]
        lacking = (peer for boxes in (self._takes, self._outbox) for peer, left in boxes.items() if left)
        return next(lacking, self._rank)

    def advance(self) -> bool:
        """Go on as far as it goes now. True when it is done."""
        moved = -1
        while moved != self.moved:
            moved = self.moved
            self._send()
            self._add()
            self._take()
        return self.done

    def _name(self, phase: int, chunk: _Chunk) -> Tag:
        return self._tag._replace(action=self._tag.action + (1 + 2 * chunk.number + phase) * _NUMBERS)

    def _send(self) -> None:
        for peer, left in self._outbox.items():
            if left and self._may_send(peer):
                while left and self._sent(peer, *left[0]):
                    left.popleft()
                    self.moved += 1

    def _sent(self, peer: int, phase: int, chunk: _Chunk) -> bool:
        """Whether the transport took the chunk, and what it wrote for it: until then nothing else uses the link."""
        tensor, tag = self._flat[chunk.first : chunk.end], self._name(phase, chunk)
        if not self._measured:
            return self._messages.try_send(peer, tag, tensor)
        before = self._written_before.setdefault(peer, self._messages.traffic(peer).payload_bytes)
        if not self._messages.try_send(peer, tag, tensor):
            return False
        self.sent_bytes += self._messages.traffic(peer).payload_bytes - before
        del self._written_before[peer]
        return True

    def _holds_back(self) -> bool:
        """Two ranks add in place: what is not sent yet may not change."""
        if not self._swaps:
            return False
        (left,) = self._outbox.values()
        return bool(left) and left[0][1].number <= self._adds[0].number

    def _add(self) -> None:
        while self._adds and not self._holds_back():
            chunk = self._adds[0]
            if not self._add_pieces(chunk):
                return
            self._adds.popleft()
            self._next = 0
            if self._returns:
                self._queue([*self._outbox], _SUMS, [chunk])

    def _add_pieces(self, chunk: _Chunk) -> bool:
        """Add all ranks' pieces of a chunk in rank order, our own in its place; False while one has not come."""
        own = self._flat[chunk.first : chunk.end]
        while self._next < len(self._ranks):
            source = self._ranks[self._next]
            if source == self._rank:
                self._partial = torch.add(self._partial, own, out=own) if self._next else own
            else:
                piece = self._messages.try_receive(source, self._name(_PIECES, chunk))
                if piece is None:
                    return False
                piece = piece.to(own.device)
                self._partial = self._partial.add_(piece) if self._next else piece
                self.moved += 1
            self._next += 1
        return True

    def _take(self) -> None:
        for source, left in self._takes.items():
            while left:
                _, first, end = left[0]
                piece = self._messages.try_receive(source, self._name(_SUMS, left[0]))
                if piece is None:
                    break
                self._flat[first:end] = piece
                left.popleft()
                self.moved += 1
