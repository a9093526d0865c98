"""What is particular to frames over connections: their form, their number, what is kept, how ranks meet."""

from __future__ import annotations

import gc
import os
import socket
import threading
import time
from collections.abc import Iterator
from itertools import accumulate, cycle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from plait.comm.c10d import LARGE_BYTES, C10dEndpoint
from plait.comm.calls import DTYPES, NO_DTYPE, Call, Op
from plait.comm.contract import Group, Tag
from plait.comm.frames import Counters, Kind, dtype_code, head_bytes, pack, unpack
from plait.comm.intake import Intake, bytes_of
from plait.comm.lost import SILENT
from plait.comm.nccl import NcclCollectives
from plait.comm.outbox import Outbox
from plait.comm.sleeper import Sleeper
from plait.comm.wire import Wire
from plait.errors import PeerLost, RunError, WaitTimeout
from plait.plans.exchanges import all_reduce_bytes
from tests.comm.together import close, connections, endpoints, together

PAIR = Group((0, 1))


@pytest.fixture
def pair() -> Iterator[list[C10dEndpoint]]:
    """Two ranks of one process."""
    both = endpoints(2)
    yield both
    close(*both)


# --- the form of frames -----------------------------------------------------------------------------------

numbers = st.integers(-(2**62), 2**62)
shapes = st.lists(st.integers(0, 5), max_size=8).map(tuple)


@given(
    kind=st.sampled_from(Kind),
    due_ns=numbers,
    counters=st.tuples(numbers, numbers),
    words=st.tuples(numbers, numbers, numbers),
    dtype=st.sampled_from(DTYPES),
    shape=shapes,
)
def test_frames_say_what_they_were_told(
    kind: Kind,
    due_ns: int,
    counters: tuple[int, int],
    words: tuple[int, int, int],
    dtype: torch.dtype,
    shape: tuple[int, ...],
) -> None:
    tensor = torch.zeros(shape, dtype=dtype)
    packed = pack(kind, due_ns, Counters(*counters), words, dtype_code(tensor), tensor)
    assert unpack(memoryview(packed)) == (kind, due_ns, counters, words, dtype_code(tensor), shape, tensor.nbytes)
    assert len(packed) == head_bytes(len(shape)) == 80 + 8 * len(shape)


NO_FRAME = "what arrived is no frame: do all ranks run the same version of Plait?"


@pytest.mark.parametrize(("place", "value"), [(0, -1), (0, 0), (0, 8), (7, -1), (8, -1), (8, 9), (9, -1), (9, 5)])
def test_what_is_no_frame_is_refused(place: int, value: int) -> None:
    """A kind, dtype, number of dimensions or size that cannot be; and a size that is not that of the shape."""
    packed = bytearray(pack(Kind.NOTE, 0, Counters(0, 0), (0, 0, 0), 0, torch.empty(1)))
    unpack(memoryview(packed))
    packed[8 * place : 8 * place + 8] = value.to_bytes(8, "little", signed=True)
    with pytest.raises(RunError) as caught:
        unpack(memoryview(packed))
    assert str(caught.value) == NO_FRAME


# --- what is read -------------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(
    sizes=st.lists(st.integers(0, 90_000), min_size=1, max_size=12),
    pieces=st.lists(st.integers(1, 70_000), min_size=1, max_size=8),
)
def test_frames_come_whole_however_the_stream_is_cut(sizes: list[int], pieces: list[int]) -> None:
    """None is there before its last byte, and each as soon as that is."""
    sent = [torch.arange(size).to(torch.uint8) for size in sizes]
    stream = b"".join(packed(tensor) + tensor.numpy().tobytes() for tensor in sent)
    ends = list(accumulate(80 + 8 + size for size in sizes))
    one, other = socket.socketpair()
    with one, other:
        intake, found, written = Intake(other), [], 0
        for piece in cycle(pieces):
            one.sendall(stream[written : written + piece])
            written = min(len(stream), written + piece)
            while (came := intake.take()) is not None:
                found.append(came[1])
            assert len(found) == sum(end <= written for end in ends)
            if written == len(stream):
                break
        assert intake.read_bytes == len(stream)
    assert all(torch.equal(here, there) for here, there in zip(found, sent, strict=True))


def packed(tensor: torch.Tensor) -> bytes:
    return pack(Kind.MESSAGE, 0, Counters(0, 0), (0, 0, 0), dtype_code(tensor), tensor)


def test_what_had_come_before_the_end_is_still_there() -> None:
    one, other = socket.socketpair()
    intake = Intake(other)
    with one, other:
        one.sendall(packed(torch.ones(3)) + torch.ones(3).numpy().tobytes())
        one.sendall(packed(torch.ones(3)))
        one.shutdown(socket.SHUT_WR)
        came = intake.take()
        assert came is not None
        assert came[1].tolist() == [1, 1, 1]
        with pytest.raises(EOFError):
            intake.take()


