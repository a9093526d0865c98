"""The contract of messages between two ranks, on every transport."""

from __future__ import annotations

import pytest
import torch

from plait.comm.contract import Endpoint, Group, Tag
from plait.comm.link import host_tensor
from plait.errors import RunError
from tests.comm.ranks import Ranks

PAIR = Group((0, 1))
DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "int32", "uint8", "bool")


def number(value: float) -> torch.Tensor:
    return torch.tensor([float(value)])


def in_order(endpoint: Endpoint) -> list[float]:
    if endpoint.rank == 0:
        for index in range(200):
            endpoint.send(1, Tag(0, index, 0), number(index))
        return []
    return [float(endpoint.receive(0, Tag(0, index, 0))) for index in range(200)]


def test_order(ranks: Ranks) -> None:
    assert ranks.run(in_order, 2)[1] == list(range(200))


def same_tag(endpoint: Endpoint) -> list[float]:
    tag = Tag(0, 0, 0)
    if endpoint.rank == 0:
        for index in range(3):
            assert endpoint.try_send(1, tag, number(index))
        endpoint.barrier(PAIR)
        return []
    endpoint.barrier(PAIR)
    return [float(endpoint.receive(0, tag)) for _ in range(3)]


def test_one_tag_several_times_stays_in_order(ranks: Ranks) -> None:
    assert ranks.run(same_tag, 2, capacity=3)[1] == [0, 1, 2]


def backwards(endpoint: Endpoint) -> list[float]:
    if endpoint.rank == 0:
        for index in range(8):
            assert endpoint.try_send(1, Tag(0, 3, index), number(index))
        endpoint.barrier(PAIR)
        return []
    endpoint.barrier(PAIR)
    assert endpoint.try_receive(0, Tag(0, 3, 99)) is None
    return [float(endpoint.receive(0, Tag(0, 3, index))) for index in reversed(range(8))]


def test_messages_are_matched_by_tag_never_by_order(ranks: Ranks) -> None:
    assert ranks.run(backwards, 2, capacity=8)[1] == list(reversed(range(8)))


def exact_capacity(endpoint: Endpoint) -> list[bool]:
    capacity = endpoint.capacity
    tags = [Tag(0, 0, index) for index in range(capacity + 2)]
    if endpoint.rank == 0:
        sent = [endpoint.try_send(1, tag, number(0)) for tag in tags[: capacity + 1]]
        endpoint.barrier(PAIR)
        endpoint.barrier(PAIR)  # meanwhile rank 1 has received the last one only
        return [*sent, *(endpoint.try_send(1, tag, number(0)) for tag in tags[capacity:])]
    endpoint.barrier(PAIR)
    assert endpoint.try_receive(0, tags[-1]) is None
    assert endpoint.try_receive(0, tags[capacity - 1]) is not None
    endpoint.barrier(PAIR)
    return []


@pytest.mark.parametrize("capacity", [1, 2, 5])
def test_at_most_capacity_messages_are_unreceived(ranks: Ranks, capacity: int) -> None:
    assert ranks.run(exact_capacity, 2, capacity=capacity)[0] == [True] * capacity + [False, True, False]


def over_epochs(endpoint: Endpoint) -> list[float]:
    if endpoint.rank == 0:
        assert endpoint.try_send(1, Tag(0, 0, 0), number(1))
        assert endpoint.try_send(1, Tag(0, 0, 1), number(2))
        endpoint.barrier(PAIR)
        endpoint.barrier(PAIR)  # rank 1 has moved to epoch 1: both are dropped, and the link has room for two
        assert endpoint.try_send(1, Tag(1, 0, 0), number(3))
        assert endpoint.try_send(1, Tag(0, 0, 2), number(4))
        endpoint.send(1, Tag(2, 0, 0), number(5), timeout_s=20)
        endpoint.barrier(PAIR)
        return [*endpoint.traffic(1)]
    endpoint.barrier(PAIR)
    assert endpoint.try_receive(0, Tag(0, 0, 9)) is None
    assert endpoint.try_receive(0, Tag(1, 0, 0)) is None
    endpoint.barrier(PAIR)
    received = [float(endpoint.receive(0, Tag(1, 0, 0))), float(endpoint.receive(0, Tag(2, 0, 0)))]
    endpoint.barrier(PAIR)
    return received


def test_messages_of_an_older_epoch_are_dropped_and_counted(ranks: Ranks) -> None:
    (messages, payload_bytes, control_bytes, dropped), received = ranks.run(over_epochs, 2)
    assert (messages, payload_bytes, control_bytes, dropped) == (5, 20, 0, 3)
    assert received == [3, 5]


def pattern(rank: int, count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.int32) * (rank + 3)


def both_ways(endpoint: Endpoint) -> bool:
    """Both send 32 MB at once before either receives, then sizes around every buffer's edge."""
    other, good = 1 - endpoint.rank, True
    for count in (8 << 20, (8 << 20) + 5, (1 << 18) - 1, 1 << 18, (1 << 18) + 1, 65536, 65537, 8192, 8193):
        endpoint.send(other, Tag(0, 0, count), pattern(endpoint.rank, count), timeout_s=60)
        good &= torch.equal(endpoint.receive(other, Tag(0, 0, count), timeout_s=60), pattern(other, count))
    return good


def test_large_messages_pass_in_both_directions_at_once(ranks: Ranks) -> None:
    assert ranks.run(both_ways, 2) == [True, True]


