"""What is particular to frames over torch.distributed: their form, their number, what is kept, how ranks meet."""

from __future__ import annotations

import gc
import os
import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from plait.comm import frames
from plait.comm.c10d import C10dEndpoint
from plait.comm.calls import DTYPES, NO_DTYPE, Call, Op
from plait.comm.contract import Group, Tag
from plait.comm.frames import INLINE_BYTES, Counters, Kind, dtype_code, pack, unpack
from plait.comm.keepalive import kept_alive
from plait.comm.lost import SILENT
from plait.comm.nccl import NcclCollectives
from plait.comm.waker import Waker
from plait.comm.wire import FRAMES, PAYLOADS, UNSEEN
from plait.errors import PeerLost, RunError, WaitTimeout
from plait.plans.exchanges import all_reduce_bytes
from tests.comm.together import Counted, close, endpoints, groups, together

PAIR = Group((0, 1))


@pytest.fixture(autouse=True)
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo" if os.path.isdir("/sys/class/net/lo") else "lo0")


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
    counters=st.tuples(numbers, numbers, numbers),
    words=st.tuples(numbers, numbers, numbers),
    dtype=st.sampled_from(DTYPES),
    shape=shapes,
)
def test_frames_say_what_they_were_told(
    kind: Kind, counters: tuple[int, int, int], words: tuple[int, int, int], dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    tensor = torch.zeros(shape, dtype=dtype)
    packed = pack(kind, Counters(*counters), words, dtype_code(tensor), tensor)
    frame = unpack(bytearray(packed.numpy().tobytes()))
    assert frame[:6] == (kind, counters, words, dtype_code(tensor), shape, tensor.nbytes)
    assert (frame.payload_at == 0) == (tensor.nbytes > INLINE_BYTES)
    assert len(packed) == (frame.payload_at + tensor.nbytes if frame.payload_at else 80 + 8 * len(shape))


@pytest.mark.parametrize("place", [0, 7, 8, 9])
def test_what_is_no_frame_is_refused(place: int) -> None:
    packed = bytearray(pack(Kind.NOTE, Counters(0, 0, 0), (0, 0, 0), 0, torch.empty(0)).numpy().tobytes())
    unpack(packed)
    packed[8 * place : 8 * place + 8] = (-1).to_bytes(8, "little", signed=True)
    with pytest.raises(RunError) as caught:
        unpack(packed)
    assert str(caught.value) == "what arrived is no frame: do all ranks run the same version of Plait?"


# --- who keeps what, and how few frames there are ---------------------------------------------------------


@pytest.mark.parametrize("size", [INLINE_BYTES - 1, INLINE_BYTES, INLINE_BYTES + 1, 100_003])
def test_payloads_around_what_fits_into_a_frame(
    pair: list[C10dEndpoint], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large ones go in several pieces here, as those above 1 GB do."""
    monkeypatch.setattr(frames, "CHUNK_BYTES", 7000)
    sent = torch.arange(size).to(torch.uint8)
    first, second = pair
    first.send(1, Tag(0, 0, 0), sent)
    assert torch.equal(second.receive(0, Tag(0, 0, 0), 20), sent)
    first.post(1, sent.numpy().tobytes())
    assert second.wait(lambda: second.poll(0), "a word", 20) == sent.numpy().tobytes()


def test_a_hand_over_is_one_message_and_its_receipt_rides_on_the_next() -> None:
    """Decoding on two stages: 100 tokens, and hidden states of 4 KB each way. No more than 200 messages, and a few."""
    opened = groups(2)
    both = together(*(lambda rank=rank: C10dEndpoint(opened[rank], rank, 2, 2) for rank in (0, 1)))  # type: ignore[misc]
    hidden = torch.zeros(1024)

    def lead() -> None:
        for index in range(100):
            both[0].send(1, Tag(0, index, 0), hidden, 20)
            both[0].receive(1, Tag(0, index, 1), 20)

    def follow() -> None:
        for index in range(100):
            both[1].send(0, Tag(0, index, 1), both[1].receive(0, Tag(0, index, 0), 20), 20)

    together(lead, follow)
    close(*both)
    for group in opened:
        assert group.sends.count(PAYLOADS) == 0
        assert 100 <= group.sends.count(FRAMES) <= 104  # hello, a credit where the link was full, and the last word


def test_memory_of_what_was_sent_is_given_back(pair: list[C10dEndpoint]) -> None:
    """The other side never answers by itself: it says now and then what it has."""
    first, second = pair
    for index in range(200):
        first.post(1, b"%d" % index)
    for index in range(200):
        assert second.wait(lambda: second.poll(0), "a word", 20) == b"%d" % index
    kept = first._links[1].wire._kept
    first.wait(lambda: len(kept) <= UNSEEN or None, "what was sent to be forgotten", 20)


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
    opened = groups(3)
    with pytest.raises(WaitTimeout) as caught:
        C10dEndpoint(opened[0], 0, 3, 2, timeout_s=0.2)
    assert str(caught.value) == "rank 0 waited 0.2 s for rank 1, 2 to connect, and it did not come"


def test_ranks_that_do_not_fit_are_told() -> None:
    opened = groups(2)

    def connect(rank: int) -> str:
        try:
            C10dEndpoint(opened[rank], rank, 2, 2 + rank, timeout_s=20)
        except RunError as error:
            return str(error)
        return ""

    texts = together(lambda: connect(0), lambda: connect(1))
    end = "start all ranks with one version of Plait and one plan"
    assert texts == [
        f"rank 0 talks version 1 of the frames with capacity 2, rank 1 version 1 with 3: {end}",
        f"rank 1 talks version 1 of the frames with capacity 3, rank 0 version 1 with 2: {end}",
    ]


def test_an_impossible_mesh_is_refused() -> None:
    with pytest.raises(RunError) as caught:
        C10dEndpoint(Counted(None), 0, 2, 0)  # type: ignore[arg-type]
    assert str(caught.value) == "a mesh of 2 ranks with capacity 0 cannot work: both must be at least 1"


def test_who_talks_something_else_is_lost() -> None:
    opened = groups(2)
    sent = opened[1].send([torch.full((100,), 255, dtype=torch.uint8)], 0, FRAMES)
    with pytest.raises(PeerLost) as caught:
        C10dEndpoint(opened[0], 0, 2, 2, timeout_s=20)
    assert str(caught.value) == (
        "rank 1 is lost, while rank 0 waited for all ranks to connect: "
        "what arrived is no frame: do all ranks run the same version of Plait?"
    )
    sent.wait(timedelta(seconds=20))


def test_who_has_gone_before_the_meeting_is_named() -> None:
    opened = groups(2)
    del opened[1]
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


def test_a_bell_that_rang_before_one_sleeps_is_heard() -> None:
    waker = Waker()
    waker.ring()
    waker.ring()
    start = time.monotonic()
    waker.sleep(20)  # at once
    assert time.monotonic() - start < 10
    waker.sleep(0.01)  # and only once
    waker.ring()
    waker.sleep(20)
    assert time.monotonic() - start < 10
    waker.close()
    waker.close()
    waker.ring()


def test_connections_ask_whether_the_other_machine_lives() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    before = socket.create_connection(listener.getsockname())
    with kept_alive():
        during = socket.create_connection(listener.getsockname())
        local, other = socket.socketpair()
    options = [one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) for one in (before, during, local)]
    assert [bool(one) for one in options] == [False, True, False]
    for one in (listener, before, during, local, other):
        one.close()


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
    opened = groups(2)
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