# --- what is sent -------------------------------------------------------------------------------------------


def test_a_send_waits_for_nobody_and_keeps_its_order() -> None:
    """Nobody reads at first, and the system takes no 3 MB. What is not `owned` may be changed at once."""
    one, other = socket.socketpair()
    sent = [torch.randint(0, 256, (size,), dtype=torch.uint8) for size in (3_000_000, 5, 2_000_000, 0, 7)]
    outbox, intake = Outbox(one), Intake(other)
    with one, other:
        for at, tensor in enumerate(sent):
            given = tensor.clone()
            outbox.put(packed(given), bytes_of(given), owned=at == 2)
            if at != 2:
                given.zero_()
        outbox.flush(0)  # time is up at once
        for tensor in sent:
            while (came := intake.take()) is None:
                time.sleep(1e-3)
            assert torch.equal(came[1], tensor)
        outbox.flush(20)
        assert not outbox._queue


def test_what_nobody_can_get_any_more_is_let_go() -> None:
    one, other = socket.socketpair()
    outbox = Outbox(one)
    with one:
        tensor = torch.zeros(4_000_000, dtype=torch.uint8)
        outbox.put(packed(tensor), bytes_of(tensor), owned=True)
        other.close()
        outbox.put(packed(tensor), bytes_of(tensor), owned=False)
        outbox.flush(20)
        assert not outbox._queue


# --- who keeps what, and how few frames there are ---------------------------------------------------------


@pytest.mark.parametrize("size", [0, 65_448, 65_449, 100_003, 3_000_000])
def test_payloads_around_what_is_read_at_once(pair: list[C10dEndpoint], size: int) -> None:
    sent = torch.arange(size).to(torch.uint8)
    first, second = pair
    first.send(1, Tag(0, 0, 0), sent)
    assert torch.equal(second.receive(0, Tag(0, 0, 0), 20), sent)
    first.post(1, sent.numpy().tobytes())
    assert second.wait(lambda: second.poll(0), "a word", 20) == sent.numpy().tobytes()


def test_a_hand_over_is_one_frame_and_its_receipt_rides_on_the_next() -> None:
    """Decoding on two stages: 100 tokens, and hidden states of 4 KB each way. No more than 200 frames, and a few."""
    both = endpoints(2)
    hidden = torch.zeros(1024)

    def lead() -> None:
        for index in range(100):
            both[0].send(1, Tag(0, index, 0), hidden, 20)
            both[0].receive(1, Tag(0, index, 1), 20)

    def follow() -> None:
        for index in range(100):
            both[1].send(0, Tag(0, index, 1), both[1].receive(0, Tag(0, index, 0), 20), 20)

    together(lead, follow)
    wires = [both[rank]._links[1 - rank].wire for rank in (0, 1)]
    close(*both)
    for wire in wires:
        assert 102 <= wire.sent_frames <= 104  # hello, a credit where the link was full, and the last word


def test_room_for_large_messages_is_given_at_once() -> None:
    """A link that holds many is not filled before its sender hears of room: over a long one that takes a turn."""
    first, second = endpoints(2, capacity=8)
    for index, size in enumerate((LARGE_BYTES, LARGE_BYTES + 1)):
        first.send(1, Tag(0, index, 0), torch.zeros(size, dtype=torch.uint8))
        second.receive(0, Tag(0, index, 0), 20)
    assert second._links[0].wire.sent_frames == 2  # hello, and the word of the larger one
    first.wait(lambda: first.poll(1) or first._links[1].taken_there == 2 or None, "room", 20)
    close(first, second)


def test_room_is_given_though_nothing_else_is_said(pair: list[C10dEndpoint]) -> None:
    first, second = pair

    def send() -> None:
        for index in range(50):
            first.send(1, Tag(0, index, 0), torch.zeros(1), 20)

    def receive() -> None:
        for index in range(50):
            second.receive(0, Tag(0, index, 0), 20)

    together(send, receive)
    assert first.traffic(1).messages == 50


def test_leaving_gives_everything_back() -> None:
    gc.collect()
    close(*endpoints(2))
    gc.collect()
    before = len(os.listdir("/dev/fd")), threading.active_count()
    for _ in range(3):
        close(*endpoints(2))
    gc.collect()
    assert (len(os.listdir("/dev/fd")), threading.active_count()) == before


# --- how ranks meet ---------------------------------------------------------------------------------------


