"""The messages of one directed link through shared memory.

A link has one slot for each of its `capacity` messages; message m uses slot m modulo capacity, so that few small
messages keep using the same few cache lines. A message that is larger than one piece follows through its slot piece by
piece, while the receiver already copies it out; one that is larger than the slot goes round in the slot's first MB,
which stays in the cache.

The receiver takes messages off the slots in order, and keeps those that were not asked for in an inbox. Only when one
is handed over (or dropped) does `taken` rise and give the sender room again: never more than `capacity` are unreceived.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from struct import Struct

import torch

from plait.comm.calls import CODES, DTYPES, code_of
from plait.comm.contract import Tag, Traffic
from plait.comm.inbox import Inbox
from plait.comm.region import LINE_BYTES, STRONG_ORDER, Place, Region, move
from plait.errors import RunError

PIECE_BYTES = 1 << 18
STREAM_BYTES = 1 << 20
MAX_DIMENSIONS = 8
VIEW_BYTES = 1 << 15
HUGE_BYTES = 1 << 25
_VIEWS = 64

# epoch, round, action, bytes, dtype, number of dimensions, dimensions
_HEADERS = tuple(Struct(f"<6q{count}q") for count in range(MAX_DIMENSIONS + 1))
_HEADER = _HEADERS[MAX_DIMENSIONS]


class _Slot:
    """Where one slot's parts lie, as its side of the link needs them."""

    __slots__ = ("data", "header", "offset", "read", "views", "written")

    def __init__(self, region: Region, place: Place, index: int) -> None:
        at = place.slot(index)
        self.written = at >> 3
        self.read = (at + LINE_BYTES) >> 3
        self.header = at + 2 * LINE_BYTES
        self.offset = place.slot_data(index)
        self.data = region.address + self.offset
        self.views: dict[tuple[int, ...], torch.Tensor] = {}


def _window(size: int, slot_bytes: int) -> int:
    """How much of the slot a message of several pieces goes round in."""
    return slot_bytes if size <= slot_bytes else min(slot_bytes, STREAM_BYTES)