def large_and_small(endpoint: Endpoint) -> bool:
    """While a large message is on its way others wait; it stays whole, and may be asked for last."""
    large, small = Tag(0, 0, 1), Tag(0, 0, 2)
    if endpoint.rank == 0:
        endpoint.send(1, large, pattern(0, 3 << 20), timeout_s=60)
        endpoint.send(1, small, number(7), timeout_s=60)
        return True
    return float(endpoint.receive(0, small)) == 7 and torch.equal(endpoint.receive(0, large), pattern(0, 3 << 20))


def test_a_large_message_may_be_received_last(ranks: Ranks) -> None:
    assert all(ranks.run(large_and_small, 2))


def forms() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    shapes = ((), (0,), (3, 0, 2), (1,), (7, 5), (2, 1, 3, 1, 2), (1,) * 8, (33, 1024))
    tensors = [torch.randint(0, 2, shape, generator=generator) for shape in shapes]
    made = [tensor.to(getattr(torch, dtype)) for dtype in DTYPES for tensor in tensors]
    grid = torch.arange(24.0).view(4, 6)
    return [*made, grid.t(), grid[:, ::2], grid[1:3], grid.clone().requires_grad_()]


def all_forms(endpoint: Endpoint) -> int:
    for index, tensor in enumerate(forms()):
        tag = Tag(0, 0, index)
        if endpoint.rank == 0:
            endpoint.send(1, tag, tensor)
        else:
            received = endpoint.receive(0, tag)
            assert received.dtype == tensor.dtype
            assert received.shape == tensor.shape
            assert torch.equal(received, host_tensor(tensor.detach()))
            assert received.is_contiguous()
            assert not received.requires_grad
    return len(forms())


def test_dtypes_and_shapes(ranks: Ranks) -> None:
    assert ranks.run(all_forms, 2) == [len(forms())] * 2


def sender_reuses(endpoint: Endpoint) -> list[float]:
    if endpoint.rank == 0:
        tensor = number(1)
        endpoint.send(1, Tag(0, 0, 0), tensor)
        tensor.fill_(2)
        endpoint.send(1, Tag(0, 0, 1), tensor)
        endpoint.barrier(PAIR)
        return []
    endpoint.barrier(PAIR)
    first = endpoint.receive(0, Tag(0, 0, 0))
    second = endpoint.receive(0, Tag(0, 0, 1))
    first += 10
    return [float(first), float(second)]


def test_both_own_their_tensors(ranks: Ranks) -> None:
    assert ranks.run(sender_reuses, 2)[1] == [11, 2]


def talk(endpoint: Endpoint) -> list[int]:
    """Control messages both ways at once, in order, far beyond any buffer, one of them larger than it alone."""
    other = 1 - endpoint.rank
    messages = [b"%d:" % index * 40 for index in range(3000)] + [b"x" * 300_000, b"", b"end"]
    for message in messages:
        endpoint.post(other, message)
    received = [endpoint.wait(lambda: endpoint.poll(other), "control", 30) for _ in messages]
    assert received == messages
    assert endpoint.poll(other) is None
    return [len(message) for message in received]


def test_control_messages_are_in_order_and_without_limit(ranks: Ranks) -> None:
    first, second = ranks.run(talk, 2)
    assert first == second


def last_words(endpoint: Endpoint) -> int:
    if endpoint.rank == 0:
        for _ in range(50):
            endpoint.post(1, b"z" * 10_000)
        return 0
    return sum(len(endpoint.wait(lambda: endpoint.poll(0), "control", 10, (0,))) for _ in range(50))


def test_control_messages_posted_just_before_leaving_arrive(ranks: Ranks) -> None:
    assert ranks.run(last_words, 2)[1] == 500_000


def impossible(endpoint: Endpoint) -> list[str]:
    texts = []

    def refused(call: object, *arguments: object) -> None:
        with pytest.raises(RunError) as caught:
            call(*arguments)  # type: ignore[operator]
        texts.append(str(caught.value))

    tag = Tag(0, 0, 0)
    refused(endpoint.try_send, 2, tag, number(0))
    refused(endpoint.try_send, 1 - endpoint.rank, tag, torch.zeros(1, dtype=torch.complex64))
    endpoint.close()
    endpoint.close()
    refused(endpoint.try_send, 1 - endpoint.rank, tag, number(0))
    refused(endpoint.post, 1 - endpoint.rank, b"")
    refused(endpoint.all_reduce, PAIR, number(0))
    return texts


def test_what_cannot_work_is_refused(ranks: Ranks) -> None:
    assert ranks.run(impossible, 2)[0] == [
        "rank 0 has no link with rank 2: its mesh has ranks 0 to 1",
        "a tensor of torch.complex64 cannot travel; these can: "
        "float32, float64, bfloat16, int64, float16, int32, int16, int8, uint8, bool",
        "rank 0 has left the mesh and cannot talk any more",
        "rank 0 has left the mesh and cannot talk any more",
        "rank 0 has left the mesh and cannot talk any more",
    ]


def traffic_of(endpoint: Endpoint) -> list[int]:
    other = 1 - endpoint.rank
    for index in range(3):
        endpoint.send(other, Tag(0, 0, index), torch.zeros(100 + endpoint.rank))
    for index in range(3):
        endpoint.receive(other, Tag(0, 0, index))
    before = endpoint.traffic(other)
    endpoint.all_reduce(PAIR, torch.zeros(64))
    endpoint.post(other, b"12345")
    endpoint.wait(lambda: endpoint.poll(other), "control")
    after = endpoint.traffic(other)
    control = after.control_bytes - before.control_bytes
    return [*before[:2], after.payload_bytes - before.payload_bytes, int(control >= 5), after.messages]


def test_traffic_is_counted_where_it_is_written(ranks: Ranks) -> None:
    assert ranks.run(traffic_of, 2, capacity=3) == [[3, 1200, 256, 1, 3], [3, 1212, 256, 1, 3]]
