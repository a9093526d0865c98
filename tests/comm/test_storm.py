"""Everything at once: random messages, collectives and control messages, the same script on every rank."""

from __future__ import annotations

import random
import time

import pytest
import torch

from plait.comm.contract import Endpoint, Group, Tag
from tests.comm.ranks import Ranks
from tests.comm.test_collectives import partition_of

COUNTS = (0, 1, 300, 8192, 8193, 65_536, 300_000)


def fill(source: int, to: int, act: int, index: int, count: int) -> torch.Tensor:
    return torch.full((count,), source * 1e6 + to * 1e5 + act * 10 + index, dtype=torch.float64)


def messages(endpoint: Endpoint, rng: random.Random, act: int) -> bool:
    """Each rank sends some messages to each other one, sleeps or not, and receives its own in another order."""
    pairs = [(a, b) for a in range(endpoint.size) for b in range(endpoint.size) if a != b]
    script = [(a, b, index, rng.choice(COUNTS)) for a, b in pairs for index in range(rng.randint(0, endpoint.capacity))]
    rng.shuffle(script)
    naps = [rng.random() * 0.001 if rng.random() < 0.1 else 0.0 for _ in range(endpoint.size)]
    time.sleep(naps[endpoint.rank])
    good = True
    for a, b, index, count in script:
        if a == endpoint.rank:
            endpoint.send(b, Tag(act // 50, act, index), fill(a, b, act, index, count), 60)
    rng.shuffle(script)
    for a, b, index, count in script:
        if b == endpoint.rank:
            received = endpoint.receive(a, Tag(act // 50, act, index), 60)
            good &= torch.equal(received, fill(a, b, act, index, count))
    return good


def sums(endpoint: Endpoint, rng: random.Random, act: int) -> bool:
    (mine,) = (group for group in partition_of(rng, endpoint.size) if endpoint.rank in group)
    count = rng.choice(COUNTS)
    tensor = torch.full((count,), float(endpoint.rank + act))
    endpoint.all_reduce(Group(tuple(mine)), tensor)
    return bool((tensor == sum(float(rank + act) for rank in mine)).all())


def words(endpoint: Endpoint, rng: random.Random, act: int) -> bool:
    others = [rank for rank in range(endpoint.size) if rank != endpoint.rank]
    length = rng.choice((1, 50, 20_000, 70_000))
    for other in others:
        endpoint.post(other, bytes([act % 256]) * length)
    heard = [endpoint.wait(lambda other=other: endpoint.poll(other), f"word of {other}", 60) for other in others]
    return heard == [bytes([act % 256]) * length] * len(others)


def storm(endpoint: Endpoint, seed: int, acts: int) -> list[int]:
    """The numbers of the acts that went wrong."""
    rng = random.Random(seed)
    wrong = []
    for act in range(acts):
        state = rng.choice((messages, messages, sums, sums, words))
        if not state(endpoint, random.Random(seed * 1000 + act), act):
            wrong.append(act)
    return wrong


@pytest.mark.parametrize("size", [2, 3])
def test_storm(ranks: Ranks, size: int) -> None:
    assert ranks.run(storm, size, seed=size, acts=80) == [[]] * size


@pytest.mark.soak
def test_long_storm(ranks: Ranks) -> None:
    for seed in range(6):
        size = 2 + seed % 4
        assert ranks.run(storm, size, capacity=1 + seed % 3, seed=seed, acts=400) == [[]] * size