def host_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor contiguous in host memory; itself where it is."""
    if tensor.is_contiguous() and tensor.is_cpu:
        return tensor
    return tensor.detach().to("cpu").contiguous()


class Outgoing:
    """The sender's side of a link."""

    def __init__(self, region: Region, place: Place, tell: Callable[[], None], fence: Callable[[], None]) -> None:
        self._words, self._bytes = region.words, region.bytes
        self._tell, self._fence = tell, fence
        self._capacity, self._slot_bytes = place.capacity, place.slot_bytes
        self._piece_bytes = min(PIECE_BYTES, place.slot_bytes // 4)
        self._slots = [_Slot(region, place, index) for index in range(place.capacity)]
        self._at_started, self._at_taken = place.started >> 3, place.taken >> 3
        self._codes = dict(CODES)
        self._started = 0
        self.payload_bytes = 0
        self._unfinished: tuple[Tag, torch.Tensor] | None = None
        self._offset = self._window = 0

    def try_send(self, tag: Tag, tensor: torch.Tensor) -> bool:
        """See `Endpoint.try_send`."""
        if self._unfinished is not None:
            sent = self._unfinished[0]
            if not self.push() or (sent != tag and sent.epoch >= tag.epoch):
                return False  # who sends it will ask again; but of an older epoch nobody does
            self._unfinished = None
            if sent == tag:
                return True
        started = self._started
        if started - self._words[self._at_taken] >= self._capacity:
            return False
        if not STRONG_ORDER:
            self._fence()
        if not (tensor.is_contiguous() and tensor.is_cpu):
            tensor = host_tensor(tensor)
        return self._start(self._slots[started % self._capacity], tag, tensor)

    def _start(self, slot: _Slot, tag: Tag, tensor: torch.Tensor) -> bool:
        shape = tensor.shape
        code = self._codes.get(tensor.dtype)
        if code is None or len(shape) > MAX_DIMENSIONS:
            raise cannot_travel(tensor)
        size = tensor.nbytes
        _HEADERS[len(shape)].pack_into(self._bytes, slot.header, *tag, size, code, len(shape), *shape)
        first = size
        if size > self._piece_bytes:
            first = self._piece_bytes
            self._unfinished, self._offset = (tag, tensor), first
            self._window = _window(size, self._slot_bytes)
            self._words[slot.written] = first
            self._words[slot.read] = 0
        if first:
            move(slot.data, tensor.data_ptr(), first)
        if not STRONG_ORDER:
            self._fence()
        self._started += 1
        self._words[self._at_started] = self._started
        self.payload_bytes += first
        self._tell()
        if self._unfinished is None:
            return True
        return self.try_send(tag, tensor)

    def push(self) -> bool:
        """Go on with a large message; True when all of it is on the link (the caller of `try_send` is told later)."""
        if self._unfinished is None:
            return True
        words, window, tensor = self._words, self._window, self._unfinished[1]
        slot = self._slots[(self._started - 1) % self._capacity]
        address, size, offset = tensor.data_ptr(), tensor.nbytes, self._offset
        while offset < size:
            piece = min(self._piece_bytes, size - offset)
            if offset + piece - words[slot.read] > window:
                return False
            if not STRONG_ORDER:
                self._fence()
            move(slot.data + offset % window, address + offset, piece)
            if not STRONG_ORDER:
                self._fence()
            self._offset = offset = offset + piece
            words[slot.written] = offset
            self.payload_bytes += piece
            self._tell()
        return True

    def traffic(self, control_bytes: int) -> Traffic:
        """What the link carried so far."""
        return Traffic(self._started, self.payload_bytes, control_bytes, self._words[self._at_taken + 1])


def new_tensor(size: int, dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
    """An empty tensor. malloc maps one of 32 MB or more anew each time, page by page: large pages halve that."""
    if size < HUGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(shape, dtype=dtype)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def cannot_travel(tensor: torch.Tensor) -> RunError:
    """The error of a tensor that no message holds."""
    code_of(tensor.dtype)
    return RunError(
        f"a tensor of {tensor.dim()} dimensions cannot travel: at most {MAX_DIMENSIONS}; flatten some before sending"
    )


class Incoming:
    """The receiver's side of a link."""

    def __init__(self, region: Region, place: Place, tell: Callable[[], None], fence: Callable[[], None]) -> None:
        self._words, self._bytes = region.words, region.bytes
        self._tell, self._fence = tell, fence
        self._capacity, self._slot_bytes = place.capacity, place.slot_bytes
        self._piece_bytes = min(PIECE_BYTES, place.slot_bytes // 4)
        self._view_bytes = min(VIEW_BYTES, self._piece_bytes)
        self._slots = [_Slot(region, place, index) for index in range(place.capacity)]
        self._at_started, self._at_taken = place.started >> 3, place.taken >> 3
        self._inbox = Inbox()
        self._arrived = 0
        self._taken = 0
        self._current: tuple[Tag, torch.Tensor] | None = None
        self._offset = self._size = self._window = 0

    def try_receive(self, tag: Tag) -> torch.Tensor | None:
        """See `Endpoint.try_receive`."""
        inbox = self._inbox
        if tag.epoch > inbox.epoch:
            self._drop(inbox.move_to(tag.epoch))
        if inbox:
            kept = inbox.take(tag)
            if kept is not None:
                self._release(1)
                return kept
        while self._words[self._at_started] != self._arrived:
            message = self._arrive()
            if message is None:
                return None
            if message[0] == tag:
                self._release(1)
                return message[1]
            if not inbox.put(*message):
                self._drop(1)
        return None

    def pump(self) -> None:
        """Take what has arrived off the slots, so that a large message's sender can go on."""
        while self._words[self._at_started] != self._arrived:
            message = self._arrive()
            if message is None:
                return
            if not self._inbox.put(*message):
                self._drop(1)

    def _arrive(self) -> tuple[Tag, torch.Tensor] | None:
        """The next message in order, once all of it has come."""
        if not STRONG_ORDER:
            self._fence()
        slot = self._slots[self._arrived % self._capacity]
        message = self._current
        if message is None:
            message = self._begin(slot)
        if self._offset < self._size and not self._follow(slot, message[1]):
            return None
        self._current = None
        self._arrived += 1
        return message

    def _begin(self, slot: _Slot) -> tuple[Tag, torch.Tensor]:
        epoch, round_, action, *form = _HEADER.unpack_from(self._bytes, slot.header)
        self._size = self._offset = size = form[0]
        if size <= self._view_bytes:
            return Tag(epoch, round_, action), self._small(slot, tuple(form))
        tensor = new_tensor(size, DTYPES[form[1]], form[3 : 3 + form[2]])
        message = (Tag(epoch, round_, action), tensor)
        if size <= self._piece_bytes:
            move(tensor.data_ptr(), slot.data, size)
        else:
            self._current, self._offset = message, 0
            self._window = _window(size, self._slot_bytes)
        return message

    def _small(self, slot: _Slot, form: tuple[int, ...]) -> torch.Tensor:
        """Cloning a view of the slot makes and fills the tensor in one call; views of recent forms are kept."""
        view = slot.views.get(form)
        if view is None:
            size, code, dimensions, *shape = form
            if not size:
                return torch.empty(shape[:dimensions], dtype=DTYPES[code])
            if len(slot.views) >= _VIEWS:
                slot.views.clear()
            dtype = DTYPES[code]
            flat = torch.frombuffer(self._bytes, dtype=dtype, count=size // dtype.itemsize, offset=slot.offset)
            view = slot.views[form] = flat.view(shape[:dimensions])
        return view.clone()

    def _follow(self, slot: _Slot, tensor: torch.Tensor) -> bool:
        """Copy what has come of a large message; True when all has."""
        words, window, size, offset = self._words, self._window, self._size, self._offset
        address = tensor.data_ptr()
        while offset < size:
            piece = min(self._piece_bytes, words[slot.written] - offset)
            if not piece:
                return False
            if not STRONG_ORDER:
                self._fence()
            move(address + offset, slot.data + offset % window, piece)
            if not STRONG_ORDER:
                self._fence()
            self._offset = offset = offset + piece
            words[slot.read] = offset
            self._tell()
        return True

    def _drop(self, count: int) -> None:
        if count:
            self._words[self._at_taken + 1] += count
            self._release(count)

    def _release(self, count: int) -> None:
        """Give the sender room for `count` more messages."""
        self._taken += count
        if not STRONG_ORDER:
            self._fence()
        self._words[self._at_taken] = self._taken
        self._tell()