def test_who_does_not_come_is_named() -> None:
    opened = connections(3)
    with pytest.raises(WaitTimeout) as caught:
        C10dEndpoint(opened[0], 0, 3, 2, timeout_s=0.2)
    assert str(caught.value) == "rank 0 waited 0.2 s for rank 1, 2 to connect, and it did not come"


def test_ranks_that_do_not_fit_are_told() -> None:
    opened = connections(2)

    def connect(rank: int) -> str:
        try:
            C10dEndpoint(opened[rank], rank, 2, 2 + rank, timeout_s=20)
        except RunError as error:
            return str(error)
        return ""

    texts = together(lambda: connect(0), lambda: connect(1))
    end = "start all ranks with one version of Plait and one plan"
    assert texts == [
        f"rank 0 talks version 2 of the frames with capacity 2, rank 1 version 2 with 3: {end}",
        f"rank 1 talks version 2 of the frames with capacity 3, rank 0 version 2 with 2: {end}",
    ]


def test_an_impossible_mesh_is_refused() -> None:
    with pytest.raises(RunError) as caught:
        C10dEndpoint({}, 0, 2, 0)
    assert str(caught.value) == "a mesh of 2 ranks with capacity 0 cannot work: both must be at least 1"


def test_who_talks_something_else_is_lost() -> None:
    opened = connections(2)
    opened[1][0].sendall(b"\xff" * 100)
    with pytest.raises(PeerLost) as caught:
        C10dEndpoint(opened[0], 0, 2, 2, timeout_s=20)
    assert str(caught.value) == (
        "rank 1 is lost, while rank 0 waited for all ranks to connect: "
        "what arrived is no frame: do all ranks run the same version of Plait?"
    )


def test_who_has_gone_before_the_meeting_is_named() -> None:
    opened = connections(2)
    opened[1][0].close()
    with pytest.raises(PeerLost) as caught:
        C10dEndpoint(opened[0], 0, 2, 2, timeout_s=20)
    assert str(caught.value) == f"rank 1 is lost, while rank 0 waited for all ranks to connect: {SILENT}"


# --- waits ------------------------------------------------------------------------------------------------


def test_idle_is_called_while_a_collective_waits(pair: list[C10dEndpoint]) -> None:
    """Rank 1 comes to the barrier only after a message that rank 0 sends when it is idle."""
    first, second = pair
    idle: list[bool] = []

    def send() -> None:
        if not idle:
            idle.append(first.try_send(1, Tag(0, 0, 0), torch.zeros(1)))

    first.idle = send

    def late() -> None:
        second.receive(0, Tag(0, 0, 0), 20)
        second.barrier(PAIR)

    together(lambda: first.barrier(PAIR), late)
    assert idle == [True]


# --- who reads --------------------------------------------------------------------------------------------


def test_what_comes_is_taken_while_the_rank_computes(pair: list[C10dEndpoint]) -> None:
    """More than the system holds: the sender could not go on if nobody read."""
    first, second = pair
    first.post(1, bytes(8_000_000))
    wire = first._links[1].wire
    wire._outbox.flush(20)
    assert not wire._outbox._queue
    word = second.wait(lambda: second.poll(0), "a word", 20)
    assert len(word) == 8_000_000


def test_what_comes_is_taken_again_after_a_long_wait(pair: list[C10dEndpoint]) -> None:
    """The other thread rests meanwhile, until that wait is over."""
    first, second = pair
    threading.Timer(0.2, first.post, (1, b"late")).start()
    assert second.wait(lambda: second.poll(0), "a word", 20) == b"late"
    first.post(1, bytes(8_000_000))
    wire = first._links[1].wire
    wire._outbox.flush(20)
    assert not wire._outbox._queue


def test_a_wait_within_a_wait_leaves_the_outer_one_reading(pair: list[C10dEndpoint]) -> None:
    first, second = pair
    heard: list[bytes] = []

    def ready() -> bytes | None:
        if not heard:
            heard.append(second.wait(lambda: second.poll(0), "the inner word", 20))
            threading.Timer(0.05, first.post, (1, b"outer")).start()
        return second.poll(0)

    first.post(1, b"inner")
    assert second.wait(ready, "the outer word", 20) == b"outer"
    assert heard == [b"inner"]


def test_sleepers_wake_at_the_moment_that_is_known() -> None:
    """And not for what they do not watch any more."""
    one, other = socket.socketpair()
    sleeper, heard, due = Sleeper(), list[str](), [time.monotonic() + 0.03]
    sleeper.watch(other.fileno(), lambda: bool(heard.append("read")))
    sleeper.watch_clock(lambda: due[0] if due else None, lambda: bool(heard.append(f"due {due.pop() > 0}")))
    sleeper.sleep(20)
    assert heard == ["due True"]
    with one, other:
        one.send(b"!")
        sleeper.sleep(20)
        sleeper.sleep(0.01)  # told False: it is watched no more
    assert heard == ["due True", "read"]


# --- NCCL, under fakes: no GPU has run it -----------------------------------------------------------------


class FakeNccl:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def wait(self) -> None:
        self.calls.append("wait")

    def allreduce(self, tensors: list[torch.Tensor]) -> FakeNccl:
        self.calls.append(f"allreduce {[tuple(one.shape) for one in tensors]}")
        return self

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor]) -> FakeNccl:
        self.calls.append(f"allgather {[tuple(one.shape) for one in outputs[0]]} of {tuple(inputs[0].shape)}")
        return self

    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]]) -> FakeNccl:
        self.calls.append(f"reduce_scatter {tuple(outputs[0].shape)} of {[tuple(one.shape) for one in inputs[0]]}")
        return self


def test_groups_of_cuda_devices_use_nccl_and_count_by_the_rule() -> None:
    nccl, group, counted = FakeNccl(), Group((1, 4, 6)), [(0, 0)][:0]
    usual = NcclCollectives(nccl, 0, None, lambda to, size: None)  # type: ignore[arg-type]
    one = NcclCollectives(nccl, 1, usual, lambda to, size: counted.append((to, size)))
    with FakeTensorMode():
        tensor = torch.empty(7, 3, device="cuda")
        assert one.all_reduce(group, tensor) is tensor
        assert one.reduce_scatter(group, tensor, [3, 2, 2]).shape == (2, 3)
        assert one.all_gather(group, torch.empty(2, 3, device="cuda"), [3, 2, 2]).shape == (7, 3)
    assert nccl.calls == [
        "allreduce [(7, 3)]",
        "wait",
        "reduce_scatter (2, 3) of [(3, 3), (2, 3), (2, 3)]",
        "wait",
        "allgather [(3, 3), (2, 3), (2, 3)] of (2, 3)",
        "wait",
    ]
    sent = all_reduce_bytes(21, 4, 3)[1]
    assert counted == [(1, sent // 2), (6, sent - sent // 2), (1, 36), (6, 24), (1, 24), (6, 24)]


def test_only_groups_of_cuda_devices_alone_use_nccl() -> None:
    opened = connections(2)
    asked: list[tuple[int, ...]] = []

    def connect(rank: int) -> C10dEndpoint:
        def open_devices(ranks: tuple[int, ...]) -> FakeNccl:
            asked.append(ranks)
            return FakeNccl()

        device = ("cuda", "cpu")[rank]
        return C10dEndpoint(opened[rank], rank, 2, 2, device=device, open_devices=open_devices, timeout_s=20)

    both = together(lambda: connect(0), lambda: connect(1))
    assert [one.devices for one in both] == [["cuda", "cpu"]] * 2
    assert not isinstance(both[0].collectives_of(PAIR), NcclCollectives)
    both[0].devices[1] = "cuda"
    assert isinstance(both[0].collectives_of(PAIR), NcclCollectives)
    assert asked == [(0, 1)]
    close(*both)


def test_a_call_that_differs_is_told_though_sizes_fit(pair: list[C10dEndpoint]) -> None:
    """What is compared is the call, not only the sizes."""
    first, second = pair
    second.give(0, Call(Op.BARRIER, NO_DTYPE, 0).pack(), torch.zeros(4))
    with pytest.raises(RunError, match="rank 0 calls all_reduce of 16 bytes of float32, but rank 1 calls barrier"):
        first.all_reduce(PAIR, torch.zeros(4))


def test_who_cannot_join_hangs_up() -> None:
    """The others need not wait for a rank that has given up."""
    opened = connections(2)
    with pytest.raises(WaitTimeout):
        C10dEndpoint(opened[0], 0, 2, 2, timeout_s=0.05)
    with pytest.raises(PeerLost) as caught:
        C10dEndpoint(opened[1], 1, 2, 2, timeout_s=20).receive(0, Tag(0, 0, 0), 20)
    assert caught.value.rank == 0


def test_a_frame_that_no_memory_holds_ends_the_connection() -> None:
    one, other = socket.socketpair()
    lost: list[str] = []
    wire = Wire(other, lambda: (0, 0), lambda frame, payload: True, lost.append)
    size = 1 << 60
    head = bytearray(packed(torch.empty(1, dtype=torch.uint8)))
    head[72:88] = size.to_bytes(8, "little") * 2
    with one, other:
        one.sendall(head)
        assert not wire.look()
    assert lost == [f"a message of {size} bytes came, and there is no memory for it"]
